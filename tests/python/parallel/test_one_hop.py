"""Small blocking calls, which take one hop once they are cached."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.reference import DTYPES, OPS, check_reduced, defined, values

import horoscale.numpy as hvd

CALLS = 6
# The first call is planned, and cached.
KNOWN = CALLS - 1


def one_hop(process_set: int = 0) -> int:
    return int(hvd.metrics()["process_sets"][str(process_set)]["one_hop"])


@pytest.mark.parametrize(
    ("dtype", "op"), [(dtype, op) for dtype in DTYPES for op in OPS if defined(dtype, op)]
)
def test_equals_numpy(dtype: str, op: str) -> None:
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    for n in (0, 1, 37):
        for call in range(3):
            inputs = [values(dtype, n, rank, call) for rank in range(hvd.size())]
            result = hvd.allreduce(inputs[hvd.rank()], op=getattr(hvd, op))
            check_reduced(result, inputs, op)


def test_takes_one_hop() -> None:
    if hvd.size() == 1:
        pytest.skip("one rank has nobody to send to")
    before = one_hop()
    for call in range(CALLS):
        result = hvd.allreduce(np.full(11, float(hvd.rank() + call), np.float32), op=hvd.Sum)
        expected = sum(range(hvd.size())) + call * hvd.size()
        assert (result == expected).all()
    # MPI's own collectives are used where possible.
    if hvd.metrics()["process_sets"]["0"]["mpi_buckets"] == 0:
        assert one_hop() - before >= KNOWN


def test_a_name_that_repeats_takes_one_hop() -> None:
    if hvd.size() == 1:
        pytest.skip("one rank has nobody to send to")
    before = one_hop()
    for call in range(CALLS):
        own = np.full(7, float(hvd.rank() * call), np.float32)
        result = hvd.allreduce(own, op=hvd.Sum, name="one_hop.loss")
        assert (result == sum(range(hvd.size())) * call).all()
    if hvd.metrics()["process_sets"]["0"]["mpi_buckets"] == 0:
        assert one_hop() - before >= KNOWN


def test_names_in_any_way() -> None:
    """Some ranks wait, some don't, shapes change: it is the same operation on all of them."""
    for call in range(40):
        own = np.full(5 + call // 13, float(hvd.rank()), np.float32)
        name = f"one_hop.{call % 2}"
        if (call + hvd.rank()) % 5 == 0:
            result = hvd.synchronize(hvd.allreduce_async(own, op=hvd.Sum, name=name))
        else:
            result = hvd.allreduce(own, op=hvd.Sum, name=name)
        assert (result == sum(range(hvd.size()))).all()


def test_barriers() -> None:
    for _ in range(CALLS):
        hvd.barrier()


def test_scaled_and_averaged_as_otherwise() -> None:
    """The same bits as the planned operation, which is not cached yet."""
    own = np.random.default_rng(hvd.rank()).standard_normal(100).astype(np.float32)
    options: dict[str, Any] = {"op": hvd.Average, "prescale_factor": 0.3, "postscale_factor": 1.7}
    planned = hvd.allreduce(own, name="one_hop.planned", **options)
    for _ in range(3):
        assert hvd.allreduce(own, **options).tobytes() == planned.tobytes()


def test_some_ranks_do_not_wait() -> None:
    """Ranks report operations that others post: they are planned, whoever is first."""
    for call in range(40):
        own = np.full(5, float(hvd.rank()), np.float32)
        if (call + hvd.rank()) % 3 == 0:
            result = hvd.synchronize(hvd.allreduce_async(own, op=hvd.Sum))
        else:
            result = hvd.allreduce(own, op=hvd.Sum)
        assert (result == sum(range(hvd.size()))).all()


def test_a_mismatch_is_an_error_on_all_ranks() -> None:
    if hvd.size() == 1:
        pytest.skip("one rank agrees with itself")
    for n in (3, 4):
        for _ in range(2):
            hvd.allreduce(np.ones(n, np.float32), op=hvd.Sum)
    with pytest.raises(hvd.MismatchError):
        hvd.allreduce(np.ones(3 + hvd.rank() % 2, np.float32), op=hvd.Sum)
    assert (hvd.allreduce(np.ones(3, np.float32), op=hvd.Sum) == hvd.size()).all()


def test_while_ranks_join() -> None:
    for _ in range(2):
        hvd.allreduce(np.ones(9, np.float32), op=hvd.Sum)
    for call in range(2 * hvd.rank()):
        left = sum(1 for rank in range(hvd.size()) if 2 * rank > call)
        assert (hvd.allreduce(np.ones(9, np.float32), op=hvd.Sum) == left).all()
    hvd.join()
    for _ in range(3):
        assert (hvd.allreduce(np.ones(9, np.float32), op=hvd.Sum) == hvd.size()).all()
