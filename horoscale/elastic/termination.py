"""Termination: the work between SIGTERM and the end of this process.

The main thread may be in a backward pass or waiting for lost ranks, and then runs no Python signal
handlers. A thread that the signal wakes does the work instead.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import traceback
from collections.abc import Callable, Iterator

_STATUS = 128 + signal.SIGTERM  # as a shell reports it


@contextlib.contextmanager
def before_sigterm(last: Callable[[], None] | None) -> Iterator[None]:
    """Within the block, make SIGTERM call `last` in a thread and then end this process.

    Has no effect if `last` is None, if the program has its own handler, or outside the main thread.
    """
    if (
        last is None
        or threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    ):
        yield
        return
    woken, wakes = socket.socketpair()
    wakes.setblocking(False)
    thread = threading.Thread(
        target=_wait, args=(woken, last), name="horoscale-termination", daemon=True
    )
    thread.start()

    def handler(*_: object) -> None:
        with contextlib.suppress(OSError):
            wakes.send(bytes([signal.SIGTERM]))

    _handlers.append(handler)
    signal.signal(signal.SIGTERM, handler)
    former = signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
    if former != -1:  # an event loop uses it: rely on the handler
        signal.set_wakeup_fd(former)
    try:
        yield
    finally:
        present = signal.set_wakeup_fd(-1)
        if present != wakes.fileno():
            signal.set_wakeup_fd(present)
        _restore_default()
        _handlers.clear()
        wakes.close()  # ends the thread
        thread.join()
        woken.close()


_handlers: list[object] = []  # ours, while they are set


def _restore_default() -> None:
    if signal.getsignal(signal.SIGTERM) in _handlers:  # else the program has set another
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


class _Forking(threading.local):
    """The signals that were blocked in the forking thread."""

    mask: set[int | signal.Signals] | None = None


_forking = _Forking()


def _before_fork() -> None:
    # A child that had our handler even briefly would wake this process' thread.
    if _handlers:
        _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _after_fork_in_parent() -> None:
    if _forking.mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)
        _forking.mask = None


def _after_fork_in_child() -> None:
    """Restore the default, so that SIGTERM still ends children such as data loaders."""
    if _handlers:
        signal.set_wakeup_fd(-1)
        _restore_default()
        _handlers.clear()
    _after_fork_in_parent()


os.register_at_fork(
    before=_before_fork,
    after_in_parent=_after_fork_in_parent,
    after_in_child=_after_fork_in_child,
)


def _wait(woken: socket.socket, last: Callable[[], None]) -> None:
    while said := woken.recv(4096):  # the numbers of signals with a handler
        if signal.SIGTERM in said:
            try:
                last()
            except Exception:
                traceback.print_exc()
            os._exit(_STATUS)
