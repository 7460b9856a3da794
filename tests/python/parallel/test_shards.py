"""Tensors divided among the members of a set and visible to all, in numpy and torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import horoscale.numpy as hvd
import horoscale.torch as hvd_torch
from horoscale._core import Runtime

PAGES = 1 << 16  # bytes: whole pages on every machine


@pytest.fixture(params=[hvd, hvd_torch], ids=["numpy", "torch"])
def binding(request: pytest.FixtureRequest) -> Any:
    return request.param


def sharded(binding: Any, *size: int, **kwargs: Any) -> Any:
    return binding.empty_sharded(*size, dtype=np.int32 if binding is hvd else torch.int32, **kwargs)


def expected(rows: int, columns: int, value: int = 0) -> np.ndarray:
    return np.repeat(np.arange(hvd.size()) + value, rows * columns).reshape(-1, columns)


@pytest.mark.conformance
@pytest.mark.parametrize(("rows", "columns"), [(PAGES, 1), (PAGES // 4, 8), (3, 5), (0, 4)])
def test_all_see_what_each_has_written(binding: Any, rows: int, columns: int) -> None:
    shards = sharded(binding, rows * hvd.size(), columns)
    assert shards.own.shape == (rows, columns)
    assert shards.whole.shape == (rows * hvd.size(), columns)
    for value in range(3):
        shards.own[:] = hvd.rank() + value
        whole = shards.gather()
        assert whole is shards.whole
        np.testing.assert_array_equal(np.asarray(whole), expected(rows, columns, value))
        binding.barrier()  # until all have read it
    shards.close()


def test_whole_pages_on_one_host_are_not_copied(binding: Any) -> None:
    shards = sharded(binding, PAGES * hvd.size())
    assert shards.is_view
    shards.own[:] = 5
    begin = PAGES * hvd.rank()
    assert int(shards.whole[begin]) == 5  # without gather(): only this rank's own memory
    pieces = sharded(binding, 3 * hvd.size())
    assert not pieces.is_view
    pieces.close()
    shards.close()


def test_what_was_closed_shows_nothing_of_others(binding: Any) -> None:
    shards = sharded(binding, PAGES * hvd.size())
    shards.own[:] = 7
    whole = shards.gather()
    was_view = shards.is_view
    own = shards.own
    binding.barrier()
    shards.close()
    shards.close()
    assert not shards.is_view
    assert (own == 7).all()
    if was_view:
        assert (whole == 0).all()
        whole[:] = 9
        assert (own == 7).all()
    with pytest.raises(ValueError, match="closed"):
        shards.gather()


def test_memory_is_kept_for_the_others(binding: Any) -> None:
    shards = sharded(binding, PAGES * hvd.size())
    shards.own[:] = hvd.rank() + 1
    whole = shards.gather()
    del shards
    others = hvd.empty_shared(PAGES, dtype=np.int32)  # would reuse freed memory
    others[:] = -1
    binding.barrier()
    np.testing.assert_array_equal(np.asarray(whole), expected(PAGES, 1, 1).reshape(-1))


def test_of_a_set_in_its_own_order(binding: Any) -> None:
    order = list(reversed(range(hvd.size())))
    members = hvd.add_process_set(order, ordered=True, distinct=True, members_only=True)
    shards = sharded(binding, PAGES * hvd.size(), process_set=members)
    shards.own[:] = hvd.rank()
    whole = np.asarray(shards.gather()).reshape(hvd.size(), -1)
    assert [int(part[0]) for part in whole] == order
    shards.close()
    hvd.remove_process_set(members)


def test_wrong_shapes(binding: Any) -> None:
    if hvd.size() > 1:
        with pytest.raises(ValueError, match="can't be divided equally"):
            sharded(binding, hvd.size() + 1)
        size = hvd.size() * (1 if hvd.rank() == 0 else 2)
        with pytest.raises(hvd.MismatchError, match="rank 0 has 4 bytes, rank 1 has 8"):
            sharded(binding, size)
    with pytest.raises(ValueError, match="shape"):
        sharded(binding)
    with pytest.raises(ValueError, match="negative"):
        sharded(binding, hvd.size(), -1)


def test_as_the_memory_of_parameters() -> None:
    """As in ZeRO: each rank updates its rows, and all compute with the whole tensor."""
    torch.manual_seed(1)
    columns = PAGES // 8
    shards = hvd_torch.empty_sharded(hvd.size(), columns, dtype=torch.float64)
    start = torch.randn(hvd.size(), columns, dtype=torch.float64)
    shards.own.copy_(start[hvd.rank() : hvd.rank() + 1])
    weight = torch.nn.Parameter(shards.gather())
    (weight**2).sum().backward()
    assert weight.grad is not None
    hvd.barrier()
    with torch.no_grad():
        shards.own -= 0.25 * weight.grad[hvd.rank() : hvd.rank() + 1]
    shards.gather()
    torch.testing.assert_close(weight.detach(), start / 2)
    hvd.barrier()
    shards.close()


def test_one_member_without_memory_is_told_to_all(
    binding: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(self: Runtime, nbytes: int) -> Any:
        raise hvd.HorovodInternalError("no space left in /dev/shm")

    last = hvd.size() - 1
    if hvd.rank() == last:
        monkeypatch.setattr(Runtime, "shared_alloc", refused)
    with pytest.raises(hvd.HorovodInternalError, match=f"/dev/shm|rank {last} could not allocate"):
        sharded(binding, hvd.size(), 4)
    hvd.barrier()
