"""Batches: sends and receives that are under way at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from horoscale._core import HorovodInternalError
from horoscale.common.process_sets import ProcessSet, global_process_set


class P2POp(NamedTuple):
    """One send or receive of a batch().

    Args:
        op: the function: send, recv or recv_any (or what starts the same: send_async, …).
        tensor: what is sent, or received into.
        peer: the global rank that it is sent to, or received from; recv_any takes none.
        tag: tells messages between the same two ranks apart.
        process_set: both ranks belong to it.
    """

    op: Callable[..., Any]
    tensor: Any
    peer: int | None = None
    tag: int = 0
    process_set: ProcessSet = global_process_set


class Waitable(Protocol):
    """A handle of any binding."""

    def wait(self) -> Any:
        """Wait for the operation and return its result."""


class Kind(NamedTuple):
    """The functions of a binding that do the same, and what they do."""

    functions: Sequence[Callable[..., Any]]
    # Called with tensor, peer (if it takes one), tag and set; raises what is wrong with them, and
    # returns what starts the operation.
    prepare: Callable[..., Any]
    takes_peer: bool = True
    is_send: bool = False


class _NotStarted:
    """What stands for an operation that failed when it was started."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def wait(self) -> Any:
        raise self._error


def run_batch(operations: Sequence[P2POp], kinds: Sequence[Kind]) -> list[Any]:
    """Start all operations, wait for them, and return their results.

    All are prepared before the first one is started: where one is wrong, nothing is under way. The
    sends are started first: when a rank asks for what the other one sends, it has offered its own,
    so that NCCL is given messages that cross together.
    """
    chosen = [_kind_of(operation, kinds) for operation in operations]
    starts = [prepare(operation, kinds) for operation in operations]
    handles: dict[int, Waitable] = {}
    for i in sorted(range(len(starts)), key=lambda i: not chosen[i].is_send):
        handles[i] = _started(starts[i])
    return wait_for_all([handles[i] for i in range(len(starts))])


def prepare(operation: P2POp, kinds: Sequence[Kind]) -> Any:
    """Return what the kind of an operation makes of it.

    Raises TypeError or ValueError where it is of none, or its peer is missing, or one too many.
    """
    kind = _kind_of(operation, kinds)
    rest = operation.tag, operation.process_set
    if not kind.takes_peer:
        if operation.peer is not None:
            raise ValueError(
                f"peer={operation.peer} has no meaning for recv_any, which receives from any rank"
            )
        return kind.prepare(operation.tensor, *rest)
    if operation.peer is None:
        raise ValueError("a send or recv of a batch needs a peer")
    return kind.prepare(operation.tensor, operation.peer, *rest)


def _kind_of(operation: P2POp, kinds: Sequence[Kind]) -> Kind:
    if not isinstance(operation, P2POp):
        raise TypeError(f"batch() takes a list of P2POp, not {operation!r}")
    for kind in kinds:
        if operation.op in kind.functions:
            return kind
    raise ValueError(f"op={operation.op!r} is none of send, recv and recv_any")


def _started(start: Callable[[], Waitable]) -> Waitable:
    """Start an operation; where its set has failed, the others of the batch go on all the same."""
    try:
        return start()
    except HorovodInternalError as error:
        return _NotStarted(error)


def wait_for_all(handles: Sequence[Waitable]) -> list[Any]:
    """Wait for all of them, also if some fail; return their results or raise the first failure."""
    results: list[Any] = []
    failure: Exception | None = None
    for handle in handles:
        try:
            results.append(handle.wait())
        except Exception as error:
            failure = failure or error
    if failure is not None:
        raise failure
    return results
