"""PyTorch's own libraries on 4 ranks, and over hosts with separate networks: takes minutes.

The tests themselves are parallel/test_torch_libraries_*.py, which CI runs on 2 ranks.
"""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from support import namespaces
from support.examples import EXAMPLES
from support.namespaces import NetworkHosts
from support.ranks import clean_environment

PARALLEL = Path(__file__).parents[1] / "parallel"
FILES = sorted(PARALLEL.glob("test_torch_libraries_*.py"))
SECONDS = 600

pytestmark = pytest.mark.timeout(SECONDS + 30)
needs_hosts = pytest.mark.skipif(namespaces.why_not() is not None, reason=str(namespaces.why_not()))


def run(command: Sequence[object], **variables: str) -> str:
    """The standard output of a command that succeeds."""
    job = subprocess.run(
        list(map(str, command)),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        env=clean_environment() | {"OMP_NUM_THREADS": "1"} | variables,
        check=False,
    )
    assert job.returncode == 0, job.stdout[-20_000:] + job.stderr[-5_000:]
    return job.stdout


def pytest_of(file: Path) -> list[object]:
    return [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "--timeout=120",
        "--tb=short",
        "--maxfail=3",
        file,
    ]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_on_4_ranks(file: Path) -> None:
    launcher = [sys.executable, "-m", "horoscale.runner", "-np", 4]
    assert " passed" in run([*launcher, *pytest_of(file)])


@needs_hosts
@pytest.mark.parametrize("per_host", ["1,1", "2,2"])
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_over_hosts(file: Path, per_host: str) -> None:
    with NetworkHosts(2) as hosts:
        placed = list(zip(hosts.names, per_host.split(","), strict=True))
        launcher = [
            *(sys.executable, "-m", "horoscale.runner", "--torch-env"),
            *("--remote-shell", namespaces.REMOTE_SHELL),
            *("-np", sum(int(count) for _, count in placed)),
            *("-H", ",".join(f"{name}:{count}" for name, count in placed)),
        ]
        command = hosts.command(0, *launcher, *pytest_of(file))
        assert " passed" in run(command, GLOO_SOCKET_IFNAME="eth0")


@needs_hosts
def test_torchrun_over_hosts() -> None:
    """An agent on each host; results are Gloo's except for the order of sums."""
    with NetworkHosts(2) as hosts:
        port = hosts.call(0, free_port)
        said = {}
        for backend in ("horoscale", "gloo"):
            torchrun = [
                *(sys.executable, "-m", "torch.distributed.run", "--nnodes=2"),
                *("--nproc-per-node=2", f"--master-addr={hosts.addresses[0]}"),
                f"--master-port={port}",
            ]
            program = [EXAMPLES / "torch_distributed_ddp.py", f"--backend={backend}"]
            agents = [
                subprocess.Popen(
                    hosts.command(number, *torchrun, f"--node-rank={number}", *program),
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    env=clean_environment()
                    | {
                        "OMP_NUM_THREADS": "1",
                        "GLOO_SOCKET_IFNAME": "eth0",
                        "HOROSCALE_HOSTNAME": hosts.names[number],
                    },
                )
                for number in range(2)
            ]
            texts = [agent.communicate(timeout=SECONDS / 2) for agent in agents]
            assert [agent.returncode for agent in agents] == [0, 0], texts
            said[backend] = texts[0][0]
        ours, theirs = (float(said[one].split("weights ")[1]) for one in ("horoscale", "gloo"))
        assert "4 ranks, accuracy" in said["horoscale"]
        assert abs(ours - theirs) < 1e-3


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
