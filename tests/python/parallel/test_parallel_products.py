"""Every combination of tensor, context, pipeline and data parallelism trains as one process."""

from __future__ import annotations

import itertools
import math
from functools import partial

import pytest
import torch
from support.parallel import EXACT, MARKS, adamw, close, mesh, named, train
from support.parallel_models import DividedGPT, Shape, divided, single
from torch import nn

import horoscale.torch as hvd
import horoscale.torch.parallel as par

pytestmark = MARKS

SAMPLES, MICROBATCHES = 24, 2
AXES = ("tp", "cp", "pp", "dp")
# Positions (one fewer is input), which neither 2 nor 4 ranks divide evenly; layers for 4 stages.
SIZES = {"layers": 4, "dim": 16, "heads": 8, "kv_heads": 4, "hidden": 22, "positions": 12}
SHAPES = {"gpt": Shape(**SIZES), "llama": Shape(**SIZES, gated=True, bias=False)}
SCHEDULES = {"gpt": "1f1b", "llama": "zb-h1"}
TABLE = "embeddings.word_embeddings.weight"


def products() -> list[dict[str, int]]:
    """All ways to write the number of ranks as a product of four extents."""
    divisors = [n for n in range(1, hvd.size() + 1) if hvd.size() % n == 0]
    extents = itertools.product(divisors, repeat=len(AXES))
    return [dict(zip(AXES, one, strict=True)) for one in extents if math.prod(one) == hvd.size()]


class Stage(nn.Module):
    """Some blocks of a transformer, with their names in the whole model."""

    def __init__(self, whole: DividedGPT, made: par.Mesh, number: int) -> None:
        super().__init__()
        blocks = list(whole.blocks)
        own = range(*par.division.bounds(par.split_sizes(len(blocks), made.pp.size), number))
        self.blocks = nn.ModuleDict({str(index): blocks[index] for index in own})
        self.positions = par.position_ids(SIZES["positions"] - 1, made.cp)
        self.dim = 1 if whole.sequence_parallel else None
        self.tp = made.tp
        if number == 0:
            self.embeddings = whole.embeddings
        if number == made.pp.size - 1:
            self.norm = whole.norm
            self.table = nn.Parameter(whole.embeddings.word_embeddings.weight.detach().clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if hasattr(self, "embeddings"):
            x = self.embeddings(x, self.positions)
        for block in self.blocks.values():
            x = block(x)
        if not hasattr(self, "table"):
            return x
        return par.column_parallel(self.norm(x), self.table, None, self.tp, self.dim)


class Trainer:
    """Trains a model divided over all axes of a mesh."""

    def __init__(self, kind: str, sequence_parallel: bool, made: par.Mesh, state: dict) -> None:
        shape = SHAPES[kind]
        whole = divided(shape, made.tp, sequence_parallel)
        par.load_whole_state_dict(whole, state)
        self.mesh, self.words = made, shape.words
        if made.cp.size > 1:
            for block in whole.blocks:
                block.attention.attend = partial(par.ring_attention, axis=made.cp, causal=True)
        self.pipe = par.Pipeline(
            [partial(Stage, whole, made, number) for number in range(made.pp.size)],
            made.pp,
            loss=self.loss,
            schedule=SCHEDULES[kind],
            microbatches=MICROBATCHES,
            tied=[[(0, TABLE), (-1, "table")]],
        )
        self.optimizer = par.DistributedOptimizer(
            adamw(self.pipe.module),
            self.pipe.module,
            made,
            backward_passes_per_step=MICROBATCHES,
        )

    def loss(self, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """The mean over all positions of these samples, once averaged over cp."""
        loss = par.vocab_parallel_cross_entropy(
            logits, target, self.mesh.tp, reduction="sum", vocab_size=self.words
        )
        return loss / (len(target) * (SIZES["positions"] - 1)) * self.mesh.cp.size

    def step(self, batch: torch.Tensor) -> float:
        self.optimizer.zero_grad()
        own = batch.chunk(self.mesh.dp.size)[self.mesh.dp.rank]
        parts = (par.shard_sequence(x, self.mesh.cp) for x in (own[:, :-1], own[:, 1:]))
        loss = self.pipe.step(*parts, sync_tied=False)
        self.optimizer.synchronize()
        self.pipe.sync_tied()
        with self.optimizer.skip_synchronize():
            self.optimizer.step()
        same = self.mesh["dp", "cp"].set
        return float(loss if same is None else hvd.allreduce(loss, process_set=same))

    def whole(self, of_stage: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The values of all stages, under the names of the undivided model."""
        own = {name.partition(".")[2]: value for name, value in of_stage.items()}
        of_pp = self.mesh.pp.set
        stages = [own] if of_pp is None else hvd.allgather_object(own, process_set=of_pp)
        found = {name: value for one in stages for name, value in one.items()}
        sizes = par.split_sizes(self.words, self.mesh.tp.size)
        rows = slice(*par.division.bounds(sizes, self.mesh.tp.rank))
        torch.testing.assert_close(found.pop("table"), found[TABLE][rows], rtol=0, atol=0)
        return found


@pytest.mark.parametrize("kind", list(SHAPES))
def test_three_steps_of_adamw(kind: str) -> None:
    for extents in products():
        sequence_parallel = kind == "llama" and extents["tp"] > 1
        with mesh(**extents) as made:
            alone = single(SHAPES[kind])
            trainer = Trainer(kind, sequence_parallel, made, alone.state_dict())
            words = SHAPES[kind].words
            data = [torch.randint(words, (SAMPLES, SIZES["positions"])) for _ in range(3)]
            expected = train(alone, adamw(alone), lambda model, batch: model(batch), data)
            got = [trainer.step(batch) for batch in data]
            torch.testing.assert_close(torch.tensor(got), torch.tensor(expected), **EXACT)
            gradients = {name: one.grad for name, one in named(alone).items()}
            close(trainer.whole(par.whole_gradients(trainer.pipe.module)), gradients)
            state = trainer.whole(par.whole_state_dict(trainer.pipe.module))
            close(state, dict(alone.state_dict()))
            del trainer


def test_all_products_are_there() -> None:
    assert len(products()) == {2: 4, 3: 4, 4: 10}[hvd.size()]
