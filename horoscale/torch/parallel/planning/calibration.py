"""Measures the performance of a job's ranks and links by collectives and messages; caches it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from horoscale._private_file import open_private
from horoscale._version import __version__
from horoscale.common import allgather_object, job
from horoscale.common.objects import broadcast_object
from horoscale.torch.parallel.mesh import Place, hosts_of
from horoscale.torch.parallel.planning.machine import (
    Averages,
    Link,
    Machine,
    Measured,
    Overheads,
    Shape,
)
from horoscale.torch.parallel.planning.measuring import (
    NAME,
    Rank,
    bandwidth_of,
    flops_of,
    measure,
    this_machine,
)

_FORMAT = 3


def calibrate(
    dtype: torch.dtype = torch.float32, *, seconds: float = 20.0, cached: bool = True
) -> Machine:
    """Measure the performance of this job's ranks and links. Collective.

    Args:
        dtype: the dtype of the matrix products.
        seconds: the time limit.
        cached: whether to reuse the results of an earlier job on the same hosts with the same
            numbers of ranks and threads. The file is in $XDG_CACHE_HOME/horoscale
            (~/.cache/horoscale). The first rank replaces it atomically, and only its user may read
            it.

    Returns:
        The figures, the same on all ranks.

    Raises:
        ValueError: `seconds` is not positive, or hvd.init() was not called.
    """
    if seconds <= 0:
        raise ValueError(f"seconds={seconds}: calibrating takes some time")
    ranks = ranks_of_job()
    key = _key(ranks, dtype)
    topology = job.current_runtime().topology
    found = _read(key) if cached and topology.rank == 0 else None
    found = broadcast_object(found, 0, f"{NAME}.cached")
    if found is None:
        found = measure(ranks, topology.rank, dtype, seconds)
        if cached and topology.rank == 0:
            _write(key, found)
    return found


def ranks_of_job() -> list[Rank]:
    """Return the locations of this job's ranks. Collective."""
    topology = job.current_runtime().topology
    place = Place(topology.local_rank, topology.local_size, topology.cross_rank)
    own = (place, platform.node(), _cores(), torch.get_num_threads(), this_machine())
    said = allgather_object(own, name=NAME)
    hosts = hosts_of([place for place, *_ in said])
    return [Rank(host, *rest) for host, (_, *rest) in zip(hosts, said, strict=True)]


def measure_alone(dtype: torch.dtype = torch.float32) -> Machine:
    """Measure this process only. Figures of links are those of memory. Needs no job."""
    copied = bandwidth_of(0.2)
    link = Link(20e-6, copied / 4)
    slots = max(1.0, _cores() / torch.get_num_threads())
    return Machine(flops_of(dtype, 0.3), copied, slots, link, link, None, None, 0.0)


def _cores() -> int:
    return len(os.sched_getaffinity(0))


# ---------------------------------------------------------------- the file


def _key(ranks: list[Rank], dtype: torch.dtype) -> str:
    """Return a key that identifies these machines, also after restarts."""
    machines = [one.machine for one in ranks]
    where = [(*one[:-1], machines.index(one.machine)) for one in ranks]
    said = (_FORMAT, where, str(dtype), torch.__version__, __version__, platform.machine())
    return hashlib.sha256(repr(said).encode()).hexdigest()[:32]


def _path(key: str) -> Path:
    """Return the cache file of a job. Raises RuntimeError if the user has no home directory."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    folder = Path(base) if os.path.isabs(base) else Path.home() / ".cache"
    return folder / "horoscale" / f"calibration-{key}.json"


def _read(key: str) -> Machine | None:
    """Return the cached figures; None if there are none, or the file is damaged."""
    try:
        found = json.loads(_path(key).read_text())
        links = {
            name: None if found[name] is None else _link(found[name])
            for name in ("message", "collective", "message_between", "collective_between")
        }
        groups = tuple(
            Measured(Shape(*one["shape"]), _link(one["allreduce"]), Averages(**one["averages"]))
            for one in found["groups"]
        )
        more = {"overheads": Overheads(**found["overheads"]), "groups": groups}
        return Machine(**(found | links | more))
    except (OSError, RuntimeError, ValueError, TypeError, KeyError):
        return None


def _link(found: dict[str, Any]) -> Link:
    points = tuple((float(size), float(seconds)) for size, seconds in found["points"])
    return Link(found["latency"], found["bandwidth"], points)


def _write(key: str, machine: Machine) -> None:
    """Cache the figures for later jobs. If the file can't be written, they are measured again."""
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
