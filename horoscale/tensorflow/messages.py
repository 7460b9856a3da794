"""Messages of tensors from one rank to another: send, recv and what belongs to them.

All of them are one op, which starts its messages and is done when the last one is. The ops of a
tf.function run in the order of the program, as eager calls do: what must be under way at once is
one batch(). Gradients are messages of the same tag in a channel of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from horoscale._core import ANY_RANK
from horoscale.common.batches import Kind, P2POp, prepare
from horoscale.common.messages import ANY, Channel, Source, check_peer, check_source, check_tag
from horoscale.common.process_sets import ProcessSet, global_process_set
from horoscale.tensorflow.collectives import (
    Call,
    SetById,
    as_it_was,
    as_tensor,
    gradient_of,
    movable,
    run,
)


class _Message(NamedTuple):
    is_send: bool
    tensor: tf.Tensor  # of a receive: like what comes
    peer: int
    tag: int


def _exchange(
    messages: Sequence[_Message], process_set: ProcessSet, channel: Channel = Channel.TENSORS
) -> tuple[list[tf.Tensor], tf.Tensor]:
    """Start all messages and wait for them; return their results and where they came from."""
    attributes = Call("", process_set).attributes()
    results, sources = run(
        "Messages",
        tensors=[movable(message.tensor) for message in messages],
        sends=[int(message.is_send) for message in messages],
        peers=[message.peer for message in messages],
        tags=[message.tag for message in messages],
        channel=int(channel),
        **attributes,
    )
    typed = [as_it_was(result, one.tensor) for result, one in zip(results, messages, strict=True)]
    for result, message in zip(typed, messages, strict=True):
        if not tf.executing_eagerly():
            result.set_shape([] if message.is_send else message.tensor.shape)
    return typed, sources


def _sent(tensor: Any, dst: int, tag: int, process_set: ProcessSet) -> _Message:
    Call("", process_set).attributes()  # first: what it raises is an error of TensorFlow's too
    peer = check_peer("dst", dst, process_set)
    return _Message(True, as_tensor(tensor), peer, check_tag(tag))


def _received(like: Any, src: int | Source, tag: int, process_set: ProcessSet) -> _Message:
    Call("", process_set).attributes()
    peer = check_source(src, process_set)
    if isinstance(like, tf.TensorSpec):
        if not like.shape.is_fully_defined():
            raise ValueError(f"like={like} leaves the shape open: recv() needs to know it")
        like = tf.zeros(like.shape, like.dtype)
    return _Message(False, as_tensor(like), peer, check_tag(tag))


def _received_from_any(like: Any, tag: int, process_set: ProcessSet) -> _Message:
    return _received(like, ANY, tag, process_set)


def send(
    tensor: Any, dst: int, tag: int = 0, process_set: ProcessSet = global_process_set
) -> tf.Tensor:
    """Send a tensor to one rank, which calls recv(). Differentiable.

    A large message waits for its receive, a small one does not; see docs/messages.md. In a
    tf.function it runs even if nobody uses the result, in the order of the program.

    Args:
        tensor: a tensor, variable or array.
        dst: the global rank that it is for; also the own one.
        tag: messages between the same two ranks are received in order for each tag; from 0.
        process_set: both ranks belong to it.

    Returns:
        A zero of the tensor's dtype. Its gradient is received from `dst`, where that of recv()'s
        result must be computed as well: add it to the loss.

    Raises:
        TypeError, ValueError: before hvd.init(), or an argument is invalid.
        tf.errors.FailedPreconditionError: it is received into another dtype or number of elements;
            on these two ranks only (of a small message on the receiver only).
        tf.errors.UnknownError: a rank of the process set died or left.
        tf.errors.OpError: another failure, such as a concurrent hvd.shutdown().
    """
    [result], _ = _exchange([_sent(tensor, dst, tag, process_set)], process_set)
    return result


def recv(
    like: Any, src: int, tag: int = 0, process_set: ProcessSet = global_process_set
) -> tf.Tensor:
    """Receive a tensor that one rank sends here by send(), and return it. Differentiable.

    Args:
        like: a tensor, variable or array of the message's shape and dtype, or a tf.TensorSpec. Its
            values are not read. Where a gradient with respect to it is computed, that of the result
            is sent back to `src`, where that of send()'s result must be computed as well.
        src: the global rank that sends; also the own one.
        tag: as send() is given it.
        process_set: both ranks belong to it.

    Returns:
        A new tensor.

    Raises:
        ValueError, tf.errors.OpError: as send().
    """
    [result], _ = _exchange([_received(like, src, tag, process_set)], process_set)
    return result


def recv_any(
    like: Any, tag: int = 0, process_set: ProcessSet = global_process_set
) -> tuple[tf.Tensor, tf.Tensor]:
    """Receive what comes first from any rank with this tag.

    Arguments and errors are those of recv(). It fails where a rank has left cleanly, once for
    each tag: called again, it waits for the ranks that are left.

    Returns:
        The tensor, and the global rank that has sent it, an int32 scalar.
    """
    [result], sources = _exchange([_received_from_any(like, tag, process_set)], process_set)
    return result, sources[0]


def batch(operations: Sequence[P2POp]) -> list[Any]:
    """Start several sends and receives, wait for all of them, and return their results.

    All are under way at once, so that ranks which send to each other don't wait for each other.
    Differentiable as send() and recv() are: the gradients are exchanged in one batch too.

    Args:
        operations: such as [P2POp(hvd.send, x, 1), P2POp(hvd.recv, like, 1)], on one process set.

    Returns:
        For each operation what the function returns: a zero, the tensor, or the pair of recv_any().

    Raises:
        TypeError, ValueError: this is no such list, or an argument is invalid.
        tf.errors.OpError: as send(); the first failure, after all are done.
    """
    if not operations:
        return []
    messages = [prepare(operation, _KINDS) for operation in operations]
    process_set = operations[0].process_set
    if any(one.process_set is not process_set for one in operations):
        raise ValueError("the messages of a batch have to be on one process set")
    results, sources = _exchange(messages, process_set)
    return [
        (result, sources[i]) if operations[i].op is recv_any else result
        for i, result in enumerate(results)
    ]


_KINDS = (
    Kind((send,), _sent, is_send=True),
    Kind((recv,), _received),
    Kind((recv_any,), _received_from_any, takes_peer=False),
)


@gradient_of("Messages")
def _messages_gradient(op: Any, *gradients: Any) -> list[Any]:
    """Send back the gradients of what was received, and receive those of what was sent.

    Both ranks take part where a gradient of the result is there. The gradient with respect to what
    only gave a receive its shape is that of the result: so the send is part of the backward pass.
    """
    messages, places = [], []
    for i, (is_send, peer, tag) in enumerate(
        zip(*(op.get_attr(name) for name in ("sends", "peers", "tags")), strict=True)
    ):
        if gradients[i] is None:
            continue
        if peer == ANY_RANK:
            raise NotImplementedError("recv_any() has no gradient: its sender is not known before")
        like = op.inputs[i] if is_send else as_tensor(gradients[i])
        messages.append(_Message(not is_send, like, peer, tag))
        places.append(i)
    results: list[Any] = [None] * len(op.inputs)
    if not messages:
        return results
    exchanged, _ = _exchange(messages, SetById(op.get_attr("process_set")), Channel.GRADIENTS)
    for i, message, result in zip(places, messages, exchanged, strict=True):
        with tf.control_dependencies([result]):  # or a send would be pruned
            results[i] = tf.identity(message.tensor) if message.is_send else result
    return results
