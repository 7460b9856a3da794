"""Meshes on ranks: their axes are working process sets."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import pytest
import torch

import horoscale.torch as hvd
import horoscale.torch.parallel as par
from horoscale.torch.parallel import mesh as module

pytestmark = pytest.mark.conformance


def meshes() -> list[dict[str, int]]:
    """All extents whose product is the number of ranks."""
    size = hvd.size()
    divisors = [n for n in range(1, size + 1) if size % n == 0]
    return [
        {"tp": tp, "cp": cp, "pp": pp}
        for tp in divisors
        for cp in divisors
        for pp in divisors
        if size % (tp * cp * pp) == 0
    ]


@pytest.fixture
def make_mesh() -> Iterator[object]:
    made: list[par.Mesh] = []

    def make(**arguments: object) -> par.Mesh:
        made.append(par.init(**arguments))
        return made[-1]

    yield make
    for mesh in made:
        mesh.close()


def total(axis: par.Axis) -> int:
    own = torch.tensor([1 << hvd.rank()])
    if axis.set is None:
        return int(own)
    return int(hvd.allreduce(own, op=hvd.Sum, process_set=axis.set))


@pytest.mark.parametrize("dynamic", [True, False], ids=["by all ranks", "by members"])
def test_every_axis_and_product_sums_over_its_ranks(
    dynamic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even in a job that does not allow sets to be added by all ranks."""
    monkeypatch.setattr(module, "are_dynamic", lambda: dynamic)
    before = set(hvd.get_process_set_ids_and_ranks())
    for extents in meshes():
        mesh = par.init(**extents)
        names = list(mesh.sizes)
        for some in [*names, ("tp", "dp"), ("dp", "cp"), ("cp", "tp", "pp"), tuple(names)]:
            axis = mesh[some]
            chosen = {some} if isinstance(some, str) else set(some)
            own = mesh.coordinates
            expected = [
                rank
                for rank in range(hvd.size())
                if all(
                    mesh.coordinates_of(rank)[name] == own[name]
                    for name in names
                    if name not in chosen
                )
            ]
            assert list(axis.ranks) == expected
            assert axis.ranks[axis.rank] == hvd.rank()
            assert axis.size == prod(mesh.sizes[name] for name in chosen)
            assert total(axis) == sum(1 << rank for rank in expected)
            assert (axis.set is None) == (axis.size == 1)
            assert (axis.set is hvd.global_process_set) == (axis.size == hvd.size() > 1)
        mesh.close()
    assert set(hvd.get_process_set_ids_and_ranks()) == before


def test_equal_ranks_are_one_set(make_mesh: object) -> None:
    mesh = make_mesh(tp=1)
    assert mesh.dp.size == hvd.size()
    assert mesh["dp", "cp"].set is mesh.dp.set is mesh["pp", "dp", "tp"].set
    assert mesh.tp.set is None
    assert mesh.world.ranks == tuple(range(hvd.size()))


def test_the_users_sets_of_the_same_ranks_stay_their_own(make_mesh: object) -> None:
    if hvd.size() % 4:
        pytest.skip("needs 4 ranks")
    own = hvd.add_process_set(range(hvd.size() // 2))
    mesh = make_mesh(tp=hvd.size() // 2)
    if own.included():
        assert mesh.tp.ranks == tuple(own.ranks)
        assert mesh.tp.set != own
    mesh.close()
    assert own.process_set_id is not None
    hvd.remove_process_set(own)


def test_neighbours_and_ranks_elsewhere(make_mesh: object) -> None:
    mesh = make_mesh(pp=hvd.size(), order="pp-dp")
    assert mesh.pp.next == (hvd.rank() + 1) % hvd.size()
    assert mesh.pp.prev == (hvd.rank() - 1) % hvd.size()
    assert mesh.rank_at(pp=hvd.size() - 1) == hvd.size() - 1
    with pytest.raises(ValueError, match=r"pp=\d+.* has no position pp=99"):
        mesh.rank_at(pp=99)


def test_a_second_mesh_is_refused_until_the_first_is_closed() -> None:
    mesh = par.init(tp=hvd.size())
    assert par.current_mesh() is mesh
    with pytest.raises(ValueError, match=r"already is a mesh, Mesh\(tp=.*close\(\)"):
        par.init()
    mesh.close()
    with pytest.raises(ValueError, match="there is no mesh"):
        par.current_mesh()
    par.init().close()


def test_ranks_that_want_other_meshes_hear_so(need_ranks: None) -> None:
    order = "tp-dp" if hvd.rank() == 0 else "dp-tp"
    with pytest.raises(ValueError, match=r"ranks \[0\]: tp=.*; ranks \[1.*\]: dp="):
        par.init(order=order)
    par.init().close()


def test_axis_of_a_set_and_of_nothing() -> None:
    axis = par.Axis.of(hvd.global_process_set, "all")
    assert axis.ranks == tuple(range(hvd.size()))
    assert axis.rank == hvd.rank()
    assert par.Axis.of(axis) is axis
    assert par.Axis.of(None).size == 1
    with pytest.raises(TypeError, match="not 3"):
        par.Axis.of(3)
    with pytest.raises(ValueError, match="not registered"):
        par.Axis.of(hvd.ProcessSet([0]))
