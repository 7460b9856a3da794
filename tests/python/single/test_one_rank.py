"""A script without a launcher is rank 0 of 1, and every operation works."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from support.reference import DTYPES, OPS, check_reduced, defined, values

import horoscale.numpy as hvd
from horoscale.common import current_runtime


@pytest.fixture(autouse=True)
def job() -> Iterator[None]:
    hvd.init()
    yield
    hvd.shutdown()


def input_of(dtype: str, shape: int | tuple[int, ...]) -> np.ndarray:
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    return values(dtype, shape, 0)


def test_topology() -> None:
    assert (hvd.rank(), hvd.size()) == (0, 1)
    assert (hvd.local_rank(), hvd.local_size()) == (0, 1)
    assert (hvd.cross_rank(), hvd.cross_size()) == (0, 1)
    assert hvd.is_homogeneous()
    assert hvd.global_process_set.ranks == [0]
    assert hvd.size(hvd.global_process_set) == hvd.global_process_set.size() == 1


@pytest.mark.parametrize("n", [0, 1, 7, 1000])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_operation(dtype: str, n: int) -> None:
    own = input_of(dtype, n)
    for op in OPS:
        if defined(dtype, op):
            check_reduced(hvd.allreduce(own, op=getattr(hvd, op)), [own], op)
    for result in (
        hvd.allgather(own),
        hvd.broadcast(own, root_rank=0),
        hvd.alltoall(own),
        hvd.alltoall(own, splits=[n])[0],
        hvd.reducescatter(own, op=hvd.Sum),
        hvd.reduce(own, 0, op=hvd.Sum),
        hvd.gather(own, 0),
        hvd.scatter(own, 0),
        hvd.broadcast_(own.copy(), root_rank=0),
        hvd.allreduce_(own.copy(), op=hvd.Sum),
    ):
        assert result.dtype == own.dtype
        assert result.tobytes() == own.tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
def test_reductions_that_do_not_exist(dtype: str) -> None:
    own = input_of(dtype, 3)
    for op in OPS:
        if not defined(dtype, op):
            with pytest.raises(ValueError, match=dtype):
                hvd.allreduce(own, op=getattr(hvd, op))


@pytest.mark.parametrize(
    "array",
    [
        np.array([1, "a", None], object),
        np.array(["text"]),
        np.zeros(3, [("x", "f4")]),
        np.zeros(3, "uint32"),
        np.zeros(3, "datetime64[s]"),
        np.zeros(3, ">f4"),
    ],
    ids=lambda array: array.dtype.str,
)
def test_types_that_are_not_supported(array: np.ndarray) -> None:
    for call in (hvd.allreduce, hvd.allgather, hvd.alltoall, hvd.reducescatter, hvd.allreduce_):
        with pytest.raises(ValueError, match=r"not supported|byte order"):
            call(array)
    with pytest.raises(ValueError, match=r"not supported|byte order"):
        hvd.broadcast(array, 0)


def test_in_place_needs_a_writable_array() -> None:
    frozen = np.ones(3)
    frozen.flags.writeable = False
    for call in (hvd.allreduce_, lambda array: hvd.broadcast_(array, 0)):
        with pytest.raises(ValueError, match="writable"):
            call(frozen)
        with pytest.raises(TypeError, match="list"):
            call([1.0, 2.0])


def test_lists_and_numbers_are_taken_as_arrays() -> None:
    assert hvd.allreduce(3.5) == 3.5
    assert hvd.allgather([1, 2]).tolist() == [1, 2]


def test_subclasses_become_plain_arrays() -> None:
    result = hvd.allreduce(np.ma.masked_array([1.0, 2.0], mask=[True, False]))
    assert type(result) is np.ndarray


def test_adasum_of_one_rank_is_its_values() -> None:
    values = np.array([1.5, -2.0, 0.0])
    np.testing.assert_array_equal(hvd.allreduce(values, op=hvd.Adasum), values)
    scaled = hvd.allreduce(values, op=hvd.Adasum, prescale_factor=2.0, postscale_factor=0.5)
    np.testing.assert_array_equal(scaled, values)


def test_empty_groups() -> None:
    for call in (
        hvd.grouped_allreduce,
        hvd.grouped_allreduce_,
        hvd.grouped_allgather,
        hvd.grouped_reducescatter,
    ):
        with pytest.raises(ValueError, match="at least one"):
            call([])


def test_process_set_of_another_type() -> None:
    with pytest.raises(TypeError, match="ProcessSet"):
        hvd.allreduce(np.ones(3), process_set=[0])


def test_name_with_nul() -> None:
    with pytest.raises(ValueError, match="NUL"):
        hvd.allreduce(np.ones(3), name="a\0b")


def test_name_of_another_type() -> None:
    with pytest.raises(TypeError, match="name has to be a string, not 3"):
        hvd.allreduce(np.ones(3), name=3)


def test_synchronize_twice_gives_the_same() -> None:
    handle = hvd.allreduce_async(np.ones(3))
    assert hvd.synchronize(handle) is hvd.synchronize(handle)
    assert hvd.poll(handle)


def test_results_live_as_long_as_their_arrays() -> None:
    part = hvd.allgather(np.arange(1000))[10:20]
    gc.collect()
    hvd.shutdown()
    gc.collect()
    np.testing.assert_array_equal(part, np.arange(10, 20))


def test_shared_arrays() -> None:
    shared = hvd.empty_shared(2, 3, dtype=np.int16)
    assert (shared.shape, shared.dtype) == ((2, 3), np.int16)
    assert (shared == 0).all()
    assert shared.ctypes.data % 64 == 0
    assert hvd.empty_shared((4, 5)).shape == (4, 5)
    assert hvd.empty_shared(0, 3).size == 0
    view = shared[1:]
    del shared
    hvd.shutdown()
    gc.collect()
    view[:] = 7  # its memory outlives the job
    assert (view == 7).all()


def test_shared_arrays_of_a_type_that_is_not_supported() -> None:
    with pytest.raises(ValueError, match="not supported"):
        hvd.empty_shared(3, dtype=np.uint32)


def test_shared_arrays_of_negative_extents() -> None:
    with pytest.raises(ValueError, match="negative"):
        hvd.empty_shared(-1)


def test_shared_memory_is_given_back() -> None:
    megabytes = 64
    for _ in range(2000):  # 128 GiB if memory were not freed
        hvd.empty_shared(megabytes << 20, dtype=np.uint8)


def test_dropped_operations_do_not_accumulate() -> None:
    for i in range(1000):
        hvd.allreduce_async(np.ones(10), name=f"dropped {i}")
    hvd.barrier()
    hvd.synchronize(hvd.allreduce_async(np.ones(1)))
    assert len(current_runtime()._in_flight) < 1000


def test_what_is_prepared_is_bounded() -> None:
    """And reused templates stay prepared."""
    templates = current_runtime().templates
    prepared = set()
    for i in range(10_000):
        hvd.allreduce_(np.ones(1), name=f"new {i}")
        if i % 1000 == 0:
            assert hvd.allreduce_(np.full(1, i), op=hvd.Sum, name="again") == i
            [key] = [key for key in templates.recent if key[0] == "again"]
            prepared.add(templates.recent[key])
    assert len(prepared) == 1
    assert len(templates.recent) + len(templates._earlier) <= 4096


def test_what_is_prepared_belongs_to_its_job() -> None:
    for step in range(3):
        assert hvd.allreduce_(np.full(1, step), op=hvd.Sum, name="again") == step
        handle = hvd.allreduce_async(np.full(1, step), op=hvd.Sum, name="later")
        assert hvd.synchronize(handle) == step
        hvd.shutdown()
        with pytest.raises(ValueError, match=r"hvd\.init"):
            hvd.allreduce_async_(np.ones(1), op=hvd.Sum, name="again")
        hvd.init()


@pytest.mark.parametrize("start", [hvd.allreduce_async, hvd.allreduce_async_])
def test_errors_of_asynchronous_calls(start: Any) -> None:
    for _ in range(2):
        with pytest.raises(ValueError, match="not supported"):
            start(np.ones(1, np.uint32))
        with pytest.raises(ValueError, match="Average"):
            start(np.ones(1, bool))
        with pytest.raises(TypeError, match="name has to be a string, not 3"):
            start(np.ones(1), name=3)
        with pytest.raises(ValueError, match="not registered"):
            start(np.ones(1), process_set=hvd.ProcessSet([0]))
    assert not len(current_runtime()._in_flight)


def test_process_sets_of_one_rank() -> None:
    assert hvd.get_process_set_ids_and_ranks() == {0: [0]}
    with pytest.raises(ValueError, match="dynamic"):
        hvd.add_process_set([0])


def test_objects_and_synchronization() -> None:
    assert hvd.broadcast_object({"a": 1}) == {"a": 1}
    assert hvd.allgather_object("x") == ["x"]
    assert hvd.broadcast_object(None) is None
    hvd.barrier()
    assert hvd.join() == 0


def test_timeline_that_cannot_be_written() -> None:
    with pytest.raises(hvd.HorovodInternalError, match="/nowhere"):
        hvd.start_timeline("/nowhere/at/all.json")


def test_metrics_count_steps_by_a_name_that_comes_again() -> None:
    hvd.allreduce(np.ones(3), name="once, as in a start")
    for _ in range(5):
        hvd.allreduce(np.ones(1 << 16), name="gradient.0")
        hvd.allreduce(np.ones(3), name="gradient.1")
        hvd.allreduce(np.ones(3))
    steps = hvd.metrics()["steps"]
    assert steps["count"] == 3  # the first two start the count
    assert 0 <= steps["exposed_seconds"] + steps["waiting_seconds"] <= steps["seconds"]
    assert hvd.metrics()["link_bytes_sent"] == {}


def test_metrics_is_a_dict() -> None:
    hvd.allreduce(np.ones(1000))
    assert isinstance(hvd.metrics(), dict)
