"""Attention over a divided sequence equals that of one process."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest
import torch

import horoscale.torch as hvd
import horoscale.torch.parallel as par
from horoscale.torch.parallel.context import block, layouts

TOLERANCE = 1e-10
KINDS = {"ring": par.ring_attention, "ulysses": par.ulysses_attention}


@pytest.fixture(autouse=True)
def together() -> Iterator[None]:
    """Wait at the end, so that no rank leaves while others still exchange messages."""
    yield
    hvd.barrier()


def axis_of(process_set: hvd.ProcessSet) -> par.Axis | None:
    """The ranks of a set, if this one is a member."""
    return par.Axis.of(process_set, "cp") if process_set.included() else None


def tensors(seed: int, *shapes: tuple[int, ...], dtype: torch.dtype = torch.float64) -> list:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=dtype) for shape in shapes]


def whole_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float | None
) -> torch.Tensor:
    """By definition, in one process."""
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    scores = q @ k.mT * (q.shape[3] ** -0.5 if scale is None else scale)
    if causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        scores = scores.masked_fill(~seen, -torch.inf)
    return scores.softmax(-1) @ v


def difference(
    attention: Callable[..., torch.Tensor],
    axis: par.Axis,
    whole: list[torch.Tensor],
    gradient: torch.Tensor,
    causal: bool,
    layout: layouts.Layout,
    scale: float | None,
) -> float:
    """The largest difference of results and gradients from one process."""
    whole = [x.requires_grad_() for x in whole]
    expected = whole_attention(*whole, causal, scale)
    expected.backward(gradient)
    shards = [par.shard_sequence(x.detach(), axis, 2, layout).requires_grad_() for x in whole]
    result = attention(*shards, axis, causal=causal, layout=layout, scale=scale)
    result.backward(par.shard_sequence(gradient, axis, 2, layout))
    pairs = [(result, expected), *((x.grad, y.grad) for x, y in zip(shards, whole, strict=True))]
    return max(
        (par.unshard_sequence(x.detach(), axis, 2, layout) - y).abs().max().item() for x, y in pairs
    )


@pytest.mark.conformance
@pytest.mark.parametrize("kernel", [True, False], ids=["kernel", "products"])
@pytest.mark.parametrize("kind", KINDS)
def test_is_exact(
    kind: str, kernel: bool, process_set: hvd.ProcessSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not kernel:
        monkeypatch.setattr(block, "_HAS_KERNEL", False)
    axis = axis_of(process_set)
    if axis is None:
        return
    for seed in range(24):
        choose = random.Random(seed)
        key_heads = choose.randint(1, 3) + (axis.size if kind == "ulysses" else 0)
        heads = key_heads * choose.randint(1, 3)
        length = choose.choice([1, 2, 5, axis.size, choose.randint(3, 60), 8 * axis.size])
        batch, size = choose.randint(1, 3), choose.choice([1, 4, 5, 16])
        causal, layout = choose.random() < 0.7, choose.choice(layouts.LAYOUTS)
        scale = choose.choice([None, 0.3])
        of_queries, of_keys = (batch, heads, length, size), (batch, key_heads, length, size)
        q, k, v, gradient = tensors(seed, of_queries, of_keys, of_keys, of_queries)
        assert (
            difference(KINDS[kind], axis, [q, k, v], gradient, causal, layout, scale) < TOLERANCE
        ), (seed, of_queries, of_keys, causal, layout)


@pytest.mark.parametrize("kind", KINDS)
def test_shards_of_any_length_without_a_mask(kind: str) -> None:
    axis = par.Axis.of(hvd.global_process_set, "cp")
    lengths = [3 * rank % 4 for rank in range(axis.size)]  # none on rank 0
    others = [2 * rank + 1 for rank in range(axis.size)]  # queries of another sequence
    heads = axis.size
    q, k, v = tensors(1, *((2, heads, sum(n), 8) for n in (others, lengths, lengths)))
    own = [x.split(n, 2)[axis.rank] for x, n in ((q, others), (k, lengths), (v, lengths))]
    result = KINDS[kind](*own, axis)
    if axis.size == 1:  # no keys
        assert not result.any()
        return
    expected = whole_attention(q, k, v, causal=False, scale=None).split(others, 2)[axis.rank]
    assert (result - expected).abs().max() < TOLERANCE


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.04), (torch.float16, 0.01)]
)
def test_shorter_types(kind: str, dtype: torch.dtype, tolerance: float) -> None:
    axis = par.Axis.of(hvd.global_process_set, "cp")
    shape = (1, 2 * axis.size, 40, 8)
    whole = [x.to(dtype).double() for x in tensors(2, shape, shape, shape)]
    expected = whole_attention(*whole, causal=True, scale=None)
    shards = [par.shard_sequence(x.to(dtype), axis, 2, "zigzag").requires_grad_() for x in whole]
    result = KINDS[kind](*shards, axis, causal=True, layout="zigzag")
    result.sum().backward()
    assert result.dtype == shards[1].grad.dtype == dtype
    assert (par.unshard_sequence(result.detach(), axis, 2) - expected).abs().max() < tolerance


def test_layers_with_several_calls_before_one_backward_pass() -> None:
    axis = par.Axis.of(hvd.global_process_set, "cp")
    shape = (1, 2, 13, 4)
    (whole,) = tensors(3, shape)

    def model(x: torch.Tensor, attend: Callable[..., torch.Tensor]) -> torch.Tensor:
        first = attend(x, x.sin(), x.cos())
        return attend(first, first * x, x) + attend(x, first, first)

    expected = whole.clone().requires_grad_()
    model(expected, lambda q, k, v: whole_attention(q, k, v, True, None)).square().sum().backward()
    own = par.shard_sequence(whole, axis, 2).requires_grad_()
    model(own, lambda *qkv: par.ring_attention(*qkv, axis, causal=True)).square().sum().backward()
    assert (par.unshard_sequence(own.grad, axis, 2) - expected.grad).abs().max() < TOLERANCE


def test_checkpoints_compute_it_again() -> None:
    axis = par.Axis.of(hvd.global_process_set, "cp")
    (whole,) = tensors(4, (1, 2, 12, 4))

    def gradient(*, again: bool) -> torch.Tensor:
        x = par.shard_sequence(whole, axis, 2).requires_grad_()

        def attend(x: torch.Tensor) -> torch.Tensor:
            return par.ring_attention(x, x, x, axis, causal=True)

        result = (
            torch.utils.checkpoint.checkpoint(attend, x, use_reentrant=False)
            if again
            else attend(x)
        )
        result.square().sum().backward()
        return x.grad

    assert torch.equal(gradient(again=True), gradient(again=False))


@pytest.mark.parametrize("layout", layouts.LAYOUTS)
def test_sequences_are_divided_and_put_together(layout: layouts.Layout) -> None:
    axis = par.Axis.of(hvd.global_process_set, "cp")
    for length in (0, 1, 7, 4 * axis.size):
        whole = torch.arange(3.0 * length).view(3, length).requires_grad_()
        shard = par.shard_sequence(whole, axis, -1, layout)
        ids = par.position_ids(length, axis, layout)
        assert torch.equal(shard, whole[:, ids])
        again = par.unshard_sequence(shard, axis, -1, layout)
        assert torch.equal(again, whole)
        again.square().sum().backward()
        expected = torch.zeros(3, length)
        expected[:, ids] = 2 * whole.detach()[:, ids]
        assert torch.equal(whole.grad, expected)


@pytest.mark.usefixtures("need_ranks")
def test_ranks_that_contradict_each_other_are_told() -> None:
    axis = par.Axis.of(hvd.global_process_set, "cp")
    x = torch.ones(1, 8, 4, 2)
    first = axis.rank == 0
    other = x.double() if first else x
    short = x[:, :, :1] if axis.rank == axis.size - 1 else x
    for kind in KINDS.values():
        with pytest.raises(
            hvd.MismatchError, match=r"'cp' differ in causal: True on rank 0, False"
        ):
            kind(x, x, x, axis, causal=first)
        with pytest.raises(hvd.MismatchError, match=r"differ in scale: 0\.5 on rank 0, 0\.25 on"):
            kind(x, x, x, axis, scale=0.5 if first else 0.25)
        with pytest.raises(hvd.MismatchError, match="differ in the dtype: float64 on rank 0"):
            kind(other, other, other, axis)
        with pytest.raises(hvd.MismatchError, match="whether gradients are needed: True on rank 0"):
            kind(x.clone().requires_grad_(first), x, x, axis)
        with pytest.raises(
            hvd.MismatchError, match=r"hold \[4, .*shard_sequence\(\) divides it so"
        ):
            kind(short, short, short, axis, causal=True, layout="zigzag")
        assert torch.allclose(kind(x, x, x, axis), x)  # and they continue


def test_wrong_arguments() -> None:
    axis = par.Axis.of(hvd.global_process_set, "cp")
    x = torch.ones(1, 2, 3, 4)
    for kind in KINDS.values():
        for q, k, v, said in (
            (x[0], x, x, r"\(batch, heads, positions, size of a head\) are needed: q \(2, 3, 4\)"),
            (x, x, x[:, :1], r"don't go together: q .*v \(1, 1, 3, 4\)"),
            (x[:, :1], x, x, "heads of k and v have to divide those of q"),
            (x, x.double(), x, r"one floating-point dtype is needed: .*k torch\.float64"),
        ):
            with pytest.raises(ValueError, match=said):
                kind(q, k, v, axis)
        with pytest.raises(ValueError, match="causal needs as many queries as keys"):
            kind(x, x[:, :, :2], x[:, :, :2], axis, causal=True)
        with pytest.raises(ValueError, match="layout='spiral' is not one of zigzag, contiguous"):
            kind(x, x, x, axis, layout="spiral")
    if axis.size > 2:
        with pytest.raises(ValueError, match=r"2 heads of k and v can't be .* axis 'cp': ring_att"):
            par.ulysses_attention(x, x, x, axis)


def test_gradients_of_gradients_are_refused() -> None:
    axis = par.Axis.of(hvd.global_process_set, "cp")
    x = torch.ones(1, 1, 4, 2, requires_grad=True)
    result = par.ring_attention(x, x, x, axis)
    with pytest.raises(RuntimeError, match="create_graph=True is refused"):
        torch.autograd.grad(result.sum(), x, create_graph=True)


@pytest.mark.parametrize("kind", KINDS)
def test_features_that_are_not_side_by_side(kind: str) -> None:
    axis = par.Axis.of(hvd.global_process_set, "cp")
    shape = (2, 4 * axis.size, 8 * axis.size, 16)
    whole = [x.mT.contiguous().mT for x in tensors(11, shape, shape, shape)]
    own = [par.shard_sequence(x, axis, 2) for x in whole]
    own = [x.mT.contiguous().mT.requires_grad_() for x in own]
    assert own[0].stride(-1) != 1
    gradient = torch.ones(()).double().expand(own[0].shape)
    result = KINDS[kind](*own, axis, causal=True, layout="zigzag")
    result.backward(gradient)
    for x in whole:
        x.requires_grad_()
    expected = whole_attention(*whole, True, None)
    expected.sum().backward()
    for mine, theirs in [
        (result, expected),
        *((x.grad, y.grad) for x, y in zip(own, whole, strict=True)),
    ]:
        difference = mine - par.shard_sequence(theirs, axis, 2)
        assert float(difference.detach().abs().max()) < TOLERANCE
