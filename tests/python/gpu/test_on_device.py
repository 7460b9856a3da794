"""horoscale.torch on GPUs, if there are any: two ranks if NCCL supports it, otherwise one.

The ranks' program also runs on CPUs, which only tests the program itself.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.rank_processes import RankProcesses

torch = pytest.importorskip("torch")

PROGRAM = Path(__file__).with_name("rank.py")
SECONDS = 120


def num_ranks() -> int:
    """How many ranks NCCL supports here: two can share a GPU from version 2.30.3 on."""
    shares = torch.cuda.nccl.version() >= (2, 30, 3)
    return 2 if torch.cuda.device_count() >= 2 or shares else 1


def check(device: str, size: int, folder: Path) -> dict[str, int]:
    """Run the program on this many ranks; return the lowest rank's counters."""
    variables = {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}
    with RankProcesses(size, PROGRAM, device, folder=folder, variables=variables) as ranks:
        for rank in range(size):
            assert ranks.processes[rank].wait(SECONDS) == 0, ranks.errors(rank)
        said: dict[str, int] = json.loads(ranks.read_line(0, SECONDS))
    return said


def test_program_on_cpus(tmp_path: Path) -> None:
    assert check("cpu", 2, tmp_path)["device_buckets"] == 0


@pytest.mark.skipif(
    not torch.cuda.is_available(), reason="no GPU: torch.cuda.is_available() is false"
)
def test_on_gpus(tmp_path: Path) -> None:
    said = check("cuda", num_ranks(), tmp_path)
    assert said["nccl_buckets"] > 0
    assert said["device_buckets"] > said["nccl_buckets"]  # Max, and the operations after a join
