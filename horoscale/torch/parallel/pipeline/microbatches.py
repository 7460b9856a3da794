"""Divides a batch into microbatches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch

Batch: TypeAlias = "torch.Tensor | Sequence[torch.Tensor]"  # divided along the first dimension


def as_tuple(batch: Batch, what: str) -> tuple[torch.Tensor, ...]:
    """Return the tensors of a batch; raise TypeError or ValueError if they are invalid."""
    tensors = (batch,) if isinstance(batch, torch.Tensor) else tuple(batch)
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{what} is a tensor or a sequence of tensors, not {tensor!r}")
        if tensor.dim() == 0:
            raise ValueError(f"{what} has a tensor without rows")
    if len({tensor.shape[0] for tensor in tensors}) != 1:
        shapes = [list(tensor.shape) for tensor in tensors]
        raise ValueError(f"the tensors of {what} have other numbers of rows: {shapes}")
    return tensors


class Microbatches:
    """A batch in equal parts; the first ones may have one more row (torch.tensor_split)."""

    def __init__(self, batch: Batch, number: int, what: str, may_be_empty: bool) -> None:
        """Divide; raise ValueError if there are fewer rows than parts, unless `may_be_empty`."""
        tensors = as_tuple(batch, what)
        self._rows: int = tensors[0].shape[0]
        if self._rows < number and not (may_be_empty and self._rows):
            raise ValueError(f"{what} has {self._rows} rows, too few for {number} microbatches")
        self._single = isinstance(batch, torch.Tensor)
        cut = [tensor.tensor_split(number) for tensor in tensors]
        self._parts = list(zip(*cut, strict=True))

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        """Return the tensors of a microbatch."""
        return self._parts[index]

    def as_given(self, index: int) -> Batch:
        """Return a microbatch in the form of the batch."""
        return self._parts[index][0] if self._single else self._parts[index]

    def rows(self, index: int) -> int:
        """Return the number of rows of a microbatch."""
        return int(self._parts[index][0].shape[0])

    def share(self, index: int) -> float:
        """Return a microbatch's fraction of the batch's rows."""
        return self.rows(index) / self._rows
