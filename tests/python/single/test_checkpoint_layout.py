"""The boxes of a whole tensor that ranks hold, and which rank writes which; without ranks."""

from __future__ import annotations

import random

import pytest

torch = pytest.importorskip("torch")

from horoscale.torch.parallel import Axis, CheckpointError, Shard  # noqa: E402
from horoscale.torch.parallel.checkpoint.layout import (  # noqa: E402
    Box,
    Layout,
    boxes_of_range,
)
from horoscale.torch.parallel.checkpoint.sharing import HeldThere, Told, share  # noqa: E402


class Ranks(Axis):
    """An axis whose process set is unused."""

    def __post_init__(self) -> None:
        pass


def rebuilt(pieces: list, shape: tuple[int, ...]) -> torch.Tensor:
    """The whole tensor of these pieces, which must contain each element once."""
    whole = torch.full(shape, -1.0)
    times = torch.zeros(shape)
    for piece in pieces:
        assert piece.tensor.shape == piece.box.sizes
        piece.box.of(whole).copy_(piece.tensor)
        piece.box.of(times).add_(1)
    assert (times == 1).all()
    return whole


def shape_of(generator: random.Random, dims: int) -> tuple[int, ...]:
    return tuple(generator.randint(1, 5) for _ in range(dims))


@pytest.mark.parametrize("seed", range(40))
def test_ranges_of_flattened_tensors(seed: int) -> None:
    generator = random.Random(seed)
    shape = shape_of(generator, generator.randint(0, 4))
    whole = torch.arange(float(torch.Size(shape).numel())).view(shape)
    cuts = sorted(generator.randint(0, whole.numel()) for _ in range(3))
    pieces = []
    for begin, end in zip([0, *cuts], [*cuts, whole.numel()], strict=True):
        assert len(boxes_of_range(shape, begin, end)) <= max(1, 2 * len(shape) - 1)
        layout = Layout.of_whole(shape).of_range(begin, end)
        pieces += layout.pieces(whole.flatten()[begin:end])
    assert torch.equal(rebuilt(pieces, shape), whole)


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("transposed", [False, True])
def test_ranges_of_flattened_shards(seed: int, transposed: bool) -> None:
    """Further divides the shards of tensor parallelism by their flattened elements."""
    generator = random.Random(seed)
    dims = 2 if transposed else generator.randint(1, 3)
    dim = generator.randrange(dims)
    ranks = generator.randint(1, 4)
    parts = (2, 1, 1) if generator.random() < 0.5 else (1,)
    sizes = (*(generator.choice([0, 2, 4]) for _ in range(ranks - 1)), 2)
    shape = list(shape_of(generator, dims))
    shape[dim] = sum(sizes) * sum(parts) // parts[0]
    whole = torch.arange(float(torch.Size(shape).numel())).view(shape)
    pieces = []
    for rank in range(ranks):
        shard = Shard(Ranks("tp", tuple(range(ranks)), rank), dim, sizes, parts)
        local = shard.of(whole)
        layout = Layout.of_shard(shard, local.shape)
        assert layout.whole == tuple(shape)
        layout = layout.transposed() if transposed else layout
        cut = generator.randint(0, local.numel())
        flat = local.flatten()
        pieces += layout.of_range(0, cut).pieces(flat[:cut])
        pieces += layout.of_range(cut, len(flat)).pieces(flat[cut:])
    expected = whole.t() if transposed else whole
    assert torch.equal(rebuilt(pieces, tuple(expected.shape)), expected)


def test_shapes_that_do_not_fit() -> None:
    shard = Shard(Ranks("tp", (0, 1), 1), 0, (3, 2))
    with pytest.raises(ValueError, match=r"has 3 of dimension 0, but rank 1 of axis tp gets 2 of"):
        Layout.of_shard(shard, (3, 4))
    with pytest.raises(ValueError, match=r"it has the shape \(4,\), and not \(2, 2\)"):
        Layout.of_whole((2, 2)).pieces(torch.zeros(4))
    with pytest.raises(ValueError, match="range 3 to 5 is none of a shard"):
        Layout.of_whole((2, 2)).of_range(3, 5)


def test_tiles_are_all_of_a_box() -> None:
    box = Box((3, 0, 5), (7, 64, 9))
    tiles = box.tiles(100)
    assert all(one.numel <= 100 for one in tiles)
    assert sum(one.numel for one in tiles) == box.numel
    assert all(one.intersection(box) == one for one in tiles)
    pairs = [(one, other) for one in tiles for other in tiles if one is not other]
    assert not any(one.intersection(other) for one, other in pairs)
    assert Box((), ()).tiles(1) == [Box((), ())]


@pytest.mark.parametrize("seed", range(40))
def test_what_a_box_has_without_another(seed: int) -> None:
    generator = random.Random(seed)

    def box(dims: int) -> Box:
        offsets = [generator.randint(0, 4) for _ in range(dims)]
        return Box(tuple(offsets), tuple(generator.randint(1, 4) for _ in range(dims)))

    dims = generator.randint(0, 3)
    one, other = box(dims), box(dims)
    expected = torch.zeros((8,) * dims)
    one.of(expected).fill_(1)
    other.of(expected).fill_(0)
    found = torch.zeros((8,) * dims)
    for rest in one.without(other):
        rest.of(found).add_(1)
    assert torch.equal(found, expected)


def held(key: str, boxes: list[Box], shape: tuple[int, ...] = (8,), **changes) -> HeldThere:
    plain = HeldThere([key], shape, torch.float32, boxes, 0, False, False)
    return plain._replace(**changes)


def test_replicas_are_dealt_out_evenly() -> None:
    replica = held("model.w", [Box((0,), (8,))])
    own = [held(f"model.own{rank}", [Box((0,), (8,))]) for rank in range(2)]
    # Only the first rank has 8 more elements: it writes none of the replica.
    told = [Told([replica, own[0]], []), Told([replica], []), Told([replica], [])]
    work = share(told, tile_bytes=8)
    assert {tile.rank for tile in work.tensors["model.w"].tiles} == {1, 2}
    loads = [sum(t.box.numel for t in work.tensors["model.w"].tiles if t.rank == r) for r in (1, 2)]
    assert loads == [4, 4]


@pytest.mark.parametrize(
    ("boxes", "changes", "message"),
    [
        ([Box((0,), (3,)), Box((4,), (4,))], {}, "model.w: the ranks together have 7 of its 8"),
        ([Box((0,), (5,)), Box((4,), (4,))], {}, "model.w: ranks have parts that overlap"),
        ([Box((0,), (4,)), Box((4,), (4,))], {"shape": (9,)}, r"the shape \(9,\) on rank 1"),
        ([Box((0,), (4,)), Box((4,), (4,))], {"dtype": torch.int8}, "the dtype torch.int8 on rank"),
        ([Box((0,), (8,)), Box((0,), (8,))], {"stage": 1}, "stages 0 and 1 both have 'w'"),
    ],
)
def test_parts_that_make_no_whole(boxes: list[Box], changes: dict, message: str) -> None:
    told = [
        Told([held("model.w", boxes[:1])], []),
        Told([held("model.w", boxes[1:], **changes)], []),
    ]
    with pytest.raises(CheckpointError, match=message):
        share(told, None)
