"""What a job's ranks and links can do, measured by its own collectives and messages, and kept."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import torch

from horoscale._core import ReduceOp
from horoscale._private_file import open_private
from horoscale._version import __version__
from horoscale.common import allgather_object, job
from horoscale.common.objects import broadcast_object
from horoscale.common.synchronization import barrier
from horoscale.torch.messages import recv, send
from horoscale.torch.parallel.mesh import Place, hosts_of
from horoscale.torch.parallel.tags import CALIBRATION
from horoscale.torch.reductions import allreduce_, allreduce_async_

_SMALL, _LARGE = 1 << 10, 4 << 20  # bytes of messages: one tells the latency, both the bandwidth
_MATRIX = 512
_COPIED = 32 << 20
_FORMAT = 1
_NAME = "horoscale.calibration"


@dataclass(frozen=True)
class Link:
    """A message of n bytes takes latency + n / bandwidth.

    Attributes:
        latency: in seconds.
        bandwidth: in bytes a second.
    """

    latency: float
    bandwidth: float

    def seconds(self, nbytes: float) -> float:
        """Return how long a message takes."""
        return self.latency + nbytes / self.bandwidth


@dataclass(frozen=True)
class Machine:
    """What was measured.

    Attributes:
        flops: floating-point operations a second in a product of matrices, of one rank while as
            many compute as there are cores for.
        memory_bandwidth: bytes a second that one rank copies meanwhile, read and written.
        slots: how many ranks of a host can compute at once: its cores by a rank's threads.
        message: a message between two ranks of a host.
        collective: for an allreduce inside a host, as ring_seconds() counts its steps and bytes.
        message_between: a message between two hosts; None: there is one host.
        collective_between: for an allreduce between hosts.
        overlap: the part of a collective that computing hides, from 0 to 1.
    """

    flops: float
    memory_bandwidth: float
    slots: float
    message: Link
    collective: Link
    message_between: Link | None
    collective_between: Link | None
    overlap: float


def calibrate(
    dtype: torch.dtype = torch.float32, *, seconds: float = 20.0, cached: bool = True
) -> Machine:
    """Measure what this job's ranks and links can do. Collective.

    Args:
        dtype: of the products of matrices.
        seconds: that it may take.
        cached: whether to take what a job on the same hosts, with as many ranks and threads, has
            measured before. The file is in $XDG_CACHE_HOME/horoscale (~/.cache/horoscale), and is
            replaced at once by the first rank; only its user may read it.

    Returns:
        The figures, the same on all ranks.

    Raises:
        ValueError: there is no time, or no job.
    """
    if seconds <= 0:
        raise ValueError(f"seconds={seconds}: calibrating takes some time")
    topology = job.current_runtime().topology
    place = Place(topology.local_rank, topology.local_size, topology.cross_rank)
    said = allgather_object((place, platform.node(), _cores(), torch.get_num_threads()), name=_NAME)
    places = [place for place, *_ in said]
    hosts = hosts_of(places)
    key = _key([(host, *rest) for host, (_, *rest) in zip(hosts, said, strict=True)], dtype)
    found = _read(key) if cached and topology.rank == 0 else None
    found = broadcast_object(found, 0, f"{_NAME}.cached")
    if found is None:
        found = _measure(hosts, topology.rank, topology.local_rank, dtype, seconds)
        if cached and topology.rank == 0:
            _write(key, found)
    return found


def slots_of_host() -> float:
    """Return how many ranks of this host can compute at once, each with its threads."""
    return max(1.0, _cores() / torch.get_num_threads())


def measure_alone(dtype: torch.dtype = torch.float32) -> Machine:
    """Measure this process alone; what is said of links is that of memory. No job is needed."""
    copied = _bandwidth(0.2)
    link = Link(20e-6, copied / 4)
    return Machine(_flops(dtype, 0.3), copied, slots_of_host(), link, link, None, None, 0.0)


def _measure(
    hosts: list[int], rank: int, local_rank: int, dtype: torch.dtype, seconds: float
) -> Machine:
    ranks = len(hosts)
    share = seconds / 10
    slots = slots_of_host()
    computes = local_rank < slots
    barrier()
    flops = _flops(dtype, share) if computes else math.inf
    barrier()
    copied = _bandwidth(share) if computes else math.inf
    barrier()
    local = max(hosts.count(host) for host in hosts)
    inside = _pair(ranks, lambda a, b: hosts[a] == hosts[b])
    between = _pair(ranks, lambda a, b: hosts[a] != hosts[b])
    message = _message(rank, inside, share) if inside else Link(20e-6, copied / 4)
    message_between = _message(rank, between, share) if between else None
    collective, collective_between = message, message_between
    overlap = 0.0
    if ranks > 1:
        times = [_agreed(partial(_allreduce, n), share) for n in (_SMALL, _LARGE)]
        if message_between is None:
            collective = _as_ring(times, ranks)
        else:
            number = len(set(hosts))
            if local > 1:  # what the hosts' links take is what is left
                times = [
                    max(one - ring_seconds(size, local, message), one / 10)
                    for one, size in zip(times, (_SMALL, _LARGE), strict=True)
                ]
            collective_between = _as_ring(times, number)
        overlap = _overlap(dtype, share)
    said: list[Any] = allgather_object(
        (flops, copied, slots, message, message_between, overlap), name=f"{_NAME}.figures"
    )
    computing = [one for one in said if math.isfinite(one[0])]
    return Machine(
        statistics.median(one[0] for one in computing),
        statistics.median(one[1] for one in computing),
        min(one[2] for one in said),
        said[0][3],
        collective if ranks > 1 and message_between is None else said[0][3],
        said[0][4],
        broadcast_object(collective_between, 0, f"{_NAME}.between"),
        statistics.median(one[5] for one in said),
    )


def ring_seconds(nbytes: float, ranks: int, link: Link) -> float:
    """Return what an allreduce takes: log2(ranks) latencies, and the bytes of a ring.

    Each rank sends and receives 2 (ranks - 1) / ranks of them (Patarasuk and Yuan 2009).
    """
    if ranks == 1:
        return 0.0
    steps = math.ceil(math.log2(ranks))
    return steps * link.latency + 2 * (ranks - 1) / ranks * nbytes / link.bandwidth


def _as_ring(times: list[float], ranks: int) -> Link:
    """Return the link with which ring_seconds() gives these times."""
    small, large = times
    steps = math.ceil(math.log2(ranks))
    moved = 2 * (ranks - 1) / ranks * (_LARGE - _SMALL)
    return Link(small / steps, moved / max(large - small, 1e-9))


def _pair(ranks: int, fits: Callable[[int, int], bool]) -> tuple[int, int] | None:
    """Return two ranks between which there is such a link."""
    return next((pair for pair in combinations(range(ranks), 2) if fits(*pair)), None)


def _message(rank: int, pair: tuple[int, int], seconds: float) -> Link:
    small, large = (_agreed(partial(_ping, rank, pair, n), seconds) for n in (_SMALL, _LARGE))
    return Link(small, (_LARGE - _SMALL) / max(large - small, 1e-9))


def _ping(rank: int, pair: tuple[int, int], nbytes: int) -> float:
    if rank not in pair:
        return 0.0
    tensor = torch.zeros(nbytes, dtype=torch.uint8)
    begin = time.perf_counter()
    if rank == pair[0]:
        send(tensor, pair[1], CALIBRATION)
        recv(tensor, pair[1], CALIBRATION)
    else:
        recv(tensor, pair[0], CALIBRATION)
        send(tensor, pair[0], CALIBRATION)
    return (time.perf_counter() - begin) / 2


def _allreduce(nbytes: int) -> float:
    tensor = torch.zeros(nbytes // 4)
    begin = time.perf_counter()
    allreduce_(tensor, name=f"{_NAME}.{nbytes}", op=ReduceOp.SUM)
    return time.perf_counter() - begin


def _overlap(dtype: torch.dtype, seconds: float) -> float:
    """Return the part of an allreduce that a product of matrices hides."""
    tensor = torch.zeros(_LARGE // 4)
    one, product = _matrices(dtype)
    alone = _agreed(lambda: _allreduce(_LARGE), seconds / 3)
    of_one = _agreed(lambda: _seconds(product), seconds / 3)
    times = max(1, round(2 * alone / max(of_one, 1e-9)))

    def compute() -> None:
        for _ in range(times):
            torch.mm(one, one)

    def both() -> float:
        begin = time.perf_counter()
        handle = allreduce_async_(tensor, name=f"{_NAME}.overlap", op=ReduceOp.SUM)
        compute()
        handle.wait()
        return time.perf_counter() - begin

    computing = _agreed(lambda: _seconds(compute), seconds / 3)
    together = _agreed(both, seconds / 3)
    return min(1.0, max(0.0, (computing + alone - together) / alone))


def _agreed(measure: Callable[[], float], seconds: float) -> float:
    """Return the median of what the slowest rank takes, of as many calls as there is time for."""
    measure()
    barrier()
    first = max(allgather_object(measure(), name=f"{_NAME}.first"))
    calls = max(3, min(20, int(seconds / max(first, 1e-6))))
    times = []
    for _ in range(calls):
        barrier()
        times.append(measure())
    everyone = allgather_object(times, name=f"{_NAME}.times")
    return float(statistics.median(map(max, zip(*everyone, strict=True))))


def _matrices(dtype: torch.dtype) -> tuple[torch.Tensor, Callable[[], torch.Tensor]]:
    one = torch.ones(_MATRIX, _MATRIX, dtype=dtype)
    return one, lambda: torch.mm(one, one)


def _flops(dtype: torch.dtype, seconds: float) -> float:
    _, product = _matrices(dtype)
    return 2 * _MATRIX**3 / _typical(product, seconds)


def _bandwidth(seconds: float) -> float:
    source = torch.zeros(_COPIED, dtype=torch.uint8)
    target = torch.zeros_like(source)
    return 2 * _COPIED / _typical(lambda: target.copy_(source), seconds)


def _typical(call: Callable[[], Any], seconds: float) -> float:
    """Return the median time of as many calls as fit into a time."""
    call()
    end = time.perf_counter() + seconds
    times = [_seconds(call)]
    while time.perf_counter() < end and len(times) < 50:
        times.append(_seconds(call))
    return statistics.median(times)


def _seconds(call: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def _cores() -> int:
    return len(os.sched_getaffinity(0))


# ---------------------------------------------------------------- the file


def _key(hosts: list[tuple[Any, ...]], dtype: torch.dtype) -> str:
    """Return what tells these machines from others."""
    said = (_FORMAT, hosts, str(dtype), torch.__version__, __version__, platform.machine())
    return hashlib.sha256(repr(said).encode()).hexdigest()[:32]


def _path(key: str) -> Path:
    """Return the file of a job. Raises RuntimeError: its user has no home directory."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    folder = Path(base) if os.path.isabs(base) else Path.home() / ".cache"
    return folder / "horoscale" / f"calibration-{key}.json"


def _read(key: str) -> Machine | None:
    """Return what was measured before; None if nothing was, or the file is damaged."""
    try:
        found = json.loads(_path(key).read_text())
        links = {
            name: None if found[name] is None else Link(**found[name])
            for name in ("message", "collective", "message_between", "collective_between")
        }
        return Machine(**(found | links))
    except (OSError, RuntimeError, ValueError, TypeError, KeyError):
        return None


def _write(key: str, machine: Machine) -> None:
    """Keep the figures, for the next job; without a place for them they are measured again."""
    with contextlib.suppress(OSError, RuntimeError):
        path = _path(key)
        temporary = path.with_name(f"{path.name}.{os.getpid()}")
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            with open_private(temporary) as file:
                file.write(json.dumps(asdict(machine)).encode())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
