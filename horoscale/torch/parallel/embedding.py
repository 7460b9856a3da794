"""Embeddings whose tables are divided by words or by features."""

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
    """Return the sum of the ranks' `x`, this rank's part of its sequence, or `x` itself."""
    if reduction == "none":
        return x
    if reduction == "all":
        return reduce_from(x, axis)
    return sequence_reduce_scatter(x, axis, sequence_dim)


def _check_reduction(reduction: str) -> None:
    if reduction not in ("all", "scatter", "none"):
        raise ValueError(f'reduction={reduction!r} must be "all", "scatter" or "none"')


class VocabParallelEmbedding(nn.Module):
    """An embedding whose words are divided among the ranks.

    A rank returns zeros for the words of other ranks. The sum over the ranks is the embedding.
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
        """Create this rank's rows of the table.

        Args:
            num_embeddings: the number of words.
            embedding_dim: the number of features of each vector.
            axis: an Axis, a ProcessSet, or a torch.distributed process group.
            padding_idx: the word whose vector gets no gradient, as in nn.Embedding.
            reduction: the form of the result. "all": the sum over the ranks. "scatter": this rank's
                part of its sequence. "none": this rank's summand.
            sequence_dim: the sequence dimension of the words.
            device: the device of the table.
            dtype: the dtype of the table.

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
            raise ValueError(f"padding_idx={padding_idx} is not one of {num_embeddings} words")
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
        """Load this rank's rows of a whole table."""
        self.weight.copy_(self.shards["weight"].of(weight))

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Return the vectors of words: (...) to (..., embedding_dim).

        Raises IndexError for a number that is not a word (on the CPU, where the check is cheap).
        """
        if words.is_cpu and words.numel():
            low, high = int(words.min()), int(words.max())
            if low < 0 or high >= self.num_embeddings:
                wrong = low if low < 0 else high
                raise IndexError(f"{wrong} is not one of the {self.num_embeddings} words")
        if self.axis.size == 1:
            return F.embedding(words, self.weight, self.padding_idx)
        foreign = (words < self.first) | (words >= self.end)
        rows = (words - self.first).masked_fill(foreign, 0)
        found = F.embedding(rows, self.weight, self._own_padding)
        own = found.masked_fill(foreign.unsqueeze(-1), 0.0)
        return reduced(own, self.axis, self.reduction, self.sequence_dim)

    def extra_repr(self) -> str:
        """Describe the table and this rank's part of it."""
        return (
            f"{self.num_embeddings}, {self.embedding_dim}, rows={self.first}:{self.end}, "
            f"axis={self.axis.name}"
        )


class ColumnParallelEmbedding(nn.Module):
    """An embedding whose features are divided. Each rank returns its features of the vectors."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        axis: Any,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Create this rank's columns of the table, which are divided as by split_sizes()."""
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
    """The embeddings of words and, optionally, of positions, added in one reduction."""

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
        """Create this rank's parts of both tables.

        Args:
            embed_dim: the number of features of each vector.
            vocab_size: the number of words.
            max_position_embeddings: the number of positions. 0: no position embeddings.
            axis: an Axis, a ProcessSet, or a torch.distributed process group.
            padding_idx: the word whose vector gets no gradient.
            sequence_parallel: whether each rank gets a part of the sequence.
            sequence_dim: the sequence dimension of the words.
            device: the device of the tables.
            dtype: the dtype of the tables.

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

        `positions` are the positions of the words. None: counted along the sequence, from 0.
        """
        if positions is None:
            length = words.shape[self.sequence_dim]
            shape = [1] * words.dim()
            shape[self.sequence_dim] = length
            positions = torch.arange(length, device=words.device).view(shape)
        kind: Reduction = "scatter" if self.sequence_parallel else "all"
        return reduced(self.partial(words, positions), self.axis, kind, self.sequence_dim)

    def partial(self, words: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return this rank's summand of the embeddings."""
        found: torch.Tensor = self.word_embeddings(words)
        if self.max_position_embeddings > 0:
            table = self.position_embeddings
            # Only this rank's features: in the sum over the ranks, each feature appears once.
            others = (table.first, table.embedding_dim - table.end)
            found = found + F.pad(table(positions), others)
        return found
