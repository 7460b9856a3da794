"""Transformers with divided sequences, layers and data train as one process does."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from support.parallel import MARKS, adamw, mesh, same_state, train
from support.parallel_models import DividedGPT, Shape, divided, single
from torch import nn

import horoscale.torch as hvd
import horoscale.torch.parallel as par
from horoscale.torch.parallel.context.layouts import Layout

pytestmark = MARKS

SHAPE = Shape(dim=16, heads=8, kv_heads=4, hidden=20, positions=18)  # of which 17 are divided
SAMPLES = 4


def divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


def attend_over(model: DividedGPT, kind: str, made: par.Mesh, layout: Layout) -> None:
    attend = {"ring": par.ring_attention, "ulysses": par.ulysses_attention}[kind]
    for block in model.blocks:
        block.attention.attend = partial(attend, axis=made.cp, causal=True, layout=layout)


def loss_of_part(
    model: nn.Module, batch: torch.Tensor, made: par.Mesh, layout: Layout
) -> torch.Tensor:
    """The loss of this rank's tokens, such that the average over ranks is that of all tokens."""
    words, target = (
        par.shard_sequence(x, made.cp, 1, layout) for x in (batch[:, :-1], batch[:, 1:])
    )
    positions = par.position_ids(batch.shape[1] - 1, made.cp, layout)
    hidden = model.norm(model.blocks(model.embeddings(words, positions)))
    dim = 1 if model.sequence_parallel else None
    table = model.embeddings.word_embeddings.weight
    logits = par.column_parallel(hidden, table, None, made.tp, dim)
    loss = par.vocab_parallel_cross_entropy(
        logits, target, made.tp, reduction="sum", vocab_size=model.words
    )
    return loss / (SAMPLES * (batch.shape[1] - 1)) * made["dp", "cp"].size


@pytest.mark.parametrize(
    ("kind", "layout", "sequence_parallel"),
    [("ring", "zigzag", False), ("ring", "contiguous", True), ("ulysses", "zigzag", True)],
)
def test_three_steps_of_adamw(kind: str, layout: Layout, sequence_parallel: bool) -> None:
    for cp in divisors(hvd.size())[1:]:
        for tp in divisors(hvd.size() // cp):
            with mesh(tp=tp, cp=cp) as made:
                whole = single(SHAPE)
                model = divided(SHAPE, made.tp, sequence_parallel)
                attend_over(model, kind, made, layout)
                par.load_whole_state_dict(model, whole.state_dict())
                data = [torch.randint(SHAPE.words, (SAMPLES, SHAPE.positions)) for _ in range(3)]
                expected = train(whole, adamw(whole), lambda model, batch: model(batch), data)
                optimizer = par.DistributedOptimizer(adamw(model), model, made)
                loss_of = partial(loss_of_part, made=made, layout=layout)
                own = [batch.chunk(made.dp.size)[made.dp.rank] for batch in data]
                got = train(model, optimizer, loss_of, own)
                got = hvd.allreduce(torch.tensor(got), process_set=made["dp", "cp"].set).tolist()
                same_state(whole, model, expected, got)
                del optimizer
