"""ENCRYPT=1: all ranks must agree, and errors name what is missing."""

from __future__ import annotations

import re
from pathlib import Path

from launcher_process import run_launcher
from support.rank_processes import RankProcesses

PATIENCE_S = 60
PROGRAM = """
import horoscale.numpy as hvd

hvd.init()
print(sum(hvd.allgather_object(hvd.rank())), flush=True)
"""
ENCRYPTED = {"HOROSCALE_ENCRYPT": "1", "HOROSCALE_START_TIMEOUT": "3"}


def write(folder: Path) -> Path:
    program = folder / "program.py"
    program.write_text(PROGRAM)
    return program


def test_all_ranks_have_to_agree(tmp_path: Path) -> None:
    with RankProcesses(
        2,
        write(tmp_path),
        folder=tmp_path,
        variables=ENCRYPTED,
        variables_of={1: {"HOROSCALE_ENCRYPT": "0"}},
    ) as job:
        assert all(process.wait(PATIENCE_S) != 0 for process in job.processes)
        assert "HOROSCALE_ENCRYPT=0, the peer does not" in job.errors(1)
        assert re.search(r"rank\(?s?\)? 1\b", job.errors(0)), job.errors(0)


def test_without_openssl_the_error_says_what_was_tried(tmp_path: Path) -> None:
    missing = str(tmp_path / "libssl.so.3")
    variables = {**ENCRYPTED, "HOROSCALE_LIBSSL": missing}
    with RankProcesses(1, write(tmp_path), folder=tmp_path, variables=variables,
                       variables_of={0: {"HOROSCALE_SIZE": "2"}}) as job:  # fmt: skip
        assert job.processes[0].wait(PATIENCE_S) != 0
        errors = job.errors(0)
    assert "HOROSCALE_ENCRYPT=1 requires OpenSSL" in errors, errors
    assert missing in errors
    assert "HOROSCALE_LIBSSL" in errors


def test_the_launchers_rendezvous_encrypts_too(tmp_path: Path) -> None:
    ended = run_launcher("-np", "2", "--encrypt", "python", write(tmp_path))
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count(b"1\n") == 2, ended.stdout
    missing = {"HOROSCALE_LIBSSL": str(tmp_path / "libssl.so.3")}
    ended = run_launcher("-np", "2", "--encrypt", "python", write(tmp_path), env=missing)
    assert ended.returncode != 0
    assert b"HOROSCALE_ENCRYPT=1 requires OpenSSL" in ended.stderr, ended.stderr
