"""Ranks die that own part of the training state, which is restored; and its checkpoints."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from elastic_zero import loss, model  # noqa: E402
from launcher_process import run_launcher  # noqa: E402

import horoscale.torch.parallel as par  # noqa: E402

SCRIPT = Path(__file__).with_name("elastic_zero.py")
CLOSE = {"rtol": 1e-8, "atol": 1e-10}


def run(folder: Path, steps: int, stage: int, *flags: object, kills=(), full: int = 0) -> None:
    arguments = [steps, stage, *(number for kill in kills for number in kill)]
    env = {"FULL_SIZE": str(full)}
    job = run_launcher(*flags, sys.executable, SCRIPT, folder, *arguments, env=env)
    assert job.returncode == 0, job.stderr


def check(folder: Path, begin=None) -> int:
    """Compare with one process that trains as many steps; return how many."""
    found = torch.load(folder / "weights.pt")
    alone, optimizer, step = begin or fresh()
    while step < found["step"]:
        optimizer.zero_grad()
        loss(alone, step).backward()
        optimizer.step()
        step += 1
    for name, value in alone.state_dict().items():
        torch.testing.assert_close(found["weights"][name], value, **CLOSE)
    return step


def fresh():
    alone = model()
    trained = [one for one in alone.parameters() if one.requires_grad]
    return alone, torch.optim.AdamW(trained, lr=0.01), 0


@pytest.mark.parametrize("stage", [1, 3])
def test_a_job_goes_on_with_what_the_buddy_has(stage: int, tmp_path: Path) -> None:
    """With fewer ranks, then with a replacement."""
    run(tmp_path, 6, stage, "-np", 3, "--min-np", 2, kills=[(2, 0), (4, 1)], full=3)
    assert check(tmp_path) >= 6


def test_frozen_parameters_of_a_checkpoint_outlive_a_rank(tmp_path: Path) -> None:
    """The model created for the remaining ranks has different values."""
    alone, optimizer, step = fresh()
    with torch.no_grad():
        alone[1].bias.fill_(0.5)
    place = tmp_path / "checkpoint"
    par.save(place, alone, optimizer, extra={"elastic": {"step": step}})
    run(tmp_path, 4, 2, "-np", 3, "--min-np", 2, "--resume", place, kills=[(2, 0)])
    assert check(tmp_path, (alone, optimizer, step)) == 4


@pytest.mark.timeout(360)  # four jobs
def test_checkpoints_of_elastic_jobs_are_those_of_save(tmp_path: Path) -> None:
    """One process loads a job's checkpoint, and a job loads one that a single process saved."""
    place = tmp_path / "checkpoints"
    flags = ("--checkpoint-dir", place, "--checkpoint-every", 2)
    run(tmp_path, 5, 3, "-np", 3, "--min-np", 2, *flags, kills=[(3, 2)])
    alone, optimizer, _ = fresh()
    extra = par.load(place, alone, optimizer)
    assert extra is not None
    assert extra["elastic"]["step"] == check(tmp_path) == 5
    for step in (5, 6):
        optimizer.zero_grad()
        loss(alone, step).backward()
        optimizer.step()
    elsewhere = tmp_path / "elsewhere"
    par.save(elsewhere, alone, optimizer, extra={"elastic": {"step": 7}})
    for flag in (("--min-np", 2), ()):  # elastic or not
        run(tmp_path, 9, 2, "-np", 2, *flag, *flags, "--resume", elsewhere)
        assert check(tmp_path) == 9
    run(tmp_path, 11, 1, "-np", 2, *flags, "--resume", place)  # its own latest checkpoint
    assert check(tmp_path) == 11
