"""A rank of PyTorch's libraries dies, or contradicts the others: the others' errors."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.ranks import clean_environment

pytest.importorskip("torch")

PROGRAM = Path(__file__).with_name("torch_failures.py")
VICTIM = 1
SECONDS = 240
LIBRARIES = ("ddp", "fsdp2", "pipeline")
PHASES = ("forward", "backward", "step")

pytestmark = pytest.mark.timeout(SECONDS + 30)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Any]:
    """The result of each case."""
    job = subprocess.run(
        [sys.executable, str(PROGRAM), str(tmp_path_factory.mktemp("failures"))],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        env=clean_environment() | {"OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert job.returncode == 0, job.stderr
    told = [json.loads(line) for line in job.stdout.splitlines()]
    return {tuple(one["case"]): one | {"stderr": job.stderr} for one in told}


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("library", LIBRARIES)
def test_survivors_of_a_death_raise(library: str, phase: str, outcomes: Any) -> None:
    """No rank continues, hangs, or ends by a signal, except the killed one."""
    outcome = outcomes[library, phase]
    assert outcome["ended"] == [0, -9, 0], outcome
    assert outcome["raised"][VICTIM] is None
    for raised in (outcome["raised"][0], outcome["raised"][2]):
        assert f"rank {VICTIM}" in raised["text"], outcome
        if raised["type"] != "RankFailedError":
            # DDP's reducer builds its error from the text only.
            assert (library, raised["type"]) == ("ddp", "RuntimeError"), outcome
            assert f"RankFailedError: rank {VICTIM}" in raised["text"], outcome
        else:
            assert raised["ranks"] == [VICTIM], outcome


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_mismatch_raises(library: str, outcomes: Any) -> None:
    outcome = outcomes[library, "mismatch"]
    assert outcome["ended"] == [0, 0, 0], outcome
    # Failed sends of pipelines surface at the receiver: others learn that this rank has left.
    concerned = [VICTIM] if library == "pipeline" else range(3)
    for rank, raised in enumerate(outcome["raised"]):
        assert raised is not None, outcome
        if rank in concerned:
            assert raised["type"] == "MismatchError" or "MismatchError: " in raised["text"], outcome
