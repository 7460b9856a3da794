"""Point-to-point messages of tensors: send, recv and their variants.

All of them use one op, which starts its messages and completes when all of them have. The ops of a
tf.function run in program order, like eager calls. Use one batch() for messages that must run
concurrently. Gradients are messages with the same tag in a separate channel.
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
    tensor: tf.Tensor  # for a receive, a tensor like the message
    peer: int
    tag: int


def _exchange(
    messages: Sequence[_Message], process_set: ProcessSet, channel: Channel = Channel.TENSORS
) -> tuple[list[tf.Tensor], tf.Tensor]:
    """Start all messages and wait for them. Return their results and sources."""
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
    Call("", process_set).attributes()  # first, because its error is also TensorFlow's
    peer = check_peer("dst", dst, process_set)
    return _Message(True, as_tensor(tensor), peer, check_tag(tag))


def _received(like: Any, src: int | Source, tag: int, process_set: ProcessSet) -> _Message:
    Call("", process_set).attributes()
    peer = check_source(src, process_set)
    if isinstance(like, tf.TensorSpec):
        if not like.shape.is_fully_defined():
            raise ValueError(f"like={like} does not define the whole shape, which recv() needs")
        like = tf.zeros(like.shape, like.dtype)
    return _Message(False, as_tensor(like), peer, check_tag(tag))


def _received_from_any(like: Any, tag: int, process_set: ProcessSet) -> _Message:
    return _received(like, ANY, tag, process_set)


def send(
    tensor: Any, dst: int, tag: int = 0, process_set: ProcessSet = global_process_set
) -> tf.Tensor:
    """Send a tensor to one rank, which calls recv(). Differentiable.

    A large message waits for the matching receive; a small one does not (see docs/messages.md). In
    a tf.function it runs in program order, even if its result is unused.

    Args:
        tensor: a tensor, variable or array.
        dst: the global rank of the receiver, which may be this rank.
        tag: a number of at least 0. Messages with the same tag between two ranks arrive in order.
        process_set: the set to which both ranks belong.

    Returns:
        A zero of the tensor's dtype. Add it to the loss: its gradient is received from `dst`, which
        must compute the gradient of the result of recv().

    Raises:
        TypeError, ValueError: before hvd.init(), or an argument is invalid.
        tf.errors.FailedPreconditionError: the receiver expects another dtype or number of elements;
            raised on these two ranks only (for a small message, on the receiver only).
        tf.errors.UnknownError: a rank of the process set died or left.
        tf.errors.OpError: another failure, such as a concurrent hvd.shutdown().
    """
    [result], _ = _exchange([_sent(tensor, dst, tag, process_set)], process_set)
    return result


def recv(
    like: Any, src: int, tag: int = 0, process_set: ProcessSet = global_process_set
) -> tf.Tensor:
    """Receive the next message from one rank and return it. Differentiable.

    Args:
        like: a tensor, variable or array with the message's shape and dtype, or a tf.TensorSpec.
            Its values are not read. If a gradient with respect to it is computed, the gradient of
            the result is sent back to `src`, which must compute the gradient of the result of
            send().
        src: the global rank of the sender, which may be this rank.
        tag: the tag that the sender passed to send().
        process_set: the set to which both ranks belong.

    Returns:
        A new tensor.

    Raises:
        ValueError, tf.errors.OpError: as in send().
    """
    [result], _ = _exchange([_received(like, src, tag, process_set)], process_set)
    return result


def recv_any(
    like: Any, tag: int = 0, process_set: ProcessSet = global_process_set
) -> tuple[tf.Tensor, tf.Tensor]:
    """Receive the first message with this tag from any rank.

    Arguments and errors are those of recv(). If a rank has left the job cleanly, this fails once
    for each tag. The next call waits for the remaining ranks.

    Returns:
        The tensor, and the global rank of the sender as an int32 scalar.
    """
    [result], sources = _exchange([_received_from_any(like, tag, process_set)], process_set)
    return result, sources[0]


def batch(operations: Sequence[P2POp]) -> list[Any]:
    """Start several sends and receives, wait for all of them, and return their results.

    All of them run concurrently, so ranks can send to each other without deadlock. Differentiable
    like send() and recv(): the gradients are also exchanged in one batch.

    Args:
        operations: a list such as [P2POp(hvd.send, x, 1), P2POp(hvd.recv, like, 1)], all on the
            same process set.

    Returns:
        A list with the result of each operation: a zero, the tensor, or the pair of recv_any().

    Raises:
        TypeError, ValueError: the list or an argument is invalid.
        tf.errors.OpError: the first failure, as in send(), raised after all operations have ended.
    """
    if not operations:
        return []
    messages = [prepare(operation, _KINDS) for operation in operations]
    process_set = operations[0].process_set
    if any(one.process_set is not process_set for one in operations):
        raise ValueError("all messages of a batch must be on the same process set")
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
    """Send back the gradients of received tensors, and receive those of sent tensors.

    Both ranks take part if the result has a gradient. A receive's input only provides its shape.
    Its gradient is that of the result, so that the send is part of the backward pass.
    """
    messages, places = [], []
    for i, (is_send, peer, tag) in enumerate(
        zip(*(op.get_attr(name) for name in ("sends", "peers", "tags")), strict=True)
    ):
        if gradients[i] is None:
            continue
        if peer == ANY_RANK:
            raise NotImplementedError(
                "recv_any() has no gradient: its sender is unknown beforehand"
            )
        like = op.inputs[i] if is_send else as_tensor(gradients[i])
        messages.append(_Message(not is_send, like, peer, tag))
        places.append(i)
    results: list[Any] = [None] * len(op.inputs)
    if not messages:
        return results
    exchanged, _ = _exchange(messages, SetById(op.get_attr("process_set")), Channel.GRADIENTS)
    for i, message, result in zip(places, messages, exchanged, strict=True):
        with tf.control_dependencies([result]):  # otherwise a send would be pruned
            results[i] = tf.identity(message.tensor) if message.is_send else result
    return results
