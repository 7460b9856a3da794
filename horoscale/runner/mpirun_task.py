"""horoscale.run() over mpirun: a store sends the function to the ranks and collects the results.

mpirun does not pass descriptors on, so TCP replaces the supervisor's pipes. Clients of the store
must prove that they know a secret, which the ranks have from their environment.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence

from horoscale._core import HorovodInternalError, StoreClient
from horoscale.runner import processes, reach
from horoscale.runner.environment import encrypts
from horoscale.runner.mpirun import TASK_SECRET
from horoscale.runner.rendezvous import Rendezvous
from horoscale.runner.report import LAUNCHER_FAILED
from horoscale.runner.results import ResultsError, ResultWriter

PLACES = "HOROSCALE_TASK_STORE"  # host:port of the launcher, or several separated by commas
_RANKS = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")
_PIECE_BYTES = 1 << 20  # maximum size of a value in the store
_CONNECT_S = 10.0
_GET_S = 30.0


def run(
    words: Callable[[Mapping[str, str]], Sequence[str]],
    environment: Mapping[str, str],
    size: int,
    task: bytes,
    results: ResultWriter,
    *,
    interfaces: Sequence[str] | None,
) -> int:
    """Run mpirun, serve the task to its ranks and write their outcomes; return its exit status.

    `words` returns mpirun's command line for an environment. `interfaces` are those of this machine
    that other hosts may use; () means all. None: all ranks are on this machine.
    """
    own = [reach.LOOPBACK] if interfaces is None else reach.own_addresses(interfaces)
    addresses = [address for address in own if ":" not in address]
    encrypt = encrypts(environment)
    everywhere = interfaces is not None and not (interfaces and addresses)
    store = Rendezvous("0.0.0.0" if everywhere else ",".join(addresses), encrypt=encrypt)
    try:
        here = reach.LOOPBACK if everywhere else addresses[0]
        client = StoreClient(here, store.port, store.secret, encrypt=encrypt)
        _put(client, "task", task)
        places = ",".join(f"{address}:{store.port}" for address in addresses)
        told = {**environment, PLACES: places, TASK_SECRET: store.secret}
        status = _run_to_the_end(words(told), told)
        report = f"mpirun ended with status {status}" if status else ""
        try:
            _collect(client, size, results)
        except ResultsError as error:
            status, report = LAUNCHER_FAILED, str(error)
        client.close()
    finally:
        store.close()
    results.finish(report.encode())
    return status


def _collect(client: StoreClient, size: int, results: ResultWriter) -> None:
    """Read the ranks' outcomes from the store."""
    for rank in range(size):
        # The rank ended without an outcome, or stored an invalid one.
        with contextlib.suppress(HorovodInternalError, ValueError):
            for piece in _get(client, f"outcome of {rank}", 0.0):
                results.add(rank, piece)


def _run_to_the_end(words: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a command, forwarding signals that request its end; return the exit status."""
    process: subprocess.Popen[bytes] | None = None
    asked: list[int] = []

    def pass_on(signum: int, _: object) -> None:
        asked.append(signum)
        if process is not None:
            process.send_signal(signum)

    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, pass_on)
    parent = os.getpid()
    process = subprocess.Popen(
        words,
        env=environment,
        stdin=subprocess.DEVNULL,
        preexec_fn=lambda: processes.die_with_parent(parent, signal.SIGTERM),
    )
    for early in asked:  # signals before the process was started
        process.send_signal(early)
    status = process.wait()
    return 128 - status if status < 0 else status


class Launcher:
    """A rank's connection to the launcher, whose variables it removes from the environment."""

    def __init__(self) -> None:
        self._places = os.environ.pop(PLACES)
        self._secret = os.environ.pop(TASK_SECRET)
        self._rank = next(os.environ[name] for name in _RANKS if name in os.environ)

    def fetch(self) -> bytes:
        """Return the task of all ranks."""
        return b"".join(_get(self._connect(), "task", _GET_S))

    def hand_in(self, outcome: bytes) -> None:
        """Send this rank's outcome."""
        _put(self._connect(), f"outcome of {self._rank}", outcome)

    def _connect(self) -> StoreClient:
        """Connect to the first of the launcher's addresses that is reachable.

        No connection is kept open while the function runs, because it may fork.
        """
        said = ""
        for place in self._places.split(","):
            host, _, port = place.rpartition(":")
            try:
                return StoreClient(
                    host, int(port), self._secret, _CONNECT_S, encrypt=encrypts(os.environ)
                )
            except HorovodInternalError as error:
                said += f"\n{error}"
        raise RuntimeError(f"horoscale.run: cannot reach the launcher:{said}")


def _put(client: StoreClient, key: str, value: bytes) -> None:
    for begin in range(0, len(value), _PIECE_BYTES):
        client.set(f"{key} from {begin}", value[begin : begin + _PIECE_BYTES])
    client.set(key, str(len(value)).encode())


def _get(client: StoreClient, key: str, timeout: float) -> Iterator[bytes]:
    size = int(client.get(key, timeout))
    for begin in range(0, size, _PIECE_BYTES):
        yield client.get(f"{key} from {begin}", timeout)
