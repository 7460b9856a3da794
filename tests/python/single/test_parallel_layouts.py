"""How sequences are divided among ranks, and attention block by block, without a job."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import horoscale.torch.parallel as par
from horoscale.torch.parallel.context import block, layouts

layout = st.sampled_from(layouts.LAYOUTS)
ranks = st.integers(1, 9)
length = st.integers(0, 60)


@given(length, ranks, layout)
def test_every_position_is_held_once(length: int, ranks: int, layout: layouts.Layout) -> None:
    held = layouts.order(length, ranks, layout)
    assert sorted(held.tolist()) == list(range(length))
    counts = layouts.lengths(length, ranks, layout)
    assert sum(counts) == length
    assert max(counts) - min(counts) <= (1 if layout == "contiguous" else 2)
    for rank, own in enumerate(held.split(counts)):
        assert torch.equal(own, own.sort().values), "a causal mask of one rank is a triangle"
        axis = par.Axis("cp", tuple(range(ranks)), rank, *([_Set()] if ranks > 1 else []))
        assert torch.equal(par.position_ids(length, axis, layout), own)
        x = torch.arange(length).view(1, length, 1)
        assert torch.equal(par.shard_sequence(x, axis, 1, layout).flatten(), own)


class _Set:
    """Stands in for a process set where nothing is sent."""

    ranks = None


@given(length, ranks, layout)
def test_what_is_visible_is_the_mask(length: int, ranks: int, layout: layouts.Layout) -> None:
    held = layouts.spans(length, ranks, layout)
    positions = [torch.tensor([i for one in own for i in one], dtype=torch.int64) for own in held]
    for own in range(ranks):
        for other in range(ranks):
            expected = positions[own][:, None] >= positions[other][None]
            mask = torch.zeros_like(expected)
            seen = layouts.visible(held, own, other)
            if seen is not None:
                part = mask[seen.queries, seen.keys]
                part[:] = True
                if seen.causal:
                    part.tril_()
            assert torch.equal(mask, expected), (own, other)


@given(length, st.booleans())
def test_halves_are_the_whole_once(length: int, causal: bool) -> None:
    times = torch.zeros(length, length)
    pairs = []
    for half in layouts.halves(layouts.Visible(slice(None), slice(None), causal), length):
        pairs.append(0)
        for seen in half:
            part = torch.ones_like(times[seen.queries, seen.keys])
            part = part.tril() if seen.causal else part
            times[seen.queries, seen.keys] += part
            pairs[-1] += int(part.sum())
    whole = torch.ones(length, length)
    assert torch.equal(times, whole.tril() if causal else whole)
    assert abs(pairs[0] - pairs[1]) <= length


@given(st.integers(1, 9), ranks)
def test_a_zigzag_gives_all_ranks_the_same_work(chunk: int, ranks: int) -> None:
    held = layouts.spans(2 * ranks * chunk, ranks, "zigzag")
    work = [sum(i + 1 for one in own for i in one) for own in held]
    assert len(set(work)) == 1


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.tuples(*(st.integers(1, 3) for _ in range(3))),
    queries=st.integers(0, 40),
    keys=st.integers(0, 40),
    size=st.integers(1, 9),
    causal=st.booleans(),
    kernel=st.booleans(),
    groups=st.booleans(),
)
def test_blocks_give_what_autograd_gives(
    sizes: tuple[int, int, int],
    queries: int,
    keys: int,
    size: int,
    causal: bool,
    kernel: bool,
    groups: bool,
) -> None:
    batch, key_heads, group = sizes
    keys = queries if causal else keys
    torch.manual_seed(queries + 41 * keys)
    shape = (batch, key_heads * group, queries, size)
    q, gradient = torch.randn(2, *shape, dtype=torch.float64)
    k, v = torch.randn(2, batch, key_heads, keys, size, dtype=torch.float64)
    softmax = block.Softmax(0.7, causal)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(block, "_HAS_KERNEL", kernel and block._HAS_KERNEL)
        patch.setattr(block, "_KERNEL_HAS_GROUPS", groups and block._KERNEL_HAS_GROUPS)
        result, sums = block.attend(q, k, v, softmax)
        gradients = block.attend_backward(gradient, q, k, v, result, sums, softmax)
    whole = [x.clone().requires_grad_() for x in (q, k, v)]
    wide = [x.repeat_interleave(group, 1) for x in whole[1:]]
    scores = 0.7 * whole[0] @ wide[0].mT
    if causal:
        scores = scores.masked_fill(~torch.ones(queries, keys, dtype=bool).tril(), -torch.inf)
    expected = scores.softmax(-1) @ wide[1]
    expected.backward(gradient)
    assert torch.allclose(sums, scores.logsumexp(-1), atol=1e-12)
    for ours, theirs in zip(
        (result, *gradients), (expected, *(x.grad for x in whole)), strict=True
    ):
        assert torch.allclose(ours, theirs, atol=1e-12)
