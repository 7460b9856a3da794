"""A GPT in layers that any mesh can divide, and its training, interrupted by a checkpoint."""

from __future__ import annotations

from collections import OrderedDict
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from support.parallel_models import MLP, Attention, Block, Embeddings, Shape
from torch import nn

import horoscale.torch as hvd
import horoscale.torch.parallel as par

SHAPE = Shape(heads=8, kv_heads=4)  # uneven on 3 ranks
TABLE = "embed.word_embeddings.weight"


class Head(nn.Module):
    """From hidden values to this rank's logits, with the table of the embeddings."""

    def __init__(self, axis: par.Axis | None) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(SHAPE.dim)
        self.axis = axis
        own = SHAPE.words
        if axis is not None:
            sizes = par.split_sizes(SHAPE.words, axis.size)
            own = sizes[axis.rank]
            self.shards = {"weight": par.Shard(axis, 0, sizes)}
        self.weight = nn.Parameter(torch.zeros(own, SHAPE.dim))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(x)
        if self.axis is None:
            return x @ self.weight.T
        return par.column_parallel(x, self.weight, None, self.axis)


def layers_of(axis: par.Axis | None) -> OrderedDict[str, nn.Module]:
    """The layers of a model, divided or not; the table is tied."""

    def block() -> nn.Module:
        norms: list[nn.Module] = [nn.LayerNorm(SHAPE.dim), nn.LayerNorm(SHAPE.dim)]
        if axis is None:
            return Block(norms, Attention(SHAPE), MLP(SHAPE))
        attention = par.ParallelAttention(SHAPE.dim, SHAPE.heads, axis, SHAPE.kv_heads)
        return Block(norms, attention, par.ParallelMLP(SHAPE.dim, SHAPE.hidden, axis, F.gelu))

    embed: nn.Module = Embeddings(SHAPE)
    if axis is not None:
        embed = par.ParallelEmbeddings(SHAPE.dim, SHAPE.words, SHAPE.positions, axis)
    layers: OrderedDict[str, nn.Module] = OrderedDict(embed=_Words(embed))
    layers["embed"] = _Words(embed)
    for number in range(SHAPE.layers):
        layers[f"block{number}"] = block()
    layers["head"] = Head(axis)
    layers["head"].weight = layers["embed"].word_embeddings.weight
    return layers


class _Words(nn.Module):
    """Embeddings of words at positions from 0 on."""

    def __init__(self, embed: nn.Module) -> None:
        super().__init__()
        self.word_embeddings = embed.word_embeddings
        self.position_embeddings = embed.position_embeddings
        self._embed = [embed]  # not a child, so that names are equal in both kinds

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        embed = self._embed[0]
        if isinstance(embed, Embeddings):
            return embed(words)
        return embed(words, torch.arange(words.shape[1]))


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    words = torch.randint(SHAPE.words, (8, SHAPE.positions + 1), generator=generator)
    return words[:, :-1], words[:, 1:]


def adamw(model: Any, lr: float = 0.01) -> torch.optim.Optimizer:
    """Two groups with different hyperparameters; the table is in the first."""
    named = dict(model.named_parameters())
    vectors = [one for one in named.values() if one.dim() == 1]
    others = [one for one in named.values() if one.dim() != 1]
    groups = [{"params": others, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW([one for one in groups if one["params"]], lr=lr, eps=1e-5)


class OneProcess:
    """The training that all others are compared with."""

    def __init__(self, seed: int = 0, lr: float = 0.01) -> None:
        torch.manual_seed(seed)
        self.model = nn.Sequential(layers_of(None))
        for parameter in self.model.parameters():
            nn.init.normal_(parameter, std=0.3)
        self.optimizer: Any = adamw(self.model, lr)

    def step(self, number: int) -> float:
        words, targets = batch(number)
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(words).flatten(0, 1), targets.flatten())
        loss.backward()
        self.optimizer.step()
        return float(loss.detach())


class OnMesh:
    """The same on a mesh."""

    def __init__(self, mesh: par.Mesh, seed: int = 1, lr: float = 0.5) -> None:
        """Create a model with other values than those to be loaded."""
        self.mesh = mesh
        torch.manual_seed(seed)
        layers = layers_of(mesh.tp)
        self.model: Any
        if mesh.pp.size > 1:
            self.model = self._pipeline(layers)
            module = self.model.module
        else:
            self.model = module = nn.Sequential(layers)
        self.optimizer = par.DistributedOptimizer(adamw(module, lr), module, mesh)

    def _pipeline(self, layers: OrderedDict[str, nn.Module]) -> par.Pipeline:
        items = list(layers.items())
        cuts = [len(items) * one // self.mesh.pp.size for one in range(self.mesh.pp.size + 1)]
        # A copy in the last stage, which is another parameter.
        layers["head"].weight = nn.Parameter(layers["head"].weight.detach().clone())
        stages = [nn.Sequential(OrderedDict(items[begin:end])) for begin, end in pairwise(cuts)]
        return par.Pipeline(
            stages, self.mesh.pp, loss=self._loss, microbatches=1, tied=[[(0, TABLE), (-1, HEAD)]]
        )

    def _loss(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return par.vocab_parallel_cross_entropy(
            logits, targets, self.mesh.tp, vocab_size=SHAPE.words
        )

    def step(self, number: int) -> float:
        """Train a step; return the loss of the whole batch."""
        words, targets = (one.chunk(self.mesh.dp.size)[self.mesh.dp.rank] for one in batch(number))
        self.optimizer.zero_grad()
        if isinstance(self.model, par.Pipeline):
            loss = self.model.step(words, targets, sync_tied=False)
            self.optimizer.synchronize()
            self.model.sync_tied()
        else:
            loss = self._loss(self.model(words), targets)
            loss.backward()
            self.optimizer.synchronize()
        with self.optimizer.skip_synchronize():
            self.optimizer.step()
        loss = loss.detach()
        if self.mesh.dp.set is not None:
            loss = hvd.allreduce(loss, process_set=self.mesh.dp.set)
        return float(loss)

    def load_whole(self, state: dict[str, torch.Tensor]) -> None:
        """Begin with the values of one process."""
        if isinstance(self.model, par.Pipeline):
            for stage in self.model.stages.values():
                par.load_whole_state_dict(stage, state)
        else:
            par.load_whole_state_dict(self.model, state)

    def whole(self) -> dict[str, torch.Tensor]:
        """The whole values of this rank's stage."""
        if not isinstance(self.model, par.Pipeline):
            return par.whole_state_dict(self.model)
        found: dict[str, torch.Tensor] = {}
        for stage in self.model.stages.values():
            found |= par.whole_state_dict(stage)
        return found


HEAD = "head.weight"
