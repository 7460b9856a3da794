"""Sends and receives of a process group."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable

import torch
import torch.distributed as dist

from horoscale._core import ANY_RANK, Handle, MessageArg, PreparedMessage
from horoscale.common.job import current_runtime
from horoscale.common.messages import Channel
from horoscale.torch.distributed.places import flat, write
from horoscale.torch.tensors import data_type, device_of, is_plain, knows

_SEND, _RECV, _ISEND, _IRECV = (
    inspect.unwrap(call).__code__ for call in (dist.send, dist.recv, dist.isend, dist.irecv)
)


def caller_waits() -> bool:
    """Return whether the caller of this function was called by dist.send() or dist.recv().

    They wait for what they start but do not indicate that, unlike collectives (asyncOp). For them,
    waking the progress thread would take longer than a small message.
    """
    frame = sys._getframe(1).f_back
    if frame is not None and (frame.f_code is _ISEND or frame.f_code is _IRECV):
        frame = frame.f_back
    return frame is not None and (frame.f_code is _SEND or frame.f_code is _RECV)


def start(
    is_send: bool, set_id: int, tensor: torch.Tensor, peer: int | None, tag: int, will_wait: bool
) -> tuple[Handle, Callable[[], None] | None, int | None]:
    """Start sending a tensor to a global rank, or receiving into it, also from any rank (None).

    Returns the handle, whose result is the sender's rank; the function that completes it; and its
    CUDA device. With `will_wait`, the calling thread waits for it next.
    """
    if message := prepared(is_send, set_id, tensor, peer, tag):
        memory = tensor.untyped_storage()
        return message.start(memory, tensor.data_ptr(), will_wait), None, None
    values = flat(tensor, moved_only=True)
    finish = None if is_send else lambda: write(tensor, values)
    device = device_of([values])
    if device is not None:
        described = _describe(set_id, values, peer, tag)
        described = described._replace(address=values.data_ptr(), device=device)
        handle = current_runtime().start_message(described, is_send, will_wait, values)
        return handle, finish, device.cuda_device
    message = _prepared(is_send, set_id, values, peer, tag)
    return message.start(values, values.data_ptr(), will_wait), finish, None


def prepared(
    is_send: bool, set_id: int, tensor: torch.Tensor, peer: int | None, tag: int
) -> PreparedMessage | None:
    """Return the prepared message of a tensor in plain host memory, or None for other tensors."""
    if not (is_plain(tensor) and knows(tensor.dtype)):
        return None
    return _prepared(is_send, set_id, tensor, peer, tag)


def _prepared(
    is_send: bool, set_id: int, values: torch.Tensor, peer: int | None, tag: int
) -> PreparedMessage:
    dtype, elements = values.dtype, values.numel()
    key = is_send, set_id, peer, tag, dtype, elements
    runtime = current_runtime()
    message = runtime.messages.recent.get(key) or runtime.messages.find(key)
    if message is not None:
        return message
    return runtime.prepare_message(key, _describe(set_id, values, peer, tag), is_send)


def _describe(set_id: int, values: torch.Tensor, peer: int | None, tag: int) -> MessageArg:
    """Describe a message, except for its memory."""
    if tag < 0:
        raise ValueError(f"tag={tag} is negative")
    whom = ANY_RANK if peer is None else peer
    dtype = data_type(values.dtype)
    return MessageArg(whom, tag, Channel.GROUPS, 0, dtype, values.numel(), set_id)
