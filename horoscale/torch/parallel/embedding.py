"""Embeddings whose tables are divided: by words, or by features."""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from horoscale.torch.parallel import rng
from horoscale.torch.parallel.division import Shard, bounds, split_sizes
from horoscale.torch.parallel.mesh import Axis
from horoscale.torch.parallel.regions import reduce_from, sequence_reduce_scatter

Reduction = Literal["all", "scatter", "none"]


def reduced(x: torch.Tensor, axis: Axis, reduction: Reduction, sequence_dim: int) -> torch.Tensor:
    """Return the sum of the ranks' `x`: all of it, or this rank's part of the sequence; or `x`."""
    if reduction == "none":
        return x
    if reduction == "all":
        return reduce_from(x, axis)
    return sequence_reduce_scatter(x, axis, sequence_dim)


def _check_reduction(reduction: str) -> None:
    if reduction not in ("all", "scatter", "none"):
        raise ValueError(f'reduction={reduction!r} is none of "all", "scatter" and "none"')


class VocabParallelEmbedding(nn.Module):
    """An embedding of which each rank has the vectors of some words.

    A rank finds zeros for the words of others; the sum over the ranks is the embedding.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        axis: Any,
        padding_idx: int | None = None,
        reduction: Reduction = "all",
        sequence_dim: int = 0,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Make this rank's rows of the table.

        Args:
            num_embeddings: how many words there are.
            embedding_dim: the width of their vectors.
            axis: an Axis, a ProcessSet, or a group of torch.distributed's.
            padding_idx: the word whose vector gets no gradient, as nn.Embedding takes it.
            reduction: what is returned: "all": the vectors; "scatter": this rank's part of the
                sequence of them; "none": what this rank has of the sum.
            sequence_dim: the dimension of the words that is the sequence.
            device: where the table is.
            dtype: its type.

        Raises:
            ValueError: there are fewer words than ranks, or an argument is invalid.
        """
        super().__init__()
        _check_reduction(reduction)
        self.axis = Axis.of(axis)
        if num_embeddings < self.axis.size:
            raise ValueError(
                f"VocabParallelEmbedding: {num_embeddings} words can't be divided among the "
                f"{self.axis.size} ranks of axis {self.axis.name}"
            )
        if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
            raise ValueError(f"padding_idx={padding_idx} is none of {num_embeddings} words")
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        self.reduction = reduction
        self.sequence_dim = sequence_dim
        sizes = split_sizes(num_embeddings, self.axis.size)
        self.first, self.end = bounds(sizes, self.axis.rank)
        self.padding_idx = None if padding_idx is None else padding_idx % num_embeddings
        made = {"device": device, "dtype": dtype}
        self.weight = nn.Parameter(torch.empty(self.end - self.first, embedding_dim, **made))
        self.shards = {"weight": Shard(self.axis, 0, sizes)}
        self.reset_parameters()

    @property
    def _own_padding(self) -> int | None:
        padding = self.padding_idx
        is_own = padding is not None and self.first <= padding < self.end
        return padding - self.first if padding is not None and is_own else None

    def reset_parameters(self) -> None:
        """Draw the vectors as nn.Embedding does, each rank its own."""
        with rng.fork(self.axis):
            nn.init.normal_(self.weight)
        if self._own_padding is not None:
            with torch.no_grad():
                self.weight[self._own_padding] = 0.0

    @torch.no_grad()
    def load_whole(self, weight: torch.Tensor) -> None:
        """Take this rank's rows of a whole table."""
        self.weight.copy_(self.shards["weight"].of(weight))

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Return the vectors of words: (...) to (..., embedding_dim).

        Raises IndexError for a number that is no word (on the CPU, where looking costs nothing).
        """
        if words.is_cpu and words.numel():
            low, high = int(words.min()), int(words.max())
            if low < 0 or high >= self.num_embeddings:
                wrong = low if low < 0 else high
                raise IndexError(f"{wrong} is no word: there are {self.num_embeddings}")
        if self.axis.size == 1:
            return F.embedding(words, self.weight, self.padding_idx)
        foreign = (words < self.first) | (words >= self.end)
        rows = (words - self.first).masked_fill(foreign, 0)
        found = F.embedding(rows, self.weight, self._own_padding)
        own = found.masked_fill(foreign.unsqueeze(-1), 0.0)
        return reduced(own, self.axis, self.reduction, self.sequence_dim)

    def extra_repr(self) -> str:
        """Say what the table is, and what of it this rank has."""
        return (
            f"{self.num_embeddings}, {self.embedding_dim}, rows={self.first}:{self.end}, "
            f"axis={self.axis.name}"
        )


class ColumnParallelEmbedding(nn.Module):
    """An embedding of which each rank has some features of all vectors, which it returns."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        axis: Any,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Make this rank's columns of the table; they are divided as by split_sizes()."""
        super().__init__()
        self.axis = Axis.of(axis)
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        sizes = split_sizes(embedding_dim, self.axis.size)
        self.first, self.end = bounds(sizes, self.axis.rank)
        own = self.end - self.first
        self.weight = nn.Parameter(torch.empty(num_embeddings, own, device=device, dtype=dtype))
        self.shards = {"weight": Shard(self.axis, 1, sizes)}
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the vectors as nn.Embedding does, each rank its own."""
        with rng.fork(self.axis):
            nn.init.normal_(self.weight)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Return this rank's features of the vectors of words: (...) to (..., own features)."""
        return F.embedding(words, self.weight)


class ParallelEmbeddings(nn.Module):
    """The embeddings of words and, unless there are none, of positions, added up by one sum."""

    def __init__(
        self,
        embed_dim: int,
        vocab_size: int,
        max_position_embeddings: int,
        axis: Any,
        padding_idx: int | None = None,
        sequence_parallel: bool = False,
        sequence_dim: int = 0,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Make this rank's parts of both tables.

        Args:
            embed_dim: the width of the vectors.
            vocab_size: how many words there are.
            max_position_embeddings: how many positions; 0: they have no vectors.
            axis: an Axis, a ProcessSet, or a group of torch.distributed's.
            padding_idx: the word whose vector gets no gradient.
            sequence_parallel: whether each rank gets a part of the sequence.
            sequence_dim: the dimension of the words that is the sequence.
            device: where the tables are.
            dtype: their type.

        Raises:
            ValueError: there are fewer words than ranks.
        """
        super().__init__()
        self.axis = Axis.of(axis)
        self.sequence_parallel = sequence_parallel
        self.sequence_dim = sequence_dim
        self.max_position_embeddings = max_position_embeddings
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        self.word_embeddings = VocabParallelEmbedding(
            vocab_size, embed_dim, self.axis, padding_idx, reduction="none", **made
        )
        if max_position_embeddings > 0:
            self.position_embeddings = ColumnParallelEmbedding(
                max_position_embeddings, embed_dim, self.axis, **made
            )

    def forward(self, words: torch.Tensor, positions: torch.Tensor | None = None) -> torch.Tensor:
        """Return the vectors of words: (...) to (..., embed_dim), or a part of their sequence.

        `positions` are those of the words; None: those of the sequence, from 0.
        """
        if positions is None:
            length = words.shape[self.sequence_dim]
            shape = [1] * words.dim()
            shape[self.sequence_dim] = length
            positions = torch.arange(length, device=words.device).view(shape)
        kind: Reduction = "scatter" if self.sequence_parallel else "all"
        return reduced(self.partial(words, positions), self.axis, kind, self.sequence_dim)

    def partial(self, words: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return what this rank has of the sum over the ranks."""
        found: torch.Tensor = self.word_embeddings(words)
        if self.max_position_embeddings > 0:
            table = self.position_embeddings
            # This rank's features alone: those of the sum have each rank's once.
            others = (table.first, table.embedding_dim - table.end)
            found = found + F.pad(table(positions), others)
        return found
