"""How dimensions and parameters are divided, without ranks."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from horoscale.common.process_sets import ProcessSet
from horoscale.torch.parallel import Axis, Shard, get_dim_for_local_rank, split_sizes


@given(st.integers(0, 200), st.integers(1, 9), st.integers(1, 7))
def test_sizes_add_up_in_multiples_and_are_as_equal_as_can_be(
    number: int, ranks: int, multiple_of: int
) -> None:
    sizes = split_sizes(number * multiple_of, ranks, multiple_of)
    assert sum(sizes) == number * multiple_of
    assert all(size % multiple_of == 0 for size in sizes)
    assert list(sizes) == sorted(sizes, reverse=True)
    assert sizes[0] - sizes[-1] in (0, multiple_of)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((7, 2, 0, 2), "a dimension of 7 is not a multiple of 2"),
        ((7, 2, 0, 0), "not a multiple of 0"),
        ((7, 2, 2), "rank 2 is not one of 2"),
        ((7, 2, -1), "rank -1 is not one of 2"),
    ],
)
def test_what_cant_be_divided(arguments: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        get_dim_for_local_rank(*arguments)


def axes(ranks: int) -> list[Axis]:
    """The axis as each of its ranks sees it; no other rank need exist."""
    everyone = ProcessSet(range(ranks)) if ranks > 1 else None
    return [Axis("tp", tuple(range(ranks)), rank, everyone) for rank in range(ranks)]


@given(
    st.integers(1, 5),
    st.integers(0, 6),
    st.sampled_from([(1,), (1, 1, 1), (2, 1, 1), (3, 1)]),
    st.integers(0, 1),
)
def test_shards_are_the_whole(ranks: int, unit: int, parts: tuple[int, ...], dim: int) -> None:
    """Also with several parts, of which each rank has the same share."""
    shape = [3, 3]
    shape[dim] = unit * sum(parts)
    whole = torch.arange(shape[0] * shape[1]).view(shape)
    sizes = tuple(size * parts[0] for size in split_sizes(unit, ranks))
    shards = [Shard(axis, dim, sizes, parts) for axis in axes(ranks)]
    pieces = [shard.of(whole) for shard in shards]
    assert [piece.shape[dim] for piece in pieces] == [s.extent(shape[dim]) for s in shards]
    for shard in shards:
        assert torch.equal(shard.whole(pieces), whole)
    for piece, size in zip(pieces, sizes, strict=True):  # the first part comes first
        first = piece.narrow(dim, 0, size)
        assert set(first.flatten().tolist()) <= set(
            whole.narrow(dim, 0, unit * parts[0]).flatten().tolist()
        )


def test_a_tensor_of_another_shape_is_refused() -> None:
    shard = Shard(axes(2)[0], 0, (4, 3))
    with pytest.raises(ValueError, match=r"dimension 0 of \(8, 2\) can't be divided into \(4, 3\)"):
        shard.of(torch.zeros(8, 2))
