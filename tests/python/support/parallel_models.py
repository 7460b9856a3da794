"""A transformer for one process, and the same made of divided layers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

import horoscale.torch.parallel as par


@dataclass(frozen=True)
class Shape:
    words: int = 19
    dim: int = 24
    heads: int = 6
    kv_heads: int = 3
    hidden: int = 42
    layers: int = 2
    positions: int = 12
    gated: bool = False
    bias: bool = True


class Attention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        width = shape.dim // shape.heads
        self.qkv = nn.Linear(shape.dim, shape.dim + 2 * shape.kv_heads * width, shape.bias)
        self.out = nn.Linear(shape.dim, shape.dim, shape.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shape = self.shape
        width = shape.dim // shape.heads
        of_kv = shape.kv_heads * width
        parts = self.qkv(x).split([shape.dim, of_kv, of_kv], -1)
        query, key, value = (one.unflatten(-1, (-1, width)).transpose(1, 2) for one in parts)
        group = shape.heads // shape.kv_heads
        key, value = (one.repeat_interleave(group, 1) for one in (key, value))
        y = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gated = shape.gated
        self.up = nn.Linear(shape.dim, shape.hidden * (1 + shape.gated), shape.bias)
        self.down = nn.Linear(shape.hidden, shape.dim, shape.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.up(x)
        if self.gated:
            gate, x = x.chunk(2, -1)
            return self.down(F.silu(gate) * x)
        return self.down(F.gelu(x))


class Block(nn.Module):
    """Two residual halves, of one process or divided; the norms' type distinguishes them."""

    def __init__(self, norms: list[nn.Module], attention: nn.Module, mlp: nn.Module) -> None:
        super().__init__()
        self.norms = nn.ModuleList(norms)
        self.attention = attention
        self.mlp = mlp

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norms[0](x))
        return x + self.mlp(self.norms[1](x))


class Embeddings(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(shape.words, shape.dim)
        self.position_embeddings = nn.Embedding(shape.positions, shape.dim)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(words.shape[1])
        return self.word_embeddings(words) + self.position_embeddings(positions)


class GPT(nn.Module):
    """Takes words and returns the mean loss of predicting the next ones; the table is tied."""

    def __init__(self, embeddings: nn.Module, blocks: list[nn.Module], norm: nn.Module) -> None:
        super().__init__()
        self.embeddings = embeddings
        self.blocks = nn.Sequential(*blocks)
        self.norm = norm

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(self.blocks(self.embeddings(words[:, :-1])))
        return self.loss(hidden, self.embeddings.word_embeddings.weight, words[:, 1:])

    def loss(self, hidden: torch.Tensor, table: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy((hidden @ table.T).flatten(0, 1), target.flatten())


def single(shape: Shape) -> GPT:
    def norm() -> nn.Module:
        # The same layer, marked as not divided.
        return par.RMSNorm(shape.dim, None) if shape.gated else nn.LayerNorm(shape.dim)

    blocks = [Block([norm(), norm()], Attention(shape), MLP(shape)) for _ in range(shape.layers)]
    return GPT(Embeddings(shape), blocks, norm())


class DividedGPT(GPT):
    axis: par.Axis
    words: int
    sequence_parallel: bool

    def loss(self, hidden: torch.Tensor, table: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        dim = 1 if self.sequence_parallel else None
        logits = par.column_parallel(hidden, table, None, self.axis, dim)
        return par.vocab_parallel_cross_entropy(logits, target, self.axis, vocab_size=self.words)


def divided(shape: Shape, axis: par.Axis, sequence_parallel: bool) -> DividedGPT:
    sequence = {"sequence_parallel": sequence_parallel, "sequence_dim": 1}
    of_norm = axis if sequence_parallel else None

    def norm() -> nn.Module:
        kind = par.RMSNorm if shape.gated else par.LayerNorm
        return kind(shape.dim, of_norm)

    blocks: list[nn.Module] = [
        Block(
            [norm(), norm()],
            par.ParallelAttention(
                shape.dim, shape.heads, axis, shape.kv_heads, shape.bias, **sequence
            ),
            par.ParallelMLP(
                shape.dim,
                shape.hidden,
                axis,
                F.silu if shape.gated else F.gelu,
                shape.gated,
                shape.bias,
                **sequence,
            ),
        )
        for _ in range(shape.layers)
    ]
    embeddings = par.ParallelEmbeddings(shape.dim, shape.words, shape.positions, axis, **sequence)
    model = DividedGPT(embeddings, blocks, norm())
    model.axis, model.words, model.sequence_parallel = axis, shape.words, sequence_parallel
    return model
