"""Embeddings and cross entropy with a divided vocabulary, compared with one process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from support.parallel import EXACT, MARKS, mesh, same_training
from torch import nn

import horoscale.torch as hvd
import horoscale.torch.parallel as par

pytestmark = MARKS

WORDS = 13  # not divisible by any number of ranks
WIDTH = 6


@pytest.fixture
def axis() -> Iterator[par.Axis]:
    with mesh(tp=hvd.size()) as made:
        yield made.tp


class Single(nn.Module):
    """Words and positions; the output uses the same table."""

    def __init__(self, padding_idx: int | None) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(WORDS, WIDTH, padding_idx)
        self.position_embeddings = nn.Embedding(20, WIDTH)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(words.shape[1])
        return self.word_embeddings(words) + self.position_embeddings(positions)


@pytest.mark.parametrize("padding_idx", [None, 0, -1])
@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_tied_embeddings_train_as_one_process(
    axis: par.Axis, padding_idx: int | None, sequence_parallel: bool, smoothing: float
) -> None:
    single = Single(padding_idx)
    divided = par.ParallelEmbeddings(
        WIDTH, WORDS, 20, axis, padding_idx, sequence_parallel, sequence_dim=1
    )
    batches = [torch.randint(WORDS, (3, 9)) for _ in range(3)]

    def loss_of(model: nn.Module, words: torch.Tensor) -> torch.Tensor:
        logits = torch.tanh(model(words)) @ model.word_embeddings.weight.T
        return F.cross_entropy(
            logits.flatten(0, 1), words.roll(1, 1).flatten(), label_smoothing=smoothing
        )

    def divided_loss(model: nn.Module, words: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(model(words))
        logits = par.column_parallel(
            hidden,
            model.word_embeddings.weight,
            None,
            axis,
            1 if sequence_parallel else None,
        )
        return par.vocab_parallel_cross_entropy(
            logits, words.roll(1, 1), axis, label_smoothing=smoothing, vocab_size=WORDS
        )

    same_training(single, divided, loss_of, batches, divided_loss)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("scale", [1.0, 300.0])
def test_cross_entropy(axis: par.Axis, reduction: str, smoothing: float, scale: float) -> None:
    """Even for logits whose exponentials would overflow."""
    logits = (scale * torch.randn(5, 4, WORDS)).requires_grad_()
    target = torch.randint(WORDS, (5, 4))
    target[1, 2] = target[4, 0] = -100
    weights = torch.randn(5, 4) if reduction == "none" else torch.tensor(2.0)
    expected = F.cross_entropy(
        logits.flatten(0, 1), target.flatten(), label_smoothing=smoothing, reduction=reduction
    ).view(weights.shape)
    [of_logits] = torch.autograd.grad(expected, logits, weights)
    own = par.scatter_to(logits.detach(), axis).requires_grad_()
    loss = par.vocab_parallel_cross_entropy(
        own, target, axis, smoothing, reduction=reduction, vocab_size=WORDS
    )
    torch.testing.assert_close(loss, expected, **EXACT)
    [gradient] = torch.autograd.grad(loss, own, weights)
    torch.testing.assert_close(par.gather_from(gradient, axis), of_logits, **EXACT)


def test_cross_entropy_of_words_that_are_impossible(axis: par.Axis) -> None:
    """One rank has only impossible words; the maximum elsewhere is far below 0."""
    logits = torch.full((3, WORDS), -torch.inf)
    first = par.split_sizes(WORDS, axis.size)[0]
    logits[:, :first] = -1000 + torch.randn(3, first)
    target = torch.tensor([0, 1, 2])
    own = par.scatter_to(logits, axis)
    loss = par.vocab_parallel_cross_entropy(own, target, axis, vocab_size=WORDS)
    torch.testing.assert_close(loss, F.cross_entropy(logits, target), **EXACT)


def test_cross_entropy_of_more_ranks_than_words(axis: par.Axis) -> None:
    logits, target = torch.randn(3, 1), torch.zeros(3, dtype=torch.int64)
    own = par.scatter_to(logits, axis).requires_grad_()
    loss = par.vocab_parallel_cross_entropy(own, target, axis, 0.1, vocab_size=1)
    assert loss.detach().abs() < 1e-12
    loss.backward()


def test_cross_entropy_in_half_precision(axis: par.Axis) -> None:
    logits = torch.randn(7, WORDS).bfloat16()
    target = torch.randint(WORDS, (7,))
    own = par.scatter_to(logits, axis).requires_grad_()
    loss = par.vocab_parallel_cross_entropy(own, target, axis, vocab_size=WORDS)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, F.cross_entropy(logits.float(), target))
    loss.backward()
    assert own.grad.dtype == torch.bfloat16


def test_what_does_not_fit_is_named(axis: par.Axis, need_ranks: None) -> None:
    logits, target = torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"logits of \(2, 3\) on axis tp need a target of \(2,\)"):
        par.vocab_parallel_cross_entropy(logits, target[:1], axis)
    with pytest.raises(ValueError, match=r"the logits of 3 words, but its share of "):
        par.vocab_parallel_cross_entropy(logits, target, axis, vocab_size=1000)
    with pytest.raises(IndexError, match=r"target -1 is not one of the \d+ words"):
        par.vocab_parallel_cross_entropy(logits, target - 1, axis)
    with pytest.raises(ValueError, match=r"label_smoothing=2 "):
        par.vocab_parallel_cross_entropy(logits, target, axis, label_smoothing=2)
    own = torch.zeros(2, 5 if axis.rank else 3)  # wrong on one rank, reported on all
    with pytest.raises(
        ValueError, match=r"rank 0 of axis tp has the logits of 3 words, but its share of .* 5"
    ):
        par.vocab_parallel_cross_entropy(own, target, axis, vocab_size=5 * axis.size)
    own = torch.zeros(2, 3 if axis.rank else 4)
    with pytest.raises(ValueError, match=r"ranks of axis tp have logits for \[.*give vocab_size"):
        par.vocab_parallel_cross_entropy(own, target, axis)
    table = par.VocabParallelEmbedding(WORDS, 4, axis)
    with pytest.raises(IndexError, match="13 is not one of the 13 words"):
        table(torch.tensor([0, 13]))
    with pytest.raises(ValueError, match="1 words can't be divided among the"):
        par.VocabParallelEmbedding(1, 4, axis)
    with pytest.raises(ValueError, match="padding_idx=13 is not one of 13 words"):
        par.VocabParallelEmbedding(WORDS, 4, axis, padding_idx=13)
    with pytest.raises(ValueError, match="reduction='some'"):
        par.VocabParallelEmbedding(WORDS, 4, axis, reduction="some")
