"""Exceptions: their types, their attributes, and passing them between processes."""

from __future__ import annotations

import pickle

import pytest

import horoscale.numpy as hvd
from horoscale._core import DataType, ReduceOp, check_reduction
from horoscale.common import exceptions


@pytest.mark.parametrize("error", [hvd.MismatchError, hvd.RankFailedError], ids=str)
def test_all_are_internal_errors(error: type[Exception]) -> None:
    assert issubclass(error, hvd.HorovodInternalError)
    assert issubclass(error, RuntimeError)
    assert getattr(exceptions, error.__name__) is error


def test_mistakes_are_value_errors() -> None:
    """Elastic training retries a HorovodInternalError."""
    for error in (exceptions.DuplicateNameError, exceptions.UnsupportedError):
        assert issubclass(error, ValueError)
        assert not issubclass(error, hvd.HorovodInternalError)
    assert issubclass(exceptions.UnsupportedError, NotImplementedError)
    assert str(pickle.loads(pickle.dumps(exceptions.UnsupportedError("no Max")))) == "no Max"


def test_rank_failed_carries_what_failed_through_pickle() -> None:
    error = hvd.RankFailedError("rank 3 died", ranks=[3], process_set=2, tensor="weights")
    for one in (error, pickle.loads(pickle.dumps(error))):
        assert str(one) == "rank 3 died"
        assert (one.ranks, one.process_set, one.tensor) == ((3,), 2, "weights")


def test_hosts_updated() -> None:
    assert hvd.HostsUpdatedInterrupt(skip_sync=True).skip_sync
    assert not pickle.loads(pickle.dumps(hvd.HostsUpdatedInterrupt())).skip_sync


def test_the_librarys_message_reaches_python() -> None:
    with pytest.raises(exceptions.UnsupportedError, match="bool"):
        check_reduction(DataType.BOOL, ReduceOp.AVERAGE)
    check_reduction(DataType.BOOL, ReduceOp.SUM)
