"""Measures allreduce between hosts: the effect of TCP streams, and the cost of protection.

    python benchmarks/hosts.py --streams 1,2,4 [--rate 200mbit] [--delay-us 500]
        [--connection-rate 250e6] [--hosts 2] [--ranks-per-host 1] [--sizes 4096,1048576]
    python benchmarks/hosts.py --streams 0 --protection authenticated,encrypted [--before PYTHON]

The hosts are network namespaces, which requires root, ip and tc. They are connected by the kernel's
memory (tens of Gbit/s), a token bucket (--rate), or benchmarks/delayed_link.py (--delay-us and
--connection-rate; two hosts). Jobs with different HOROSCALE_TCP_STREAMS and HOROSCALE_ENCRYPT, and
one with another installation (--before: its Python), are measured alternately. A cell is the median
over the rounds of the median time of a blocking in-place float32 allreduce, with minimum and
maximum.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import orders
from folders import temporary_folder
from ranks import Job

sys.path.append(str(Path(__file__).parents[1] / "tests" / "python"))
from support.namespaces import NetworkHosts

PORT = 29500  # no other program uses ports on these hosts
SIZES = "4096,16384,65536,262144,1048576,16777216"


class HostsJob(Job):
    """A job whose ranks are on hosts."""

    def __init__(
        self,
        name: str,
        index: int,
        hosts: NetworkHosts,
        arguments: argparse.Namespace,
        folder: Path,
        variables: dict[str, str],
        python: str = sys.executable,
    ) -> None:
        self._python = python
        self._per_host: int = arguments.ranks_per_host
        size = arguments.hosts * self._per_host
        program = Path(__file__)
        super().__init__(program, name, size, folder, folder, variables, hosts, PORT + index)

    def _start(self, address: str, folder: Path, peer_venv: Path) -> None:
        assert self._hosts
        variables = {
            "HOROSCALE_SIZE": str(self._num_ranks),
            "HOROSCALE_RENDEZVOUS": f"{self._hosts.addresses[0]}:{self._port}",
            "HOROSCALE_SECRET": secrets.token_hex(16),
            "OMP_NUM_THREADS": "1",
        }
        for rank in range(self._num_ranks):
            host = rank // self._per_host
            own = {"HOROSCALE_RANK": str(rank), "HOROSCALE_HOSTNAME": self._hosts.names[host]}
            command = self._hosts.command(host, self._python, __file__, "--rank-of", address)
            self._launch(command, os.environ | variables | own | self._extra)


def run_rank(address: str) -> None:
    """Run as a rank."""
    import numpy as np

    import horoscale.numpy as hvd

    hvd.init()

    def measure(num_bytes: int, seconds: float) -> list[float]:
        array = np.zeros(num_bytes // 4, np.float32)
        name = f"of {num_bytes}"
        hvd.allreduce_(array, op=hvd.Sum, name=name)
        began = time.perf_counter()
        hvd.allreduce_(array, op=hvd.Sum, name=name)
        estimate = hvd.broadcast_object(time.perf_counter() - began, 0)
        times = []
        for _ in range(max(3, min(300, int(seconds / estimate)))):
            began = time.perf_counter()
            hvd.allreduce_(array, op=hvd.Sum, name=name)
            times.append(time.perf_counter() - began)
        return times

    orders.serve(address, measure)


@contextlib.contextmanager
def network(arguments: argparse.Namespace) -> Iterator[tuple[NetworkHosts, dict[str, str]]]:
    """The hosts, and the variables with which their ranks use the right link."""
    with NetworkHosts(arguments.hosts) as hosts:
        if arguments.rate:
            hosts.limit_rate(arguments.rate)
        if not arguments.delay_us and not arguments.connection_rate:
            yield hosts, {}
            return
        relay = [sys.executable, Path(__file__).with_name("delayed_link.py"), *hosts.names]
        relay += ["--delay-us", str(arguments.delay_us)]
        if arguments.connection_rate:
            relay += ["--connection-rate", str(arguments.connection_rate)]
        with subprocess.Popen(relay, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            if process.stdout.readline() != b"ready\n":
                raise SystemExit("the delayed link did not start; its output is above")
            try:
                yield hosts, {"HOROSCALE_NETWORK_INTERFACE": "tun0"}
            finally:
                process.stdin.close()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", default="1,2,4")
    parser.add_argument("--protection", default="authenticated", help="authenticated, encrypted")
    parser.add_argument(
        "--before", metavar="PYTHON", help="Python of another installation of horoscale"
    )
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--ranks-per-host", type=int, default=1)
    parser.add_argument("--sizes", default=SIZES)
    parser.add_argument("--rate", help="of each link, in tc's units")
    parser.add_argument("--delay-us", type=float, default=0, help="of each direction")
    parser.add_argument("--connection-rate", type=float, default=0, help="bits per second")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.3, help="calls for each cell of a round")
    parser.add_argument("--smoke", action="store_true", help="smoke test: one short round")
    parser.add_argument("--rank-of", help=argparse.SUPPRESS)  # this process is a rank
    arguments = parser.parse_args()
    if arguments.smoke:
        arguments.rounds, arguments.seconds, arguments.sizes = 1, 0.01, "4096,1048576"
    if arguments.delay_us or arguments.connection_rate:
        arguments.hosts = 2
    return arguments


def kinds(arguments: argparse.Namespace) -> Iterator[tuple[str, dict[str, str], str]]:
    """The jobs to compare: name, variables and Python of each."""
    for streams in arguments.streams.split(","):
        name = f"{streams} streams" if streams != "0" else "streams as they come"
        chosen = {"HOROSCALE_TCP_STREAMS": streams}
        if arguments.before:
            yield f"{name}, before", chosen, arguments.before
        for protection in arguments.protection.split(","):
            encrypt = {"HOROSCALE_ENCRYPT": str(int(protection == "encrypted"))}
            yield f"{name}, {protection}", chosen | encrypt, sys.executable


def main() -> None:
    arguments = parse_arguments()
    if arguments.rank_of:
        return run_rank(arguments.rank_of)
    sizes = [int(size) for size in arguments.sizes.split(",")]
    with (
        network(arguments) as (hosts, variables),
        temporary_folder() as folder,
        contextlib.ExitStack() as ended,
    ):
        jobs = []
        for name, own, python in kinds(arguments):
            given = (len(jobs), hosts, arguments, folder, variables | own, python)
            job = HostsJob(name, *given)
            ended.callback(job.end)
            jobs.append(job)
        times: dict[tuple[int, str], list[float]] = {}
        for _ in range(arguments.rounds):
            for size in sizes:
                for job in jobs:
                    seconds = job.measure(size, arguments.seconds)
                    times.setdefault((size, job.name), []).append(seconds)
    print("| µs | " + " | ".join(job.name for job in jobs) + " |")
    print("|---" * (1 + len(jobs)) + "|")
    for size in sizes:
        cells = []
        for job in jobs:
            of_cell = [1e6 * seconds for seconds in times[size, job.name]]
            spread = f"{min(of_cell):,.0f}-{max(of_cell):,.0f}"
            cells.append(f"{statistics.median(of_cell):,.0f} ({spread})")
        print(f"| {size:,} | " + " | ".join(cells) + " |", flush=True)
    return None


if __name__ == "__main__":
    main()
