"""Where a benchmark keeps files, and how it leaves nothing behind when it is told to end."""

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
    signal.signal(number, signal.SIG_IGN)  # what is closed now is closed once
    raise SystemExit(128 + number)


@contextlib.contextmanager
def temporary_folder(in_memory: bool = False) -> Iterator[Path]:
    """Make a folder for a `with` block, in the main thread; it goes with the block.

    SIGTERM ends the block as an exception would, so that jobs which were started in it end too. Of
    several such blocks the outermost one is the last to go.

    Args:
        in_memory: where the system has a file system in memory, the folder is there.
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
