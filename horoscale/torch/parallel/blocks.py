"""The two halves of a transformer block, divided among ranks: an MLP, and attention by heads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from horoscale.torch.parallel import rng
from horoscale.torch.parallel.division import split_sizes
from horoscale.torch.parallel.linear import ColumnParallelLinear, RowParallelLinear
from horoscale.torch.parallel.mesh import Axis

Activation = Callable[[torch.Tensor], torch.Tensor]
Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class ParallelMLP(nn.Module):
    """Two linear layers with an activation between them. The hidden features are divided.

    With `gated`, the activated output of a gate is multiplied by the hidden features (Shazeer
    2020).
    """

    def __init__(
        self,
        dim: int,
        hidden: int,
        axis: Any,
        activation: Activation = F.gelu,
        gated: bool = False,
        bias: bool = True,
        sequence_parallel: bool = False,
        sequence_dim: int = 0,
        multiple_of: int = 1,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Create this rank's shards.

        Args:
            dim: the number of features of input and output.
            hidden: the number of hidden features, divided in multiples of `multiple_of`.
            axis: an Axis, a ProcessSet, or a torch.distributed process group.
            activation: the function for each hidden feature.
            gated: whether there is a gate.
            bias: whether the layers have biases.
            sequence_parallel: whether the sequence of input and output is divided.
            sequence_dim: the dimension of the sequence.
            multiple_of: the size of the indivisible units of hidden features.
            device: the device of the parameters.
            dtype: the dtype of the parameters.

        Raises:
            ValueError: `multiple_of` does not divide `hidden`.
        """
        super().__init__()
        self.activation = activation
        self.gated = gated
        options: dict[str, Any] = {
            "bias": bias,
            "sequence_parallel": sequence_parallel,
            "sequence_dim": sequence_dim,
            "multiple_of": multiple_of,
            "device": device,
            "dtype": dtype,
        }
        axis = Axis.of(axis)
        # One layer, so that the input is gathered, and its gradient reduced, once.
        parts = (1, 1) if gated else (1,)  # the gate first
        self.up = ColumnParallelLinear(dim, hidden * len(parts), axis, parts=parts, **options)
        self.down = RowParallelLinear(hidden, dim, axis, **options)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the output: (..., dim) to (..., dim)."""
        hidden = self.up(x)
        if self.gated:
            gate, hidden = hidden.chunk(2, -1)
            hidden = self.activation(gate) * hidden
        else:
            hidden = self.activation(hidden)
        y: torch.Tensor = self.down(hidden)
        return y


class ParallelAttention(nn.Module):
    """Multi-head attention with divided heads, and with grouped keys and values if requested.

    Groups of query heads may share a head of keys and values (Ainslie et al. 2023). A group stays
    on one rank.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        axis: Any,
        kv_heads: int | None = None,
        bias: bool = True,
        causal: bool = True,
        dropout: float = 0.0,
        rotate: Activation | None = None,
        attend: Attend | None = None,
        sequence_parallel: bool = False,
        sequence_dim: int = 1,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Create this rank's shards.

        Args:
            dim: the number of features of input and output, which the heads share.
            heads: the number of query heads.
            axis: an Axis, a ProcessSet, or a torch.distributed process group.
            kv_heads: the number of key and value heads, which divides `heads`. None: `heads`.
            bias: whether the layers have biases.
            causal: whether to hide later tokens from each token.
            dropout: the dropout rate of the attention weights in training.
            rotate: a function applied to queries and keys, such as rotary positions. They have
                shape (batch, own heads, sequence, features).
            attend: replaces torch's scaled_dot_product_attention for context parallelism. Takes
                queries, keys and values of this rank's heads. It then has to apply `causal` and
                `dropout` itself.
            sequence_parallel: whether the sequence of input and output is divided.
            sequence_dim: the dimension of the sequence: 1 if the batch comes first, 0 if it comes
                second.
            device: the device of the parameters.
            dtype: the dtype of the parameters.

        Raises:
            ValueError: `heads` does not divide `dim`, `kv_heads` does not divide `heads`, or there
                are fewer key and value heads than ranks.
        """
        super().__init__()
        axis = Axis.of(axis)
        kv_heads = kv_heads or heads
        if dim % heads or heads % kv_heads:
            raise ValueError(
                f"dim={dim}, heads={heads}, kv_heads={kv_heads}: each must be a multiple of the "
                f"next"
            )
        if kv_heads < axis.size:
            raise ValueError(
                f"kv_heads={kv_heads} can't be divided among the {axis.size} ranks of axis "
                f"{axis.name}"
            )
        if sequence_dim not in (0, 1):
            raise ValueError(f"sequence_dim={sequence_dim} must be 0 or 1")
        self.axis = axis
        self.head_dim = dim // heads
        self.causal = causal
        self.dropout = dropout
        self.rotate: Activation | None = rotate
        self.attend: Attend = self._attend if attend is None else attend
        self.sequence_dim = sequence_dim
        self.group = heads // kv_heads
        self.own_kv_heads = split_sizes(kv_heads, axis.size)[axis.rank]
        made: dict[str, Any] = {
            "bias": bias,
            "sequence_parallel": sequence_parallel,
            "sequence_dim": sequence_dim,
            "device": device,
            "dtype": dtype,
        }
        parts = (self.group, 1, 1)  # queries, keys, values
        made["multiple_of"] = self.head_dim * self.group
        features = kv_heads * self.head_dim * sum(parts)
        self.qkv = ColumnParallelLinear(dim, features, axis, parts=parts, **made)
        self.out = RowParallelLinear(dim, dim, axis, **made)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the output: (batch, sequence, dim), or (sequence, batch, dim)."""
        unit = self.own_kv_heads * self.head_dim
        parts = torch.split(self.qkv(x), [self.group * unit, unit, unit], -1)
        query, key, value = map(self._heads, parts)
        if self.rotate is not None:
            query, key = self.rotate(query), self.rotate(key)
        if self.group > 1:
            key, value = (one.repeat_interleave(self.group, 1) for one in (key, value))
        attended = self.attend(query, key, value)
        joined = attended.transpose(1, 2).flatten(2)  # (batch, sequence, own features)
        y: torch.Tensor = self.out(joined if self.sequence_dim == 1 else joined.transpose(0, 1))
        return y

    def _heads(self, x: torch.Tensor) -> torch.Tensor:
        batch_first = x if self.sequence_dim == 1 else x.transpose(0, 1)
        heads = batch_first.reshape(*batch_first.shape[:-1], -1, self.head_dim)
        return heads.transpose(1, 2)

    def _attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        if self.dropout and self.training:  # of heads that no other rank has
            with rng.fork(self.axis):
                return F.scaled_dot_product_attention(
                    query, key, value, dropout_p=self.dropout, is_causal=self.causal
                )
        return F.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
