"""A memory limit for a process and its children: a cgroup."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_ROOT = Path("/sys/fs/cgroup")


@contextmanager
def memory_limit(nbytes: int) -> Iterator[list[str]]:
    """A command prefix that limits memory, including that of files.

    The test is skipped if this user may not create a cgroup.
    """
    is_v2 = (_ROOT / "cgroup.controllers").exists()
    group = (_ROOT if is_v2 else _ROOT / "memory") / f"horoscale-test-{secrets.token_hex(4)}"
    try:
        group.mkdir()
        limit = "memory.max" if is_v2 else "memory.limit_in_bytes"
        (group / limit).write_text(str(nbytes))
        if is_v2:
            (group / "memory.swap.max").write_text("0")
    except OSError as error:
        if group.exists():
            group.rmdir()
        pytest.skip(f"no cgroup that limits memory: {error}")
    try:
        yield ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh"]
    finally:
        group.rmdir()
