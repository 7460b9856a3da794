"""Files that only their owner may read, in folders that other users may be able to write to."""

from __future__ import annotations

import errno
import os
import stat
from io import FileIO
from pathlib import Path


def open_private(path: Path, folder: int | None = None) -> FileIO:
    """Open an empty regular file for writing, with mode 0600.

    An existing file is truncated if it belongs to this user and has one hard link. `folder` is the
    descriptor of the path's folder, for a caller that has checked it. Raises OSError, also for a
    link, pipe or device.
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
    """Truncate a file and remove other users' permissions."""
    state = os.fstat(descriptor)
    if not stat.S_ISREG(state.st_mode) or state.st_uid != os.geteuid() or state.st_nlink != 1:
        why = "not a regular file of this user, or it has several hard links"
        raise OSError(errno.EPERM, why, str(path))
    os.fchmod(descriptor, 0o600)
    os.ftruncate(descriptor, 0)
    os.set_blocking(descriptor, True)
