"""Files that only their owner may read, in folders where others may be able to write."""

from __future__ import annotations

import errno
import os
import stat
from io import FileIO
from pathlib import Path


def open_private(path: Path, folder: int | None = None) -> FileIO:
    """Opens an empty file for writing, with mode 0600, which is no link, pipe or device.

    A file of an earlier time is emptied if it is this user's and has one name. `folder` is the
    descriptor of the path's folder, for a caller that has made sure of it. Raises OSError.
    """
    name = path if folder is None else path.name
    flags = os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(name, flags | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=folder)
    except FileExistsError:
        descriptor = os.open(name, flags | os.O_NONBLOCK, dir_fd=folder)
        try:
            _take_over(descriptor, path)
        except OSError:
            os.close(descriptor)
            raise
    return open(descriptor, "wb", buffering=0)


def _take_over(descriptor: int, path: Path) -> None:
    """Empties a file and keeps others from reading it."""
    state = os.fstat(descriptor)
    if not stat.S_ISREG(state.st_mode) or state.st_uid != os.geteuid() or state.st_nlink != 1:
        why = "no file of this user's, or one with several names"
        raise OSError(errno.EPERM, why, str(path))
    os.fchmod(descriptor, 0o600)
    os.ftruncate(descriptor, 0)
    os.set_blocking(descriptor, True)
