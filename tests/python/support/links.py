"""What another user may have placed at the path of an output file."""

from __future__ import annotations

import os
from pathlib import Path


def make_link(path: Path, kind: str, target: Path) -> None:
    """A "symbolic" or a "hard" link to the target, or a "pipe"."""
    if kind == "symbolic":
        path.symlink_to(target)
    elif kind == "hard":
        path.hardlink_to(target)
    else:
        os.mkfifo(path)
