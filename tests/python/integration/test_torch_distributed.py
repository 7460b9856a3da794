"""Programs of torch.distributed on horoscale: the ways to start them."""

from __future__ import annotations

import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.ranks import clean_environment, run_alone, run_ranks

EXAMPLE = Path(__file__).parents[3] / "examples" / "torch_distributed_ddp.py"
SECONDS = 200

pytest.importorskip("torch")
distributed_c10d = pytest.importorskip("torch.distributed.distributed_c10d")


def digits() -> str:
    """The example's output under torchrun."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    job = subprocess.run(
        [*torchrun, "--nproc-per-node=2", str(EXAMPLE), "--epochs=2"],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        env=clean_environment() | {"OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert job.returncode == 0, job.stderr
    return job.stdout


@pytest.mark.timeout(SECONDS + 30)
def test_the_example_learns_under_torchrun() -> None:
    """test_torch_libraries_*.py compare the bits with Gloo's, on smaller models."""
    learned = re.match(r"2 ranks, accuracy ([0-9.]+)", digits())
    assert learned
    assert float(learned[1]) > 0.85


@pytest.mark.timeout(2 * SECONDS)
def test_ranks_that_share_a_file_only(tmp_path: Path) -> None:
    """Without a launcher. New groups can be created after the first have been destroyed."""
    program = """
        import sys, torch, torch.distributed as dist
        import horoscale.torch.distributed  # for torch before 2.5
        rank, path = {rank}, {path!r}
        for number in range(2):
            dist.init_process_group(
                "horoscale", init_method=f"file://{{path}}{{number}}", rank=rank, world_size=2)
            total = torch.ones(3) * (rank + 1)
            dist.all_reduce(total)
            pair = dist.new_group([0, 1])
            dist.all_reduce(total, group=pair)
            dist.barrier()
            dist.destroy_process_group()
        print(total.tolist())
    """
    path = str(tmp_path / "store")
    with ThreadPoolExecutor(2) as threads:
        ranks = list(
            threads.map(
                lambda rank: run_alone(program.format(rank=rank, path=path), SECONDS), range(2)
            )
        )
    for rank in ranks:
        assert rank.returncode == 0, rank.stderr
        assert rank.stdout.strip() == "[6.0, 6.0, 6.0]"


# Rank 0 aborts the default group, which means all groups, while rank 1 waits for it.
ABORT = """
    import torch, torch.distributed as dist
    import horoscale.torch.distributed

    dist.init_process_group("horoscale", init_method="horoscale://")
    group = dist.new_group()
    dist.barrier()
    if dist.get_rank() == 0:
        work = dist.all_reduce(torch.ones(1), group=group, async_op=True)
        dist.distributed_c10d._abort_process_group()
        assert not dist.is_initialized()
    else:
        work = dist.all_reduce(torch.ones(1), async_op=True)
    try:
        work.wait()
    except RuntimeError as error:
        print(error)
"""


def test_an_abort_of_the_default_group_fails_what_all_ranks_wait_for() -> None:
    if not hasattr(distributed_c10d, "_abort_process_group"):
        pytest.skip("this PyTorch has no abort")
    first, second = run_ranks(2, ABORT, SECONDS)
    for rank in (first, second):
        assert rank.returncode == 0, rank.stderr
    # PyTorch aborts the newest group first. Thread timing decides whether that or the end of the
    # job reaches its pending operations first.
    assert re.search("aborted|rank 0 abandoned process set", first.stdout), first.stdout
    assert "aborted" in second.stdout
