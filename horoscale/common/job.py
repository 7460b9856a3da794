"""This process' membership in a job: its single Runtime, from init to shutdown."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from types import TracebackType
from typing import cast

from horoscale._core import HorovodInternalError, Runtime
from horoscale.common import batch_meeting, foreign
from horoscale.common.elastic_link import ElasticLink, elastic_link
from horoscale.common.standby import Standby
from horoscale.common.views import View

_lock = threading.RLock()
_runtime: Runtime | Standby | None = None
_forked = False
_before_end: list[Callable[[], None]] = []
_at_end: list[Callable[[], None]] = []
_at_join: list[Callable[[], None]] = []
_at_start: list[Callable[[Runtime], None]] = []


def current_runtime() -> Runtime:
    """Return the runtime that hvd.init() started. Raises ValueError if there is none."""
    runtime = _runtime
    if runtime is None:
        raise ValueError(_no_runtime())
    return cast("Runtime", runtime)  # a standby raises for unsupported calls


def is_standby() -> bool:
    """Return whether this process has joined an elastic job that has no place for it yet."""
    return isinstance(_runtime, Standby)


def is_initialized() -> bool:
    """Return whether hvd.init() was called, and hvd.shutdown() was not called since."""
    return _runtime is not None


def before_end(finish: Callable[[], None]) -> None:
    """Call `finish` before this process leaves a job, except because of a failure.

    shutdown() raises the exception of `finish`.
    """
    _before_end.append(finish)


def at_start(use: Callable[[Runtime], None]) -> None:
    """Call `use` with the runtime of the current job and of each later one."""
    with _lock:
        _at_start.append(use)
        if isinstance(_runtime, Runtime):
            use(_runtime)


def at_end(forget: Callable[[], None]) -> None:
    """Call `forget` at the end of each job of this process."""
    _at_end.append(forget)


def at_join(forget: Callable[[], None]) -> None:
    """Call `forget` whenever all ranks have joined."""
    _at_join.append(forget)


def joined() -> None:
    """Call the functions that at_join() registered."""
    for forget in _at_join:
        forget()


def lock() -> AbstractContextManager[bool]:
    """Return the lock that init and shutdown hold."""
    return _lock


def start(
    ranks: Sequence[int] = (), mpi_comm: int = 0, view: View | None = None
) -> Runtime | Standby:
    """Join the job of all ranks, or of `ranks` only, which are renumbered in that order.

    `mpi_comm` is the handle of an MPI communicator whose ranks form the job. In an elastic job,
    `view` is the view to join. HorovodInternalError means that the view can no longer become
    complete, and the caller requests the next one. None: this process' view, or the next one that
    can be started. A process without a view gets a Standby.
    """
    global _runtime
    if _forked:
        raise ValueError(_no_runtime())
    link = elastic_link()
    if link is not None:
        if ranks or mpi_comm:
            raise ValueError(
                "hvd.init(comm) cannot be used in an elastic job, because its ranks change: "
                "call hvd.init() without comm"
            )
        _runtime = _join(view) if view is not None else _join_first(link)
        return _begun(_runtime)
    known = None if mpi_comm else foreign.identity(ranks)
    if known is None:
        _runtime = Runtime.init(ranks=ranks, mpi_comm=mpi_comm)
    else:
        _runtime = Runtime.init(
            rank=known.rank,
            size=known.size,
            rendezvous=known.rendezvous,
            serve_rendezvous=False if known.rendezvous is not None and known.served else None,
            secret=known.secret,
            ranks=ranks,
        )
    batch_meeting.remove_file()
    return _begun(_runtime)


def _begun(runtime: Runtime | Standby) -> Runtime | Standby:
    if isinstance(runtime, Runtime):
        for use in _at_start:
            use(runtime)
    _watch_exit()
    return runtime


def _join_first(link: ElasticLink) -> Runtime | Standby:
    """Join a view of an elastic job, in a process that holds no state yet."""
    view = link.view()
    provisional = link.provisional()
    if view is None:
        if provisional is None:
            raise HorovodInternalError("the driver of this elastic job sent neither view nor rank")
        return Standby(provisional)
    while True:
        try:
            return _join(view)
        except HorovodInternalError as error:
            view = link.next_view(commits=(), cause=str(error))


def _join(view: View) -> Runtime:
    for package in ("HOROSCALE", "HOROVOD"):
        for name in ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size"):
            os.environ[f"{package}_{name.upper()}"] = str(getattr(view, name))
    return Runtime.init(rank=view.rank, size=view.size, view=view.number)


def stop(failure: str | None = None) -> None:
    """Leave the job. With `failure`, tell the peers that this rank failed and why."""
    global _runtime
    with _lock, ExitStack() as leaving:
        leaving.callback(_leave, failure)
        if _runtime is not None and failure is None:
            for finish in _before_end:
                finish()


def _leave(failure: str | None) -> None:
    global _runtime
    with _lock:
        runtime, _runtime = _runtime, None
        if runtime is None:
            return
        for forget in _at_end:
            forget()
        if failure is None:
            runtime.shutdown()
        else:
            runtime.shutdown_failed(failure)


def _no_runtime() -> str:
    if _forked:
        return (
            "this process was forked from a rank after hvd.init() and is not part of its job: "
            "call horoscale in the parent, or start the process with 'spawn'"
        )
    return "horoscale is not initialized: call hvd.init() first"


def _watch_exit() -> None:
    """Leave the job when the interpreter exits, and report the exception that ended it, if any."""
    if not _ExitWatch.installed:
        _ExitWatch.installed = True
        _ExitWatch.previous_hook = sys.excepthook
        sys.excepthook = _ExitWatch.excepthook
        atexit.register(stop)


class _ExitWatch:
    installed = False
    previous_hook: Callable[[type[BaseException], BaseException, TracebackType | None], object] = (
        sys.__excepthook__
    )

    @staticmethod
    def excepthook(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        # An interactive session continues after an error.
        if not hasattr(sys, "ps1") and not sys.flags.interactive:
            stop(failure=f"{kind.__name__}: {error}"[:300])
        _ExitWatch.previous_hook(kind, error, trace)


def _after_fork_in_child() -> None:
    global _runtime, _forked, _lock
    _lock = threading.RLock()  # after a fork, a lost thread may hold the old lock
    if _runtime is not None:
        _forked = True
        _runtime = None
        for forget in _at_end:
            forget()


os.register_at_fork(after_in_child=_after_fork_in_child)
