"""Snapshots and the last two commits of a state."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import horoscale.torch.elastic
from horoscale.elastic.commits import Commits
from horoscale.elastic.snapshot import Snapshot

TYPES = ["bool", "uint8", "int8", "int16", "float16", "bfloat16", "int32", "float32", "int64"]
TYPES += ["float64", "complex64", "complex128"]


def taken(value: Any) -> Snapshot:
    snapshot = Snapshot()
    snapshot.take(value)
    return snapshot


def same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        return (
            one.dtype == other.dtype
            and one.shape == other.shape
            and (one.tobytes() == other.tobytes())
        )
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other or (one != one and other != other)


plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
dtypes = st.sampled_from(["bool", "uint8", "int16", "float16", "float32", "int64", "complex64"])
leaves = (
    plain
    | st.complex_numbers()
    | arrays.arrays(dtypes, arrays.array_shapes(min_dims=0, min_side=0))
)
trees = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.integers() | st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(trees, trees)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_a_snapshot_gives_back_what_it_took(first: Any, second: Any) -> None:
    snapshot = taken(first)
    assert same(snapshot.value(), first)
    snapshot.take(second)  # in the memory of the first
    assert same(snapshot.value(), second)


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 5), (4, 3, 2)])
def test_tensors(name: str, shape: tuple[int, ...]) -> None:
    tensor = torch.arange(max(1, int(np.prod(shape)))).to(getattr(torch, name))
    tensor = tensor[: int(np.prod(shape))].reshape(shape)
    snapshot = taken({"a": tensor, "b": [tensor.t() if len(shape) == 2 else tensor]})
    back = snapshot.value()
    assert back["a"].dtype == tensor.dtype
    assert torch.equal(back["a"], tensor)
    assert torch.equal(back["b"][0], tensor.t() if len(shape) == 2 else tensor)
    assert set(snapshot.blocks) == {"a", "b.0"}


def test_a_snapshot_shares_no_memory_with_what_it_took_or_gave() -> None:
    array, tensor = np.zeros(3), torch.zeros(3)
    snapshot = taken([array, tensor])
    array += 1
    tensor += 1
    given = snapshot.value()
    assert given[0].sum() == 0
    assert given[1].sum() == 0
    given[0] += 1
    given[1] += 1
    assert snapshot.value()[0].sum() == 0
    assert snapshot.value()[1].sum() == 0


def test_memory_is_used_again_where_it_fits() -> None:
    snapshot = taken({"a": np.zeros(3), "b": np.zeros(3)})
    a, b = snapshot.blocks["a"].data, snapshot.blocks["b"].data
    snapshot.take({"a": np.ones(3), "b": np.ones(4)})
    assert snapshot.blocks["a"].data is a
    assert snapshot.blocks["b"].data is not b


def test_a_state_dict_of_torch() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(4, 3)).sum().backward()
    optimizer.step()
    back = taken({"model": model.state_dict(), "optimizer": optimizer.state_dict()}).value()
    assert isinstance(back["model"], OrderedDict)
    model.load_state_dict(back["model"])
    optimizer.load_state_dict(back["optimizer"])


def test_a_part_of_a_value() -> None:
    assert taken({"a": {"b": [1, 2]}, "c": 3}).value("a", "b") == [1, 2]


def test_two_commits_are_kept() -> None:
    commits = Commits()
    commits.replace(taken("first"), 1)
    for number in range(2, 6):
        commits.save(number)
        assert commits.held() == [number - 1, number]
        assert commits.confirm() == number
    assert commits.go_back(4).value() == 4
    assert commits.held() == [4]
    commits.save("again")
    assert commits.held() == [4, 5]


def test_saving_twice_writes_the_same_commit() -> None:
    commits = Commits()
    commits.replace(taken("first"), 7)
    commits.save("once")
    commits.save("twice")
    assert commits.held() == [7, 8]
    assert commits.latest().value() == "twice"


def test_a_commit_that_breaks_off_is_none() -> None:
    class Unpicklable:
        def __reduce__(self) -> Any:
            raise TypeError("can't be kept")

    commits = Commits()
    commits.replace(taken("first"), 1)
    commits.save("second")
    with pytest.raises(TypeError, match="can't be kept"):
        commits.save({"a": Unpicklable()})
    assert commits.held() == [1]
    assert commits.latest().value() == "first"


def test_only_what_was_never_in_the_job_is_released() -> None:
    commits = Commits()
    commits.save("own")
    assert commits.release().value() == "own"
    assert commits.latest() is None
    assert commits.go_back(3) is None
    commits.replace(taken("the job's"), 4)
    assert commits.release().blocks == {}
    assert commits.latest().value() == "the job's"


def test_nothing_is_held_before_the_first_sync() -> None:
    commits = Commits()
    commits.save("own")
    assert commits.held() == []
    assert commits.go_back(0).value() == "own"


def test_what_a_thread_reads_is_not_written_to() -> None:
    commits = Commits()
    commits.replace(taken(np.zeros(2)), 1)
    with commits.reading() as (number, snapshot):
        for value in range(2, 5):
            commits.save(np.full(2, value))
            commits.confirm()
        assert (number, snapshot.value().tolist()) == (1, [0, 0])
    assert commits.held() == [3, 4]


assert horoscale.torch.elastic  # registers tensors


def test_what_a_thread_reads_stays_when_a_sync_has_taken_it_over() -> None:
    commits = Commits()
    commits.save({"a": np.array([1])})
    commits.confirm()
    with commits.reading() as read:
        assert read is not None
        _, snapshot = read
        commits.replace(Snapshot(snapshot.tree, dict(snapshot.blocks)), 1)  # nothing was sent
        for value in (2, 3, 4):
            commits.save({"a": np.array([value])})
            commits.confirm()
        assert snapshot.value() == {"a": np.array([1])}
