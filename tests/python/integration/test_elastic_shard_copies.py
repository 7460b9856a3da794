"""Ranks die that hold the only original of a shard: it is restored from their buddies."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from launcher_process import PATIENCE_S, Launcher, run_launcher

from horoscale.elastic.checkpoints import read_checkpoint, shards_of

SCRIPT = Path(__file__).with_name("elastic_shards.py")


def run(
    folder: Path, steps: int, kills: list[tuple[int, int]], *flags: object, full: int = 0
) -> subprocess.CompletedProcess[bytes]:
    arguments = [number for kill in kills for number in kill]
    env = {"FULL_SIZE": str(full)}
    return run_launcher(*flags, sys.executable, SCRIPT, folder, steps, *arguments, env=env)


def owners(folder: Path) -> list[list[int]]:
    ends = [json.loads(path.read_text()) for path in sorted(folder.glob("end-*"))]
    assert len({step for step, _ in ends}) == 1
    return [of_rank for _, of_rank in ends]


def test_replacements_get_the_shards(tmp_path: Path) -> None:
    job = run(tmp_path, 7, [(2, 0), (5, 2)], "-np", 3, "--min-np", 2, full=3)
    assert job.returncode == 0, job.stderr
    assert sorted(owner for one in owners(tmp_path) for owner in one) == [0, 1, 2]
    assert len(owners(tmp_path)) == 3


def test_without_a_replacement_the_buddy_has_them(tmp_path: Path) -> None:
    flags = ("-np", 4, "--min-np", 1, "--max-np", 4, "-H", "localhost:2,127.0.0.1:2")
    job = run(tmp_path, 6, [(4, 3)], *flags, "--reset-limit", 1, full=0)
    assert job.returncode == 0, job.stderr
    assert sorted(owner for one in owners(tmp_path) for owner in one) == [0, 1, 2, 3]


def test_a_rank_and_its_buddy_die(tmp_path: Path) -> None:
    job = run(tmp_path, 6, [(3, 1), (3, 2)], "-np", 3, "--min-np", 1, full=0)
    assert job.returncode != 0
    assert b"the shards of former ranks [1] are lost" in job.stderr, job.stderr


def test_a_job_resumes_with_its_shards_on_other_ranks(tmp_path: Path) -> None:
    place = tmp_path / "checkpoints"
    flags: tuple[object, ...] = ("--checkpoint-dir", place, "--checkpoint-every", 2)
    job = run(tmp_path, 7, [(3, 1)], "-np", 3, "--min-np", 2, *flags, full=3)
    assert job.returncode == 0, job.stderr
    kept = sorted(one.name for one in place.glob("commit-*"))
    folder, group = shards_of(place, int(kept[-1].removeprefix("commit-"))) or (None, None)
    assert folder == place
    assert group.missing(place) == []
    assert len(list(place.glob("shards-*"))) <= len(kept) == 3  # older ones are removed
    flags += ("--resume", place)
    for ranks, steps in ((2, 20), (4, 22)):  # another number of ranks, elastic or not
        elastic = ("--min-np", 2) if ranks == 2 else ()
        for end in tmp_path.glob("end-*"):
            end.unlink()
        job = run(tmp_path, steps, [], "-np", ranks, *elastic, *flags)
        assert job.returncode == 0, job.stderr
        of_ranks = owners(tmp_path)
        assert len(of_ranks) == ranks
        assert sorted(owner for one in of_ranks for owner in one) == [0, 1, 2]


def test_a_rank_dies_while_it_loads_what_the_job_resumes_with(tmp_path: Path) -> None:
    place = tmp_path / "checkpoints"
    flags: tuple[object, ...] = ("--checkpoint-dir", place, "--checkpoint-every", 1)
    job = run(tmp_path, 3, [], "-np", 2, *flags)
    assert job.returncode == 0, job.stderr
    arguments = ("-np", 2, "--min-np", 2, *flags, "--resume", place, sys.executable, SCRIPT)
    env = {"FULL_SIZE": "2", "DIES_LOADING": "1"}
    job = run_launcher(*arguments, tmp_path, 6, env=env)
    assert job.returncode == 0, job.stderr
    assert (tmp_path / "died-loading").exists()
    assert sorted(owner for one in owners(tmp_path) for owner in one) == [0, 1]


def test_a_rank_dies_while_the_first_copies_are_made(tmp_path: Path) -> None:
    """Nothing is lost: all start again with their own shards."""
    arguments = ("-np", 4, "--min-np", 4, sys.executable, SCRIPT, tmp_path, 3)
    job = run_launcher(*arguments, env={"FULL_SIZE": "4", "DIES_KEEPING": "1"})
    assert job.returncode == 0, job.stderr
    assert (tmp_path / "died-keeping").exists()
    assert sorted(owner for one in owners(tmp_path) for owner in one) == [0, 1, 2, 3]


def test_a_checkpoint_that_lacks_shards_is_passed_over(tmp_path: Path) -> None:
    place = tmp_path / "checkpoints"
    flags: tuple[object, ...] = ("--checkpoint-dir", place, "--checkpoint-every", 1)
    job = run(tmp_path, 4, [], "-np", 2, *flags)
    assert job.returncode == 0, job.stderr
    *_, before, newest = sorted(place.glob("commit-*"))
    [lost] = place.glob(f"shards-{newest.name.removeprefix('commit-')}/*/1")
    shutil.rmtree(lost)
    whole = sorted(one for one in place.glob("shards-*/*/1"))[-1].parents[1]
    number, snapshot = read_checkpoint(place)
    assert number == int(whole.name.removeprefix("shards-")) == int(before.name[-12:])
    assert 0 < snapshot.value("step") < 4
    (tmp_path / "end-1").unlink()
    job = run(tmp_path, 6, [], "-np", 1, "--resume", place)
    assert job.returncode == 0, job.stderr
    assert owners(tmp_path) == [[0, 1]]


def test_the_last_commit_goes_to_disk_with_the_shards(tmp_path: Path) -> None:
    place = tmp_path / "checkpoints"
    flags = ("-np", 2, "--min-np", 2, "--checkpoint-dir", place, "--checkpoint-every", "1h")
    program = (sys.executable, SCRIPT, tmp_path, 1000)
    with Launcher(*flags, *program, env={"PAUSE_AT": "5"}) as job:
        job.read_lines(2)
        job.process.send_signal(signal.SIGTERM)
        job.process.wait(PATIENCE_S)
        job.assert_nothing_left()
    assert read_checkpoint(place)[1].value("step") == 5
    again = run(tmp_path, 8, [], "-np", 1, "--resume", place)
    assert again.returncode == 0, again.stderr
    assert owners(tmp_path) == [[0, 1]]
