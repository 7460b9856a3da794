"""The rules for arguments that all bindings share."""

from __future__ import annotations

import numpy as np
import pytest

from horoscale._core import ReduceOp, UnsupportedError
from horoscale.common import Adasum, Average, Max, Sum
from horoscale.common.arguments import ELEMENTWISE, SUMS, resolve_op
from horoscale.common.process_set_registration import _agreed_order, _names


def test_average_is_the_default() -> None:
    assert resolve_op(None) is ReduceOp.AVERAGE
    assert resolve_op(Sum) is ReduceOp.SUM
    assert resolve_op(4) is ReduceOp.MAX


@pytest.mark.parametrize(
    ("average", "expected"), [(True, Average), (False, Sum), (np.False_, Sum), (0, Sum)]
)
def test_average_is_deprecated(average: bool, expected: ReduceOp) -> None:
    with pytest.warns(DeprecationWarning, match="op="):
        assert resolve_op(None, average) is expected


def test_both_are_an_error() -> None:
    with pytest.raises(ValueError, match="not both"):
        resolve_op(Sum, True)


def test_an_operator_in_the_place_of_average() -> None:
    with pytest.raises(TypeError, match="op=Average"):
        resolve_op(None, Average)  # 0, and so it would mean Sum


@pytest.mark.parametrize("op", [-1, 9])
def test_unknown_operators(op: int) -> None:
    with pytest.raises(ValueError, match=str(op)):
        resolve_op(op)


def test_operators_that_are_not_allowed() -> None:
    assert resolve_op(Sum, allowed=SUMS) is Sum
    with pytest.raises(UnsupportedError, match="Max is not supported here, only Average and Sum"):
        resolve_op(Max, allowed=SUMS)
    assert resolve_op(Adasum) is ReduceOp.ADASUM
    for allowed in (ELEMENTWISE, SUMS):
        with pytest.raises(
            UnsupportedError, match="Adasum is not supported here, only by allreduce"
        ):
            resolve_op(Adasum, allowed=allowed)


@pytest.mark.parametrize(
    ("named", "order"),
    [
        ([[], []], []),
        ([[[0]], []], [[0]]),
        ([[[0, 2]], [[1, 3]], [[0, 2]], [[1, 3]]], [[0, 2], [1, 3]]),
        ([[[0], [1]], [[2], [0]]], [[0], [2], [1]]),
        ([[], [[1], [2]]], [[1], [2]]),
        ([[[0, 1], [0, 1]], [[0, 1], [2], [0, 1]]], [[0, 1], [0, 1], [2]]),
    ],
)
def test_process_sets_named_by_the_ranks_get_one_order(named: list, order: list) -> None:
    agreed = _agreed_order([_names(sets) for sets in named])
    assert [list(name.ranks) for name in agreed] == order
