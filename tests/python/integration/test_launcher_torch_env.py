"""--torch-env: torch.distributed on the ranks of horoscalerun."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from launcher_process import run_launcher

NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
CLEAN = dict.fromkeys(NAMES)
SHOW = f"import json, os; print(json.dumps([os.environ.get(n) for n in {NAMES}]))"


def told(*flags: object) -> list[list[str | None]]:
    """The variables of each rank."""
    job = run_launcher("-np", 2, *flags, sys.executable, "-c", SHOW, env=CLEAN)
    assert job.returncode == 0, job.stderr
    lines = sorted(job.stdout.decode().splitlines())
    return [json.loads(line.split(":", 1)[1]) for line in lines]


def test_ranks_are_told_what_torchrun_would_tell() -> None:
    ranks = told("--torch-env")
    for rank, values in enumerate(ranks):
        assert values[:-1] == [str(rank), "2", str(rank), "2", "127.0.0.1"]
        assert 1024 <= int(values[-1] or 0) < 65536
    assert ranks[0][-1] == ranks[1][-1]


@pytest.mark.parametrize("flags", [(), ("--no-torch-env",)])
def test_they_are_not_unasked(flags: tuple[str, ...]) -> None:
    assert told(*flags) == [[None] * len(NAMES)] * 2


def test_on_other_hosts_the_first_one_is_the_master(tmp_path: Path) -> None:
    """Simulated hosts: the shell runs the command here, so all addresses reach this machine."""
    shell = tmp_path / "shell"
    shell.write_text('#!/bin/sh\nshift\nexec "$@"\n')
    shell.chmod(0o755)
    ranks = told("--torch-env", "-H", "one:1,two:1", "--remote-shell", shell)
    for rank, values in enumerate(ranks):
        assert values[:4] == [str(rank), "2", "0", "1"]
    assert ranks[0][4:] == ranks[1][4:]
    assert ranks[0][4]


def test_torchs_distributed_package_works_beside() -> None:
    pytest.importorskip("torch")
    program = (
        "import torch, torch.distributed as dist, horoscale.torch as hvd\n"
        "hvd.init(); dist.init_process_group('gloo', init_method='env://')\n"
        "assert (dist.get_rank(), dist.get_world_size()) == (hvd.rank(), hvd.size())\n"
        "ours, theirs = torch.full((1,), hvd.rank() + 1.0), torch.full((1,), hvd.rank() + 1.0)\n"
        "ours = hvd.allreduce(ours, op=hvd.Sum); dist.all_reduce(theirs)\n"
        "print(ours.item(), theirs.item(), hvd.size())\n"
        "hvd.shutdown(); dist.destroy_process_group()\n"
    )
    job = run_launcher("-np", 2, "--torch-env", sys.executable, "-c", program, env=CLEAN)
    assert job.returncode == 0, job.stderr
    assert sorted(job.stdout.splitlines()) == [
        f"[{rank}]<stdout>:3.0 3.0 2".encode() for rank in range(2)
    ]
