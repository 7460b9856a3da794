"""Batches: sends and receives that run concurrently."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from horoscale._core import HorovodInternalError
from horoscale.common.process_sets import ProcessSet, global_process_set


class P2POp(NamedTuple):
    """One send or receive of a batch().

    Args:
        op: the function send, recv or recv_any, or its asynchronous form (send_async, …).
        tensor: the tensor to send or to receive into.
        peer: the global rank to send to or to receive from. Omit it for recv_any.
        tag: distinguishes messages between the same two ranks.
        process_set: the set to which both ranks belong.
    """

    op: Callable[..., Any]
    tensor: Any
    peer: int | None = None
    tag: int = 0
    process_set: ProcessSet = global_process_set


class Waitable(Protocol):
    """A handle from any binding."""

    def wait(self) -> Any:
        """Wait for the operation and return its result."""


class Kind(NamedTuple):
    """A binding's equivalent functions for one kind of message, and how to prepare it."""

    functions: Sequence[Callable[..., Any]]
    # Takes tensor, peer (if needed), tag and set. Raises if one of them is invalid. Returns a
    # function that starts the operation.
    prepare: Callable[..., Any]
    takes_peer: bool = True
    is_send: bool = False


class _NotStarted:
    """A placeholder for an operation that could not be started."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def wait(self) -> Any:
        raise self._error


def run_batch(operations: Sequence[P2POp], kinds: Sequence[Kind]) -> list[Any]:
    """Start all operations, wait for them, and return their results.

    All operations are prepared before the first one starts, so that an invalid one leaves nothing
    in progress. Sends start first, so that a rank has offered its own messages before it requests
    its peer's. NCCL then receives messages in opposite directions together.
    """
    chosen = [_kind_of(operation, kinds) for operation in operations]
    starts = [prepare(operation, kinds) for operation in operations]
    handles: dict[int, Waitable] = {}
    for i in sorted(range(len(starts)), key=lambda i: not chosen[i].is_send):
        handles[i] = _started(starts[i])
    return wait_for_all([handles[i] for i in range(len(starts))])


def prepare(operation: P2POp, kinds: Sequence[Kind]) -> Any:
    """Return the prepared form of an operation.

    Raises TypeError or ValueError if its kind is unknown, or if its peer is missing or superfluous.
    """
    kind = _kind_of(operation, kinds)
    rest = operation.tag, operation.process_set
    if not kind.takes_peer:
        if operation.peer is not None:
            raise ValueError(
                f"recv_any receives from any rank and takes no peer, but has peer={operation.peer}"
            )
        return kind.prepare(operation.tensor, *rest)
    if operation.peer is None:
        raise ValueError("a send or recv in a batch needs a peer")
    return kind.prepare(operation.tensor, operation.peer, *rest)


def _kind_of(operation: P2POp, kinds: Sequence[Kind]) -> Kind:
    if not isinstance(operation, P2POp):
        raise TypeError(f"batch() takes a list of P2POp, not {operation!r}")
    for kind in kinds:
        if operation.op in kind.functions:
            return kind
    raise ValueError(f"op={operation.op!r} is none of send, recv and recv_any")


def _started(start: Callable[[], Waitable]) -> Waitable:
    """Start an operation. If its set has failed, the rest of the batch still runs."""
    try:
        return start()
    except HorovodInternalError as error:
        return _NotStarted(error)


def wait_for_all(handles: Sequence[Waitable]) -> list[Any]:
    """Wait for all handles, even if some fail. Return the results or raise the first failure."""
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
