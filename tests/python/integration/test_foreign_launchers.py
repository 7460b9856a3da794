"""The same program under every available launcher: each rank prints the same.

srun is simulated: its variables are set by hand. MPI's launchers have their own tests.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from launcher_process import PACKAGE_ROOT, PATIENCE_S
from support.ranks import clean_environment

EXAMPLE = Path(__file__).parents[3] / "examples" / "numpy_allreduce.py"
SIZE = 3


def run(*command: object, **variables: str) -> str:
    """The standard output of a command that succeeds."""
    ended = start(*command, **variables)
    out, err = ended.communicate(timeout=PATIENCE_S)
    assert ended.returncode == 0, f"{out}\n{err}"
    return out


def start(*command: object, **variables: str) -> subprocess.Popen[str]:
    environment = clean_environment()
    path = os.pathsep.join(filter(None, [str(PACKAGE_ROOT), environment.get("PYTHONPATH")]))
    return subprocess.Popen(
        list(map(str, command)),
        env=environment | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"} | variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def free_port() -> int:
    """A free port for rank 0, unless another process takes it first."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def each_rank(variables_of: Callable[[int], Mapping[str, str]], program: object) -> str:
    """The output of ranks that are started one by one."""
    ranks = [start(sys.executable, program, **variables_of(rank)) for rank in range(SIZE)]
    texts = []
    try:
        for rank in ranks:
            out, err = rank.communicate(timeout=PATIENCE_S)
            assert rank.returncode == 0, f"{out}\n{err}"
            texts.append(out)
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
    return "".join(texts)


def by_horoscalerun(program: Path) -> str:
    out = run(sys.executable, "-m", "horoscale.runner", "-np", SIZE, sys.executable, program)
    return re.sub(r"^\[\d+\]<stdout>:", "", out, flags=re.MULTILINE)


def by_torchrun(program: Path) -> str:
    pytest.importorskip("torch")
    flags = ("--standalone", "--nproc-per-node", SIZE)
    return run(sys.executable, "-m", "torch.distributed.run", *flags, program)


def by_torchruns_variables(program: Path) -> str:
    """Without an agent whose store could be used."""
    pytest.importorskip("torch")
    port = str(free_port())
    return each_rank(
        lambda rank: {
            "RANK": str(rank),
            "WORLD_SIZE": str(SIZE),
            "MASTER_ADDR": "localhost",
            "MASTER_PORT": port,
        },
        program,
    )


def by_our_variables(program: Path) -> str:
    """On loopback no further settings are needed, whichever of its names is used."""
    port = free_port()
    return each_rank(
        lambda rank: {
            "HOROSCALE_RANK": str(rank),
            "HOROSCALE_SIZE": str(SIZE),
            "HOROSCALE_RENDEZVOUS": f"{['127.0.0.1', 'localhost'][rank % 2]}:{port}",
        },
        program,
    )


def by_sruns_variables(program: Path) -> str:
    port, secret = free_port(), secrets.token_hex(16)
    return each_rank(
        lambda rank: {
            "SLURM_JOB_ID": "1",
            "SLURM_NTASKS": str(SIZE),
            "SLURM_STEP_NUM_TASKS": str(SIZE),
            "SLURM_PROCID": str(rank),
            "SLURM_LOCALID": str(rank),
            "HOROSCALE_RENDEZVOUS": f"127.0.0.1:{port}",
            "HOROSCALE_SECRET": secret,
        },
        program,
    )


LAUNCHERS = [
    by_horoscalerun,
    by_torchrun,
    by_torchruns_variables,
    by_our_variables,
    by_sruns_variables,
]


@pytest.mark.parametrize("launch", LAUNCHERS)
def test_every_launcher_starts_the_same_program(launch: Callable[[Path], str]) -> None:
    assert f"{SIZE} ranks, {1000 * SIZE} points: y = 3.00 x + 0.50" in launch(EXAMPLE)


PLACES = """
import horoscale.numpy as hvd, sys
rank = None
for comm in (None, None, [2, 0]):
    if comm is None or rank in comm:
        hvd.init(comm)
        rank = hvd.rank()
        hvd.barrier()
        place = f"{rank}/{hvd.size()} {hvd.local_rank()}/{hvd.local_size()}"
        sys.stdout.write(f"{comm} {place}\\n")
        hvd.shutdown()
"""


@pytest.mark.parametrize("launch", LAUNCHERS)
def test_places_and_a_second_job_and_one_of_some_ranks(
    launch: Callable[[Path], str], tmp_path: Path
) -> None:
    program = tmp_path / "places.py"
    program.write_text(PLACES)
    everybody = [f"None {rank}/{SIZE} {rank}/{SIZE}" for rank in range(SIZE)]
    some = [f"[2, 0] {rank}/2 {rank}/2" for rank in range(2)]
    assert sorted(launch(program).splitlines()) == sorted([*everybody, *everybody, *some])


def test_a_mesh_of_ranks_that_torchrun_started() -> None:
    pytest.importorskip("torch")
    flags = ("--standalone", "--nproc-per-node", 2)
    small = "--tp 2 --dim 16 --layers 2 --length 16 --batch 4 --steps 3 --check"
    script = EXAMPLE.with_name("gpt_parallel.py")
    out = run(sys.executable, "-m", "torch.distributed.run", *flags, script, *small.split())
    assert "largest difference from one process" in out


def test_torchruns_own_distributed_package_works_beside() -> None:
    pytest.importorskip("torch")
    code = (
        "import torch, torch.distributed as dist, horoscale.torch as hvd\n"
        "hvd.init(); dist.init_process_group('gloo')\n"
        "ours, theirs = hvd.allreduce(torch.ones(1), op=hvd.Sum), torch.ones(1)\n"
        "dist.all_reduce(theirs); assert ours == theirs == 2, (ours, theirs)\n"
        "hvd.shutdown(); dist.destroy_process_group()\n"
    )
    flags = ("--standalone", "--nproc-per-node", 2, "--no-python")
    run(sys.executable, "-m", "torch.distributed.run", *flags, sys.executable, "-c", code)


def test_what_torchrun_starts_anew_is_a_new_job() -> None:
    """A rank fails; the others' first job, and the store that one of them served, have ended."""
    pytest.importorskip("torch")
    code = (
        "import os, sys, numpy as np, horoscale.numpy as hvd\n"
        "hvd.init()\n"
        "attempt = os.environ['TORCHELASTIC_RESTART_COUNT']\n"
        "if attempt == '0' and hvd.rank() == 1: os._exit(3)\n"
        "total = hvd.allreduce(np.ones(1), op=hvd.Sum, name='x')[0]\n"
        "sys.stdout.write(f'{attempt} {total}\\n')\n"
    )
    flags = ("--standalone", "--nproc-per-node", 2, "--max-restarts", 1, "--no-python")
    out = run(sys.executable, "-m", "torch.distributed.run", *flags, sys.executable, "-c", code)
    assert out.splitlines() == ["1 2.0"] * 2


def test_torchs_package_on_horoscale_is_started_as_horoscale_is(tmp_path: Path) -> None:
    """hvd.init() finds the ranks itself, without torch.distributed."""
    pytest.importorskip("torch")
    program = tmp_path / "program.py"
    program.write_text(
        "import sys, torch, torch.distributed as dist, horoscale.torch.distributed\n"
        "dist.init_process_group('horoscale', init_method='horoscale://')\n"
        "pair = dist.new_group([0, 2])\n"
        "total = torch.ones(1)\n"
        "for group in (None, pair)[:2 - dist.get_rank() % 2]:\n"
        "    dist.all_reduce(total, group=group)\n"
        "sys.stdout.write(f'{dist.get_rank()} {dist.get_world_size()} {total.item()}\\n')\n"
        "dist.destroy_process_group()\n"
    )
    said = by_sruns_variables(program).splitlines()
    assert sorted(said) == ["0 3 6.0", "1 3 3.0", "2 3 6.0"]


def test_torchs_package_on_horoscale_is_started_anew(tmp_path: Path) -> None:
    """Rank 1 is killed in an operation of a group; torchrun's second attempt works like the first.

    The survivor's attempt ends with an error, not by torchrun's signal.
    """
    pytest.importorskip("torch")
    program = tmp_path / "program.py"
    program.write_text(
        "import os, signal, sys, pathlib, torch, torch.distributed as dist\n"
        "dist.init_process_group('horoscale')\n"
        "group = dist.new_group([0, 1])\n"
        "attempt, total = os.environ['TORCHELASTIC_RESTART_COUNT'], torch.ones(1)\n"
        "said = lambda text: sys.stdout.write(f'{attempt} {text}\\n')\n"
        "dist.all_reduce(total, group=group)\n"
        "if attempt == '0' and dist.get_rank() == 1: os.kill(os.getpid(), signal.SIGKILL)\n"
        "try:\n"
        "    dist.all_reduce(total, group=group)\n"
        "except RuntimeError as error:\n"
        "    pathlib.Path(sys.argv[1]).write_text(f'{type(error).__name__} {error.ranks}')\n"
        "    raise\n"
        "said(total.item())\n"
        "dist.destroy_process_group()\n"
    )
    raised = tmp_path / "raised"
    flags = ("--standalone", "--nproc-per-node", 2, "--max-restarts", 1)
    out = run(sys.executable, "-m", "torch.distributed.run", *flags, program, raised)
    assert out.splitlines() == ["1 4.0"] * 2
    # torchrun may be faster than either.
    assert not raised.exists() or raised.read_text() in ("", "RankFailedError (1,)")
