"""Tracks processes on Linux: parent-death signals, subreapers, the tree in /proc."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Iterable

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent(parent_pid: int, signum: int = signal.SIGKILL) -> None:
    """Make the kernel send `signum` to this process when its parent, `parent_pid`, dies.

    Survives exec, so it may be called between fork and exec.
    """
    _prctl(_PR_SET_PDEATHSIG, signum)
    if os.getppid() != parent_pid:  # it died before the call
        os.kill(os.getpid(), signum)


def become_subreaper() -> None:
    """Make this process the parent of every descendant whose own parent has died."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def descendants(roots: Iterable[int]) -> list[int]:
    """Return the processes that descend from `roots`, without the roots and without zombies."""
    children = _children_by_parent()
    found: list[int] = []
    pending = list(roots)
    while pending:
        for pid, state in children.get(pending.pop(), ()):
            pending.append(pid)
            if state != b"Z":
                found.append(pid)
    return found


def children_of(parent: int) -> list[int]:
    """Return the children of a process, without zombies."""
    return [pid for pid, state in _children_by_parent().get(parent, ()) if state != b"Z"]


def send_signal(pid: int, signum: int, *, group: bool = False) -> None:
    """Send a signal to a process, or to the group that it leads. Ignores ended processes."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        (os.killpg if group else os.kill)(pid, signum)


def catches(pid: int, signum: int) -> bool:
    """Return whether a process has a handler for the signal; false if it has ended."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
            caught = next(line.split()[1] for line in file if line.startswith("SigCgt:"))
    except (OSError, StopIteration):
        return False
    return bool(int(caught, 16) >> (signum - 1) & 1)


def kill_descendants(seconds: float) -> list[int]:
    """Kill and reap all descendants of this process, which must be a subreaper.

    Blocks for at most `seconds`. Returns those that did not end (stuck inside the kernel).
    """
    deadline = time.monotonic() + seconds
    while True:
        remaining = descendants([os.getpid()])
        for pid in remaining:
            send_signal(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0] != 0:
                pass
        except ChildProcessError:
            return []
        if time.monotonic() > deadline:
            return remaining
        time.sleep(0.01)


def signal_name(signum: int) -> str:
    """Return SIGKILL for 9, or "signal 35" for one without a name."""
    try:
        return signal.Signals(signum).name
    except ValueError:
        return f"signal {signum}"


def status_text(status: int) -> str:
    """Describe an exit status of subprocess or of a shell: "ended by SIGKILL"."""
    if status < 0:
        return f"ended by {signal_name(-status)}"
    if 128 < status < 128 + signal.NSIG:  # excludes 255, which ssh returns
        return f"ended by {signal_name(status - 128)}"
    return f"exit status {status}"


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"prctl({option}): {os.strerror(error)}")


def _children_by_parent() -> dict[int, list[tuple[int, bytes]]]:
    children: dict[int, list[tuple[int, bytes]]] = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat", "rb") as file:
                stat = file.read()
        except OSError:  # it has ended
            continue
        # The command's name, in parentheses, may contain anything.
        state, parent = stat[stat.rindex(b")") + 2 :].split(None, 2)[:2]
        children.setdefault(int(parent), []).append((int(entry), state))
    return children
