"""Folders for the files of a benchmark, which are removed when the benchmark is terminated."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import NoReturn

IN_MEMORY = Path("/dev/shm")


def _end(number: int, _: FrameType | None) -> NoReturn:
    signal.signal(number, signal.SIG_IGN)  # everything is closed only once
    raise SystemExit(128 + number)


@contextlib.contextmanager
def temporary_folder(in_memory: bool = False) -> Iterator[Path]:
    """Create a folder for a `with` block in the main thread; it is removed after the block.

    SIGTERM ends the block as an exception would, so that jobs started in it end, too. Of several
    such blocks the outermost one ends last.

    Args:
        in_memory: create the folder in a file system in memory, if the system has one.
    """
    before = signal.signal(signal.SIGTERM, _end)
    where = IN_MEMORY if in_memory and IN_MEMORY.is_dir() else None
    folder = Path(tempfile.mkdtemp(prefix=f"horoscale-bench-{os.getpid()}-", dir=where))
    try:
        yield folder
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        shutil.rmtree(folder, ignore_errors=True)
        signal.signal(signal.SIGTERM, before)
