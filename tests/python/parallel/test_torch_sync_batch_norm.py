"""SyncBatchNorm: the ranks' results equal those of one process with all batches."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
from torch import nn

import horoscale.torch as hvd

CHANNELS = 3
SHAPES = {"flat": (), "sequence": (5,), "image": (4, 2), "volume": (2, 3, 2)}
PLAIN = {0: nn.BatchNorm1d, 1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}


def batches(inner: tuple[int, ...], rows: list[int], dtype: torch.dtype) -> list[torch.Tensor]:
    random = torch.Generator().manual_seed(3)
    return [(torch.randn(n, CHANNELS, *inner, generator=random) * 3 + 5).to(dtype) for n in rows]


def pair(inner: tuple[int, ...], dtype: torch.dtype, **options: Any) -> tuple[nn.Module, nn.Module]:
    """Our layer and the plain one, with the same parameters."""
    ours = hvd.SyncBatchNorm(CHANNELS, **options).to(dtype)
    plain = PLAIN[len(inner)](CHANNELS, **options).to(dtype)
    if ours.affine:
        with torch.no_grad():
            for layer in (ours, plain):
                layer.weight.copy_(torch.tensor([0.5, 1.0, 2.0]))
                layer.bias.copy_(torch.tensor([-1.0, 0.0, 3.0]))
    return ours, plain


def check(
    inner: tuple[int, ...], rows: list[int], dtype: torch.dtype = torch.float64, **options: Any
) -> None:
    """Two steps forward and backward; the loss weighs the values of each rank differently."""
    ours, plain = pair(inner, dtype, **options)
    for _ in range(2):
        inputs = batches(inner, rows, dtype)
        own = inputs[hvd.rank()].requires_grad_()
        everything = torch.cat([one.detach() for one in inputs]).requires_grad_()
        weights = torch.randn(everything.shape, generator=torch.Generator().manual_seed(4))
        first = sum(rows[: hvd.rank()])
        mine = slice(first, first + rows[hvd.rank()])
        expected = plain(everything)
        (expected.square() * weights.to(dtype)).sum().backward()
        output = ours(own)
        (output.square() * weights[mine].to(dtype)).sum().backward()
        assert output.dtype == dtype
        torch.testing.assert_close(output, expected[mine])
        torch.testing.assert_close(own.grad, everything.grad[mine])
    if ours.affine:
        for one, other in ((ours.weight, plain.weight), (ours.bias, plain.bias)):
            torch.testing.assert_close(hvd.allreduce(one.grad, op=hvd.Sum), other.grad)
    for name, buffer in plain.named_buffers():
        torch.testing.assert_close(ours.get_buffer(name), buffer)
    ours.eval()
    plain.eval()
    if ours.track_running_stats:
        torch.testing.assert_close(ours(everything), plain(everything))


def even() -> list[int]:
    return [4] * hvd.size()


@pytest.mark.conformance
@pytest.mark.parametrize("inner", SHAPES.values(), ids=SHAPES)
def test_shapes(inner: tuple[int, ...]) -> None:
    check(inner, even())


@pytest.mark.conformance
def test_unequal_batches() -> None:
    check((2,), [1 + 3 * rank for rank in range(hvd.size())])


def test_empty_batch(need_ranks: None) -> None:
    check((2,), [4] * (hvd.size() - 1) + [0])


@pytest.mark.parametrize(
    "options",
    [
        {"affine": False},
        {"momentum": None},
        {"momentum": 0.5, "eps": 0.1},
        {"track_running_stats": False},
    ],
    ids=str,
)
def test_options(options: dict[str, Any]) -> None:
    check((4, 2), even(), **options)


def test_float32() -> None:
    check((4, 2), even(), torch.float32)


def test_half_precision() -> None:
    ours = hvd.SyncBatchNorm(CHANNELS)
    plain = nn.BatchNorm1d(CHANNELS)
    inputs = batches((), even(), torch.bfloat16)
    output = ours(inputs[hvd.rank()])
    assert output.dtype == torch.bfloat16
    expected = plain(torch.cat(inputs).float()).chunk(hvd.size())[hvd.rank()]
    torch.testing.assert_close(output.float(), expected, rtol=0.02, atol=0.02)


def test_large_mean_and_small_deviation() -> None:
    """The squares of such values differ in digits beyond float32's."""
    ours = hvd.SyncBatchNorm(1, eps=0.0)
    own = 10_000.0 + torch.tensor([[-1.0], [1.0]])
    torch.testing.assert_close(ours(own), torch.tensor([[-1.0], [1.0]]), rtol=1e-3, atol=0.0)


def test_one_value_in_all(need_ranks: None) -> None:
    ours = hvd.SyncBatchNorm(CHANNELS)
    rows = 1 if hvd.rank() == 0 else 0
    with pytest.raises(ValueError, match="more than one value"):
        ours(torch.ones(rows, CHANNELS))


def test_wrong_input() -> None:
    with pytest.raises(ValueError, match=r"\(batch, 3"):
        hvd.SyncBatchNorm(CHANNELS)(torch.ones(4, 2))


def test_copies_and_process_sets(need_ranks: None) -> None:
    file = io.BytesIO()
    torch.save(hvd.SyncBatchNorm(CHANNELS), file)
    file.seek(0)
    for layer in (torch.load(file, weights_only=False), copy.deepcopy(hvd.SyncBatchNorm(CHANNELS))):
        assert layer.process_set is hvd.global_process_set
    others = hvd.add_process_set(range(1, hvd.size()))
    layer = hvd.SyncBatchNorm(CHANNELS, process_set=others)
    assert copy.deepcopy(layer).process_set is others  # none survives its removal
    if others.included():
        inputs = batches((), even(), torch.float64)
        output = hvd.SyncBatchNorm(CHANNELS, process_set=others).double()(inputs[hvd.rank()])
        expected = nn.BatchNorm1d(CHANNELS).double()(torch.cat(inputs[1:]))
        own = expected.chunk(hvd.size() - 1)[hvd.rank() - 1]
        torch.testing.assert_close(output, own)
    assert hvd.remove_process_set(others)


def test_after_a_rank_has_joined(need_ranks: None) -> None:
    inputs = batches((), even(), torch.float64)
    if hvd.rank() != 0:
        output = hvd.SyncBatchNorm(CHANNELS).double()(inputs[hvd.rank()])
        expected = nn.BatchNorm1d(CHANNELS).double()(torch.cat(inputs[1:]))
        torch.testing.assert_close(output, expected.chunk(hvd.size() - 1)[hvd.rank() - 1])
    hvd.join()
