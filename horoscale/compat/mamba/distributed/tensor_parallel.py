"""mamba_ssm.distributed.tensor_parallel: horoscale's layers with Mamba's arguments and defaults.

Tokens are the first dimension, which sequence parallelism divides.
"""

from __future__ import annotations

from typing import Any

import torch

from horoscale.torch import parallel as par
from horoscale.torch.parallel.embedding import Reduction, reduced


class ColumnParallelLinear(par.ColumnParallelLinear):
    """A linear layer whose output features are divided; a divided sequence is gathered before."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        process_group: Any,
        bias: bool = True,
        sequence_parallel: bool = True,
        multiple_of: int = 1,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Create this rank's shard; see horoscale.torch.parallel.ColumnParallelLinear."""
        super().__init__(
            in_features,
            out_features,
            process_group,
            bias,
            sequence_parallel,
            multiple_of,
            device=device,
            dtype=dtype,
        )
        self.process_group = process_group


class RowParallelLinear(par.RowParallelLinear):
    """A linear layer whose input features are divided; its output's sequence may be divided."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        process_group: Any,
        bias: bool = True,
        sequence_parallel: bool = True,
        multiple_of: int = 1,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Create this rank's shard; see horoscale.torch.parallel.RowParallelLinear."""
        super().__init__(
            in_features,
            out_features,
            process_group,
            bias,
            sequence_parallel,
            multiple_of,
            device=device,
            dtype=dtype,
        )
        self.process_group = process_group


class VocabParallelEmbedding(par.VocabParallelEmbedding):
    """An embedding whose words are divided among the ranks. The results are not summed."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        process_group: Any = None,
        padding_idx: int | None = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Create this rank's rows of the table. A process group of None has one rank."""
        super().__init__(
            num_embeddings,
            embedding_dim,
            process_group,
            padding_idx,
            reduction="none",
            device=device,
            dtype=dtype,
        )
        self.process_group = process_group


class ColumnParallelEmbedding(par.ColumnParallelEmbedding):
    """An embedding whose features are divided among the ranks."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        process_group: Any = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Create this rank's columns of the table. A process group of None has one rank."""
        super().__init__(num_embeddings, embedding_dim, process_group, device, dtype)
        self.process_group = process_group


class ParallelEmbeddings(par.ParallelEmbeddings):
    """The embeddings of words and positions, reduced at the end."""

    def __init__(
        self,
        embed_dim: int,
        vocab_size: int,
        max_position_embeddings: int,
        process_group: Any,
        padding_idx: int | None = None,
        sequence_parallel: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Create this rank's parts of both tables."""
        super().__init__(
            embed_dim,
            vocab_size,
            max_position_embeddings,
            process_group,
            padding_idx,
            sequence_parallel,
            device=device,
            dtype=dtype,
        )
        self.process_group = process_group

    def forward(
        self,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor | None = None,
        combine_batch_seqlen_dim: bool = False,
    ) -> torch.Tensor:
        """Return the embeddings of words, (batch, sequence), or a part of the first dimension.

        With `combine_batch_seqlen_dim` the first dimension contains all tokens.
        """
        if position_ids is None:
            position_ids = torch.arange(input_ids.shape[1], device=input_ids.device)
        found = self.partial(input_ids, position_ids)
        if combine_batch_seqlen_dim:
            found = found.flatten(0, 1)
        kind: Reduction = "scatter" if self.sequence_parallel else "all"
        return reduced(found, self.axis, kind, 0)


def parallel_linear_func(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    process_group: Any = None,
    sequence_parallel: bool = True,
) -> torch.Tensor:
    """Return the product of this rank's rows of a weight with tokens that are gathered first."""
    axis = par.Axis.of(process_group)
    return par.column_parallel(x, weight, bias, axis, 0 if sequence_parallel else None)


__all__ = [
    "ColumnParallelEmbedding",
    "ColumnParallelLinear",
    "ParallelEmbeddings",
    "RowParallelLinear",
    "VocabParallelEmbedding",
    "parallel_linear_func",
]
