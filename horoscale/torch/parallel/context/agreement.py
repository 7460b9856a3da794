"""Exchanges and compares the ranks' arguments before they compute attention together."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, field, fields
from typing import Any

import torch

import horoscale.torch as hvd
from horoscale._core import DataType
from horoscale.torch.autograd import needs_gradient
from horoscale.torch.parallel.context.layouts import LAYOUTS, Layout, lengths
from horoscale.torch.parallel.mesh import Axis
from horoscale.torch.tensors import data_type

# Number of calls on each set. It goes into tags, so that leftover messages of a failed call do not
# match those of a later one.
_numbers: dict[int, int] = {}


def _bits(value: float) -> int:
    (bits,) = struct.unpack("q", struct.pack("d", value))
    return int(bits)


def _from_bits(value: int) -> float:
    (number,) = struct.unpack("d", struct.pack("q", value))
    return float(number)


def _alike(what: str, read: Callable[[int], Any] = int) -> Any:
    return field(metadata={"what": what, "read": read})


@dataclass(frozen=True)
class Call:
    """One rank's arguments of a call, as integers. Those with a description must be equal."""

    queries: int  # number of positions on this rank
    keys: int
    number: int  # number of the call
    batch: int = _alike("the size of the batch")
    heads: int = _alike("the number of heads of q")
    key_heads: int = _alike("the number of heads of k and v")
    size: int = _alike("the size of a head")
    dtype: int = _alike("the dtype", lambda value: DataType(value).name.lower())
    causal: int = _alike("causal", bool)
    layout: int = _alike("layout", lambda value: LAYOUTS[value])
    scale: int = _alike("scale", _from_bits)
    gradients: int = _alike("whether gradients are needed", bool)


def agree(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    axis: Axis,
    causal: bool,
    layout: Layout,
    scale: float,
    title: str,
) -> list[Call]:
    """Exchange the arguments of all ranks, and return them in the order of the axis.

    Raises MismatchError on all ranks if they do not match.
    """
    group = None if axis.set is None else axis.set.process_set_id
    own = Call(
        queries=q.shape[2],
        keys=k.shape[2],
        number=_numbers.get(group or 0, 0),
        batch=q.shape[0],
        heads=q.shape[1],
        key_heads=k.shape[1],
        size=q.shape[3],
        dtype=int(data_type(q.dtype)),
        causal=int(causal),
        layout=LAYOUTS.index(layout),
        scale=_bits(scale),
        gradients=int(needs_gradient([q, k, v])),
    )
    if axis.set is None:
        return [own]
    rows = hvd.allgather(torch.tensor([astuple(own)]), process_set=axis.set)
    calls = [Call(*row) for row in rows.tolist()]
    _check_alike(calls, axis, title)
    _numbers[group or 0] = number_of(calls) + 1
    return calls


def number_of(calls: Sequence[Call]) -> int:
    """Return the number of this call, which is the same on all ranks."""
    return max(one.number for one in calls)


def _check_alike(calls: Sequence[Call], axis: Axis, title: str) -> None:
    for one in fields(Call):
        given = [getattr(call, one.name) for call in calls]
        if one.metadata and len(set(given)) > 1:
            read = one.metadata["read"]
            each = ", ".join(
                f"{read(value)} on rank {rank}"
                for rank, value in zip(axis.ranks, given, strict=True)
            )
            raise hvd.MismatchError(
                f"{title}: the ranks of axis {axis.name!r} differ in {one.metadata['what']}: {each}"
            )


def check_lengths(calls: Sequence[Call], axis: Axis, layout: Layout, title: str) -> None:
    """Raise MismatchError on all ranks unless they hold a sequence in this layout."""
    held = [one.keys for one in calls]
    expected = lengths(sum(held), axis.size, layout)
    if held != expected:
        raise hvd.MismatchError(
            f"{title}: the ranks {list(axis.ranks)} of axis {axis.name!r} hold {held} positions; "
            f"of a sequence of {sum(held)} the layout {layout!r} gives them {expected}. "
            "shard_sequence() divides it so"
        )


def check_arguments(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, title: str
) -> None:
    """Raise ValueError if this rank's arguments are invalid."""
    shapes = f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
    if not q.dim() == k.dim() == v.dim() == 4:
        raise ValueError(f"{title}: (batch, heads, positions, size of a head) are needed: {shapes}")
    if k.shape != v.shape or q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3]:
        raise ValueError(f"{title}: the shapes don't go together: {shapes}")
    if k.shape[1] == 0 or q.shape[1] % k.shape[1]:
        raise ValueError(f"{title}: the heads of k and v have to divide those of q: {shapes}")
    if causal and q.shape[2] != k.shape[2]:
        raise ValueError(f"{title}: causal needs as many queries as keys: {shapes}")
    if not q.dtype == k.dtype == v.dtype or not q.is_floating_point():
        raise ValueError(
            f"{title}: one floating-point dtype is needed: q {q.dtype}, k {k.dtype}, v {v.dtype}"
        )
