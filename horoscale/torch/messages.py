"""Point-to-point messages of tensors: send, recv and their variants.

Autograd records blocking calls whose tensor requires a gradient. The gradient of a received tensor
returns to its sender as a message with the same tag, in a separate channel. A rank waits for the
gradients that it sends only at the end of the backward pass. Otherwise, ranks that have sent to
each other would deadlock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias
from weakref import WeakValueDictionary

import torch
from torch.autograd import Variable
from torch.autograd.graph import increment_version

from horoscale import _core
from horoscale.common.arguments import extents_of
from horoscale.common.batches import Kind, P2POp, run_batch, wait_for_all
from horoscale.common.messages import (
    ANY,
    Channel,
    Place,
    Prepared,
    Source,
    View,
    receive_view,
    receiving,
    sending,
)
from horoscale.common.prepared import prepared_message
from horoscale.common.process_sets import ProcessSet, global_process_set
from horoscale.torch.autograd import connect, needs_gradient
from horoscale.torch.collectives import Tensors
from horoscale.torch.compiling import outside_graph
from horoscale.torch.handles import Handle
from horoscale.torch.tensors import (
    adopt,
    data_type,
    device_of,
    in_memory,
    is_plain,
    need_writable,
    write_back,
)

Start: TypeAlias = Callable[[], Handle]  # of a prepared message


def _place(values: torch.Tensor) -> Place:
    device = device_of([values])
    return Place(values.data_ptr(), data_type(values.dtype), values.numel(), values, device)


def _start(message: Prepared, complete: Callable[[_core.Handle], Any]) -> Handle:
    device = message.message.device
    return Handle(message.start(), complete, None if device is None else device.cuda_device)


def _prepare_send(
    tensor: torch.Tensor,
    dst: int,
    tag: int,
    process_set: ProcessSet,
    channel: Channel = Channel.TENSORS,
) -> Start:
    message = sending(_place(in_memory(tensor)), dst, tag, process_set, channel)
    return lambda: _start(message, lambda _: None)


def _prepare_recv(tensor: torch.Tensor, src: int, tag: int, process_set: ProcessSet) -> Start:
    return _prepare(tensor, src, tag, process_set, lambda tensor, _: tensor)


def _prepare_recv_any(tensor: torch.Tensor, tag: int, process_set: ProcessSet) -> Start:
    return _prepare(tensor, ANY, tag, process_set, lambda _, source: source)


def _prepare(
    tensor: torch.Tensor,
    src: int | Source,
    tag: int,
    process_set: ProcessSet,
    result: Callable[[torch.Tensor, int], Any],
) -> Start:
    """Prepare a receive. `result` creates the outcome from the tensor and the sender's rank."""
    values = in_memory(need_writable(tensor))
    message = receiving(_place(values), src, tag, process_set)

    def complete(done: _core.Handle) -> Any:
        return result(write_back(tensor, values), done.result())

    return lambda: _start(message, complete)


def _recv_and_wait(
    tensor: torch.Tensor,
    src: int | Source,
    tag: int,
    process_set: ProcessSet,
    channel: Channel = Channel.TENSORS,
) -> int:
    if is_plain(tensor):
        handle = _begin(False, tensor, src, tag, process_set, channel)
        handle.wait()
        increment_version(tensor)
        return handle.result()
    values = in_memory(need_writable(tensor))
    source = receiving(_place(values), src, tag, process_set, channel).run()
    write_back(tensor, values)
    return source


def _begin(
    is_send: bool,
    tensor: torch.Tensor,
    peer: int | Source,
    tag: int,
    process_set: ProcessSet,
    channel: Channel = Channel.TENSORS,
) -> _core.Handle:
    """Start a message with a plain tensor's memory. The caller then waits for it."""
    message = prepared_message(
        is_send, tensor.dtype, tensor.numel(), data_type, peer, tag, process_set, channel
    )
    return message.start(tensor.untyped_storage(), tensor.data_ptr(), True)


class _BackwardSends:
    """The pending gradient messages of one backward pass."""

    def __init__(self) -> None:
        self.handles: list[Handle] = []

    def wait(self) -> None:
        """Wait for all of them at the end of the pass, in any autograd thread."""
        handles, self.handles = self.handles, []
        wait_for_all(handles)


# By autograd's id of the pass, which keeps the value alive. Nodes run in the thread of their
# device.
_passes: WeakValueDictionary[int, _BackwardSends] = WeakValueDictionary()
_passes_lock = threading.Lock()


def _wait_after_backward(handle: Handle) -> None:
    number = torch._C._current_graph_task_id()
    with _passes_lock:
        sends = _passes.get(number)
        if sends is None:
            sends = _passes[number] = _BackwardSends()
            Variable._execution_engine.queue_callback(sends.wait)
        sends.handles.append(handle)


@outside_graph
def send(
    tensor: torch.Tensor, dst: int, tag: int = 0, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Send a tensor to one rank, which calls recv(). Differentiable.

    Returns when the tensor may be modified. A large message waits for the matching receive; a small
    one does not (see docs/messages.md).

    Args:
        tensor: the tensor to send, on the CPU or a GPU. The receiver's tensor may be on either.
        dst: the global rank of the receiver, which may be this rank.
        tag: a number of at least 0. Messages with the same tag between two ranks arrive in order.
        process_set: the set to which both ranks belong.

    Returns:
        A zero. If autograd records the call, backward() of this zero receives the tensor's gradient
        from `dst`. Add it to a loss, or call its backward(). The receiver's tensor must then
        require a gradient, too.

    Raises:
        TypeError, ValueError: before hvd.init(), or an argument is invalid.
        MismatchError: the receiver expects another dtype or number of elements; raised on these two
            ranks only (for a small message, on the receiver only).
        RankFailedError: a rank of the process set died or left.
        HorovodInternalError: another failure, such as a concurrent hvd.shutdown().
    """
    if is_plain(tensor):
        _begin(True, tensor, dst, tag, process_set).wait()
    else:
        sending(_place(in_memory(tensor)), dst, tag, process_set).run()
    nothing = torch.zeros((), dtype=tensor.dtype, device=tensor.device)
    if not needs_gradient([tensor]):
        return nothing
    shape, dtype, device = tensor.shape, tensor.dtype, tensor.device

    def gradient(_: Tensors) -> Tensors:
        received = torch.empty(shape, dtype=dtype, device=device)
        _recv_and_wait(received, dst, tag, process_set, Channel.GRADIENTS)
        return [received]

    [result] = connect([nothing], [tensor], gradient)
    return result


@outside_graph
def send_async(
    tensor: torch.Tensor, dst: int, tag: int = 0, process_set: ProcessSet = global_process_set
) -> Handle:
    """Start send() and return a handle immediately; its result is None. Not differentiable.

    Do not modify the tensor before the handle has completed.
    """
    return _prepare_send(tensor, dst, tag, process_set)()


@outside_graph
def recv(
    tensor: torch.Tensor, src: int, tag: int = 0, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Receive the next message from one rank into a tensor, and return it. Differentiable.

    Args:
        tensor: has the dtype and number of elements of the message, on the CPU or a GPU. If it
            requires a gradient and autograd is enabled, the returned tensor requires one, too. It
            shares the memory of `tensor`, and its gradient is sent to the sender, whose tensor must
            then require a gradient.
        src: the global rank of the sender, which may be this rank.
        tag: the tag that the sender passed to send().
        process_set: the set to which both ranks belong.

    Returns:
        The tensor.

    Raises:
        TypeError, ValueError: before hvd.init(), or an argument is invalid.
        MismatchError: the message has another dtype or number of elements; raised on these two
            ranks only.
        RankFailedError: a rank of the process set died or left.
        HorovodInternalError: another failure, such as a concurrent hvd.shutdown().
    """
    _recv_and_wait(tensor, src, tag, process_set)
    if not needs_gradient([tensor]):
        return tensor

    def gradient(gradients: Tensors) -> Sequence[Any]:
        start = _prepare_send(gradients[0], src, tag, process_set, Channel.GRADIENTS)
        _wait_after_backward(start())
        return [None]

    [result] = connect([tensor.detach()], [tensor], gradient)
    return result


@outside_graph
def recv_async(
    tensor: torch.Tensor, src: int, tag: int = 0, process_set: ProcessSet = global_process_set
) -> Handle:
    """Start recv() and return a handle immediately. Not differentiable.

    The tensor contains the message after synchronize(), which returns it.
    """
    return _prepare_recv(tensor, src, tag, process_set)()


@outside_graph
def recv_any(
    tensor: torch.Tensor, tag: int = 0, process_set: ProcessSet = global_process_set
) -> int:
    """Receive the first message with this tag from any rank into a tensor; return its rank.

    Arguments and errors are those of recv(). If a rank has left the job cleanly, this raises
    RankFailedError once for each tag. The next call waits for the remaining ranks. Not
    differentiable.
    """
    return _recv_and_wait(tensor, ANY, tag, process_set)


@outside_graph
def recv_any_async(
    tensor: torch.Tensor, tag: int = 0, process_set: ProcessSet = global_process_set
) -> Handle:
    """Start recv_any() and return a handle immediately; its result is the sender's rank."""
    return _prepare_recv_any(tensor, tag, process_set)()


@outside_graph
def recv_view(
    shape: int | Sequence[int],
    dtype: torch.dtype,
    src: int | None,
    tag: int = 0,
    process_set: ProcessSet = global_process_set,
) -> View[torch.Tensor]:
    """Receive a message from one rank, if possible as a view of the sender's memory.

    A message of more than 16 KiB from a tensor of empty_shared() on this host is not copied: the
    view's tensor maps the sender's memory, and send() waits until the view is released. Any other
    message is copied. Not differentiable.

        with hvd.recv_view((64, 128), torch.float32, src=0) as tensor:
            result = model(tensor)

    Args:
        shape: the shape of the tensor, with the message's number of elements.
        dtype: the dtype of the message.
        src: the global rank of the sender. None: any rank, as in recv_any().
        tag: the tag that the sender passed to send().
        process_set: the set to which both ranks belong.

    Returns:
        The view. Its `tensor` is on the CPU and must only be read: PyTorch has no read-only
        tensors, and writing to it would change the sender's. Its `source` is the sender's rank.

    Raises:
        TypeError, ValueError: before hvd.init(), or an argument is invalid.
        MismatchError, RankFailedError, HorovodInternalError: as in recv(). The view's release()
            raises RankFailedError, too.
    """
    extents = torch.Size(extents_of(shape))
    elements = extents.numel()
    nbytes = elements * dtype.itemsize
    message = receive_view(data_type(dtype), elements, nbytes, src, tag, process_set)
    return View(message, adopt(message.memory, dtype, extents))


@outside_graph
def batch(operations: Sequence[P2POp]) -> list[Any]:
    """Start several sends and receives, wait for all of them, and return their results.

    All of them run concurrently, so ranks can send to each other without deadlock. Not
    differentiable.

    Args:
        operations: a list such as [P2POp(hvd.send, x, 1), P2POp(hvd.recv, y, 1)].

    Returns:
        A list with the result of each operation: None for send, the tensor for recv, the sender's
        rank for recv_any.

    Raises:
        TypeError, ValueError: the list or an argument is invalid. No operation was started.
        MismatchError, RankFailedError, HorovodInternalError: the first failure, raised after all
            operations have ended.
    """
    return run_batch(operations, _KINDS)


_KINDS = (
    Kind((send, send_async), _prepare_send, is_send=True),
    Kind((recv, recv_async), _prepare_recv),
    Kind((recv_any, recv_any_async), _prepare_recv_any, takes_peer=False),
)
