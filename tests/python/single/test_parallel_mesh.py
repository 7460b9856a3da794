"""Meshes without a job: arguments, arithmetic and hosts."""

from __future__ import annotations

import warnings
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horoscale.common.process_sets import ProcessSet
from horoscale.torch.parallel import Axis, current_mesh, init
from horoscale.torch.parallel import mesh as module

extents = st.dictionaries(st.sampled_from(module.AXES), st.integers(1, 4), min_size=1)


@given(extents)
def test_ranks_and_coordinates_are_inverse(sizes: dict[str, int]) -> None:
    for rank in range(prod(sizes.values())):
        coordinates = module._coordinates(sizes, rank)
        assert module._rank(sizes, coordinates) == rank
        first = next(iter(sizes))
        assert coordinates[first] == rank % sizes[first]  # neighboring ranks are neighbors


@given(extents, st.data())
def test_the_lines_of_an_axis_divide_the_ranks(sizes: dict[str, int], data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from(list(sizes)), unique=True))
    ranks = range(prod(sizes.values()))
    lines = {module.ranks_along(sizes, names, rank) for rank in ranks}
    assert sorted(rank for line in lines for rank in line) == list(ranks)
    assert {len(line) for line in lines} == {prod(sizes[name] for name in names)}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"order": "tp-ep"}, "has an unknown axis 'ep': the axes are tp-cp-dp-pp"),
        ({"order": "tp-tp"}, "names an axis twice"),
        ({"order": "tp-cp"}, "lacks the axis 'dp'"),
        ({"order": "tp-dp", "pp": 2}, "lacks the axis 'pp', which has pp=2"),
        ({"tp": 0}, "tp=0: an axis must have at least one rank"),
        ({"cp": True}, "cp=True"),
        ({"dp": -1}, "dp=-1"),
    ],
)
def test_wrong_arguments(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        init(**arguments)


@pytest.mark.parametrize(
    ("sizes", "ranks", "message"),
    [
        ({"tp": 3, "dp": None}, 4, "tp=3 = 3 does not divide the 4 ranks"),
        ({"tp": 2, "cp": 4, "dp": None}, 4, r"tp=2 \* cp=4 = 8 does not divide the 4 ranks"),
        ({"tp": 2, "dp": 1}, 4, r"tp=2 \* dp=1 = 2, but there are 4 ranks"),
    ],
)
def test_extents_that_dont_give_the_number_of_ranks(
    sizes: dict[str, int | None], ranks: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        module._fill(sizes, ranks)


def test_dp_is_what_is_left() -> None:
    assert module._fill({"tp": 2, "dp": None, "pp": 3}, 24) == {"tp": 2, "dp": 4, "pp": 3}


def test_no_mesh_before_init() -> None:
    with pytest.raises(ValueError, match="there is no mesh"):
        current_mesh()


def test_axes_made_by_hand() -> None:
    pair = ProcessSet([2, 5])
    axis = Axis("cp", ranks=(2, 5), rank=1, set=pair)
    assert (axis.size, axis.next, axis.prev) == (2, 2, 2)
    with pytest.raises(ValueError, match="position 2 is out of range for ranks"):
        Axis("cp", ranks=(2, 5), rank=2, set=pair)
    with pytest.raises(ValueError, match="need a process set"):
        Axis("cp", ranks=(2, 5), rank=1)
    with pytest.raises(ValueError, match="are not those of"):
        Axis("cp", ranks=(2, 6), rank=1, set=pair)


def test_hosts_of_different_sizes() -> None:
    """Hosts with 3, 1 and 2 ranks: cross_rank counts only the hosts that have the local rank."""
    places = [
        *(module.Place(0, 3, 0), module.Place(1, 3, 0), module.Place(2, 3, 0)),
        module.Place(0, 1, 1),
        *(module.Place(0, 2, 2), module.Place(1, 2, 1)),
    ]
    assert module.hosts_of(places) == [0, 0, 0, 1, 2, 2]


def test_warns_of_tensor_parallelism_between_hosts() -> None:
    with pytest.warns(UserWarning, match=r"tp=2 consists of ranks \[2, 3\] on 2 hosts"):
        module._warn_of_hosts({"tp": 2, "dp": 3}, [0, 0, 0, 1, 1, 1])
    with pytest.warns(UserWarning, match=r"tp=2 consists of ranks \[0, 2\]"):
        module._warn_of_hosts({"dp": 2, "tp": 2}, [0, 0, 1, 1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        module._warn_of_hosts({"tp": 2, "dp": 2}, [0, 0, 1, 1])
