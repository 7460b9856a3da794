"""The ranks' output arrives whole, labeled and complete."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from launcher_process import Launcher, run_launcher, sorted_lines
from support.links import make_link


def python(program: str) -> list[str]:
    return [sys.executable, "-c", program]


def test_lines_carry_rank_and_stream() -> None:
    job = run_launcher("-np", 2, "sh", "-c", "echo out; echo err >&2")
    assert sorted_lines(job.stdout) == [b"[0]<stdout>:out", b"[1]<stdout>:out"]
    assert sorted_lines(job.stderr) == [b"[0]<stderr>:err", b"[1]<stderr>:err"]


def test_a_time_can_stand_before_the_prefix() -> None:
    job = run_launcher("-np", 1, "--prefix-output-with-timestamp", "echo", "hello")
    assert re.fullmatch(
        rb"\w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d \d{4}\[0\]<stdout>:hello\n", job.stdout
    )


def test_lines_of_a_megabyte_are_not_mixed() -> None:
    program = (
        "import os, sys\n"
        "letter = 'abcd'[int(os.environ['HOROSCALE_RANK'])]\n"
        "for stream in (sys.stdout, sys.stderr) * 3: print(letter * 1_000_000, file=stream)\n"
    )
    job = run_launcher("-np", 4, "sh", "-c", 'exec "$@" 2>&1', "sh", *python(program))
    assert job.returncode == 0, job.stderr
    lines = job.stdout.splitlines()
    expected = [f"[{i}]<stdout>:".encode() + b"abcd"[i : i + 1] * 1_000_000 for i in range(4)]
    assert sorted(lines) == sorted(expected * 6)


def test_both_streams_into_one_pipe_keep_lines_whole() -> None:
    program = (
        "import sys\n"
        "for _ in range(50):\n"
        "    print('o' * 30_000); print('e' * 30_000, file=sys.stderr)\n"
    )
    job = run_launcher(
        "-np", 1, "sh", "-c", 'exec "$@" 2>&1', "sh",
        sys.executable, "-m", "horoscale.runner", "-np", 2, *python(program),
    )  # fmt: skip
    inner = [line.split(b":", 1)[1] for line in job.stdout.splitlines()]
    whole = [
        f"[{rank}]<{stream}>:".encode() + letter * 30_000
        for rank in range(2)
        for stream, letter in (("stdout", b"o"), ("stderr", b"e"))
    ]
    assert sorted(inner) == sorted(whole * 50)


def test_any_byte_arrives_as_it_is(tmp_path: Path) -> None:
    program = "import sys; sys.stdout.buffer.write(bytes(range(256)) * 40)"
    job = run_launcher("-np", 1, "--output-filename", tmp_path, *python(program))
    assert (tmp_path / "rank.0" / "stdout").read_bytes() == bytes(range(256)) * 40
    prefix = b"[0]<stdout>:"
    # The last line has no newline.
    assert job.stdout.replace(prefix, b"") == bytes(range(256)) * 40 + b"\n"
    pieces = re.split(rb"(?<=[\r\n])", job.stdout)
    assert pieces.pop() == b""
    assert all(piece.startswith(prefix) for piece in pieces)


def test_a_last_line_without_an_end_gets_one() -> None:
    job = run_launcher("-np", 2, "printf", "no end")
    assert sorted_lines(job.stdout) == [b"[0]<stdout>:no end", b"[1]<stdout>:no end"]
    assert job.stdout.endswith(b"\n")


def test_a_progress_bar_is_seen_while_it_moves() -> None:
    with Launcher("-np", 1, "sh", "-c", r"printf '\r 10%%\r 20%%\r'; sleep 1000") as job:
        expected = b"[0]<stdout>:\r[0]<stdout>: 10%\r"
        assert job.read_bytes(len(expected)) == expected


def test_output_files_hold_the_bytes_alone(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "logs"
    job = run_launcher(
        "-np", 11, "--output-filename", folder, "sh", "-c",
        "echo out $HOROSCALE_RANK; echo err $HOROSCALE_RANK >&2",
    )  # fmt: skip
    assert job.returncode == 0, job.stderr
    assert sorted(path.name for path in folder.iterdir()) == [f"rank.{i:02d}" for i in range(11)]
    for rank in range(11):
        assert (folder / f"rank.{rank:02d}" / "stdout").read_text() == f"out {rank}\n"
        assert (folder / f"rank.{rank:02d}" / "stderr").read_text() == f"err {rank}\n"
    assert len(job.stdout.splitlines()) == 11


def test_output_files_are_for_their_owner_only(tmp_path: Path) -> None:
    folder = tmp_path / "rank.0"
    folder.mkdir()
    (folder / "stdout").write_text("of an earlier job, and longer\n")
    (folder / "stdout").chmod(0o666)
    job = run_launcher("-np", 1, "--output-filename", tmp_path, "echo", "new")
    assert job.returncode == 0, job.stderr
    assert (folder / "stdout").read_text() == "new\n"
    assert [(folder / name).stat().st_mode & 0o777 for name in ("stdout", "stderr")] == [0o600] * 2


@pytest.mark.parametrize(
    ("place", "kind"),
    [
        ("rank.0", "symbolic"),
        ("rank.0/stdout", "symbolic"),
        ("rank.0/stdout", "hard"),
        ("rank.0/stderr", "pipe"),
    ],
)
def test_output_goes_nowhere_that_somebody_else_has_chosen(
    tmp_path: Path, place: str, kind: str
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    precious = elsewhere / "stdout"
    precious.write_text("untouched")
    logs = tmp_path / "logs"
    (logs / place).parent.mkdir(parents=True)
    make_link(logs / place, kind, elsewhere if place == "rank.0" else precious)
    job = run_launcher("-np", 1, "--output-filename", logs, "echo", "new")
    assert job.returncode == 2
    assert b"can't write the ranks' output" in job.stderr
    assert precious.read_text() == "untouched"


def test_an_output_folder_that_can_not_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    job = run_launcher("-np", 1, "--output-filename", tmp_path / "file", "echo")
    assert job.returncode == 2
    assert b"can't write the ranks' output" in job.stderr
    assert b"Traceback" not in job.stderr


def test_a_full_disk_takes_no_part_in_the_job(tmp_path: Path) -> None:
    """The lines are still printed, and the end reports that the files are incomplete."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "none", disk], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"needs a small disk: {mounted.stderr.decode().strip()}")
    try:
        program = "for i in range(50_000): print(i)"
        job = run_launcher("-np", 2, "--output-filename", disk / "logs", *python(program))
        written = sum(path.stat().st_size for path in disk.rglob("stdout"))
    finally:
        subprocess.run(["umount", disk], check=True)
    for rank in range(2):
        prefix = f"[{rank}]<stdout>:".encode()
        own = [line[len(prefix) :] for line in job.stdout.splitlines() if line.startswith(prefix)]
        assert own == [str(i).encode() for i in range(50_000)]
    assert job.returncode != 0
    assert b"can't write the ranks' output: [Errno 28] No space left on device" in job.stderr
    assert b"Traceback" not in job.stderr
    assert written > 32 << 10


@pytest.mark.parametrize("size", [1, 3])
def test_much_output_arrives_complete(size: int) -> None:
    program = "for i in range(200_000): print(i)"
    job = run_launcher("-np", size, *python(program))
    for rank in range(size):
        prefix = f"[{rank}]<stdout>:".encode()
        own = [line[len(prefix) :] for line in job.stdout.splitlines() if line.startswith(prefix)]
        assert own == [str(i).encode() for i in range(200_000)]


def test_standard_streams_may_be_closed() -> None:
    job = run_launcher(
        "-np", 1, "sh", "-c", '"$@" <&- >&- 2>&-; echo ended with $?', "sh",
        sys.executable, "-m", "horoscale.runner", "-np", 2, "echo", "hello",
    )  # fmt: skip
    assert job.stdout == b"[0]<stdout>:ended with 0\n"


def test_a_reader_that_leaves_ends_the_job() -> None:
    with Launcher("-np", 2, "--grace-seconds", 1, "yes") as job:
        job.read_lines(1)
        assert job.process.stdout is not None
        job.process.stdout.close()
        job.process.stdout = None
        assert job.process.wait(60) == 128 + 13
        job.assert_nothing_left()


def test_a_reader_that_stops_slows_the_ranks_and_can_be_left() -> None:
    with Launcher("-np", 2, "--grace-seconds", 1, "yes") as job:
        job.read_lines(1)
        job.process.terminate()  # with the pipe full and no reader
        assert job.process.wait(60) == 128 + 15
        job.assert_nothing_left()
