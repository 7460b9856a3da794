"""Sends and receives of a process group."""

from __future__ import annotations

import torch

from horoscale._core import ANY_RANK, MessageArg
from horoscale.common.job import current_runtime
from horoscale.common.messages import Channel
from horoscale.torch.distributed.collectives import Started
from horoscale.torch.distributed.places import flat, write
from horoscale.torch.tensors import data_type, is_plain, knows


def _message(values: torch.Tensor, peer: int, tag: int, set_id: int) -> MessageArg:
    if tag < 0:
        raise ValueError(f"tag={tag} is negative")
    dtype = data_type(values.dtype)
    return MessageArg(peer, tag, Channel.GROUPS, values.data_ptr(), dtype, values.numel(), set_id)


def _values(tensor: torch.Tensor) -> torch.Tensor:
    """Return what a message is made of: the tensor itself, or its elements in a row."""
    if is_plain(tensor) and knows(tensor.dtype):
        return tensor.detach()
    return flat(tensor, moved_only=True)


def send(set_id: int, tensor: torch.Tensor, peer: int, tag: int) -> Started:
    """Send a tensor to a global rank."""
    values = _values(tensor)
    message = _message(values, peer, tag, set_id)
    return Started(current_runtime().start_message(message, True, False, values), [tensor])


def recv(set_id: int, tensor: torch.Tensor, peer: int | None, tag: int) -> Started:
    """Receive into a tensor from a global rank, or from any; the handle's result is the rank."""
    values = _values(tensor)
    message = _message(values, ANY_RANK if peer is None else peer, tag, set_id)
    handle = current_runtime().start_message(message, False, False, values)
    return Started(handle, [tensor], lambda: write(tensor, values))
