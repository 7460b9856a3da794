"""send and recv of arrays: every rank sends to the next one, and checks what it receives."""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterator

import numpy as np
import pytest
from support.interrupts import interrupted
from support.reference import DTYPES, values

import horoscale.numpy as hvd

OVER_MPI = os.environ.get("HOROSCALE_BACKEND") == "mpi"  # whose ranks share no memory
SIZES = (0, 1, 4097, 16_384, 16_385, 65_535, 65_536, 65_537, 5_000_000)


@pytest.fixture
def tag(name: str) -> Iterator[int]:
    """A set for this test, which all ranks leave together, so that failures can't affect others."""
    yield zlib.crc32(name.encode()) << 8
    hvd.barrier()


def next_rank(step: int = 1) -> int:
    return (hvd.rank() + step) % hvd.size()


def to_the_next(out: np.ndarray, into: np.ndarray, tag: int) -> np.ndarray:
    _, result = hvd.batch(
        [
            hvd.P2POp(hvd.send, out, next_rank(), tag),
            hvd.P2POp(hvd.recv, into, next_rank(-1), tag),
        ]
    )
    return result


@pytest.mark.conformance
@pytest.mark.parametrize("n", [0, 3, 70_001])
@pytest.mark.parametrize("dtype", DTYPES)
def test_all_types(dtype: str, n: int, tag: int) -> None:
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    into = np.zeros_like(values(dtype, n, 0))
    result = to_the_next(values(dtype, n, hvd.rank()), into, tag)
    assert result is into
    assert result.tobytes() == values(dtype, n, next_rank(-1)).tobytes()


@pytest.mark.conformance
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("shared", [False, True], ids=["private", "shared"])
def test_all_sizes(n: int, shared: bool, tag: int) -> None:
    out = hvd.empty_shared(n, dtype=np.uint8) if shared else np.empty(n, np.uint8)
    out[:] = values("uint8", n, hvd.rank())
    for step in range(3):
        into = np.zeros(n, np.uint8)
        to_the_next(out, into, tag + step)
        assert into.tobytes() == values("uint8", n, next_rank(-1)).tobytes()


@pytest.mark.conformance
@pytest.mark.parametrize("n", [0, 3, 16_385, 1_000_003])
@pytest.mark.parametrize("shared", [False, True], ids=["private", "shared"])
def test_views(n: int, shared: bool, tag: int) -> None:
    out = hvd.empty_shared(n, dtype=np.uint8) if shared else np.empty(n, np.uint8)
    before = hvd.metrics()["process_sets"]["0"]
    for step in range(3):
        out[:] = values("uint8", n, hvd.rank() + step)
        sent = hvd.send_async(out, next_rank(), tag)
        source = None if step == 1 else next_rank(-1)
        view = hvd.recv_view((n, 1), np.uint8, source, tag)
        assert view.source == next_rank(-1)
        with view as array:
            assert array.shape == (n, 1)
            assert not array.flags.writeable
            assert array.tobytes() == values("uint8", n, next_rank(-1) + step).tobytes()
        view.release()
        with pytest.raises(ValueError, match="released"):
            _ = view.tensor
        hvd.synchronize(sent)
    after = hvd.metrics()["process_sets"]["0"]
    assert after["messages_received"] - before["messages_received"] == 3
    assert after["message_bytes_sent"] - before["message_bytes_sent"] == 3 * n
    is_reached = shared and hvd.local_size() == hvd.size() and not OVER_MPI
    is_seen = n > 16_384 and (is_reached or hvd.size() == 1)
    assert after["messages_viewed"] - before["messages_viewed"] == 3 * is_seen


@pytest.mark.usefixtures("need_ranks")
def test_a_view_keeps_its_sender_waiting(tag: int) -> None:
    if hvd.rank() > 1 or hvd.local_size() < hvd.size():
        return
    out = hvd.empty_shared(100_000)
    peer = 1 - hvd.rank()
    for gone in ("released", "dropped"):
        out[:] = hvd.rank()
        sent = hvd.send_async(out, peer, tag)
        view = hvd.recv_view(100_000, np.float32, peer, tag)
        part = view.tensor[50_000:]
        for looked in (False, True):
            hvd.send(np.zeros(1), peer, tag + 1)  # small, so it doesn't wait
            hvd.recv(np.zeros(1), peer, tag + 1)
            assert looked or not hvd.poll(sent)
        if gone == "released":
            view.release()
        else:
            del view
            assert (part == peer).all()
            del part
        hvd.synchronize(sent)


def test_wrong_arguments_of_a_view(tag: int) -> None:
    with pytest.raises(ValueError, match="src="):
        hvd.recv_view(3, np.float32, hvd.size(), tag)
    with pytest.raises(ValueError, match="negative"):
        hvd.recv_view((3, -1), np.float32, 0, tag)
    sent = hvd.send_async(np.zeros(30_000), hvd.rank(), tag)
    with pytest.raises(hvd.MismatchError, match="recv_view from rank"):
        hvd.recv_view(30_000, np.float32, hvd.rank(), tag)
    with pytest.raises(hvd.MismatchError, match="30000 elements of float64"):
        hvd.synchronize(sent)


@pytest.mark.usefixtures("need_ranks")
@pytest.mark.parametrize("n", [10, 100_000])
def test_blocking_calls(n: int, tag: int) -> None:
    if hvd.rank() > 1:
        return
    data = np.arange(n, dtype=np.float64)
    for step in range(5):
        if hvd.rank() == 0:
            hvd.send(data * step, 1, tag)
            assert hvd.recv(np.empty(1), 1, tag).item() == step
        else:
            received = hvd.recv(np.empty(n), 0, tag)
            np.testing.assert_array_equal(received, data * step)
            hvd.send(np.full(1, float(step)), 0, tag)


def test_to_itself(tag: int) -> None:
    for n in (5, 1_000_000):
        data, first, second = np.arange(n), np.zeros(n, int), np.zeros(n, int)
        early = hvd.recv_async(first, hvd.rank(), tag)
        sent = [hvd.send_async(data, hvd.rank(), tag), hvd.send_async(data + 1, hvd.rank(), tag)]
        assert hvd.recv_any(second, tag) == hvd.rank()
        for handle in sent:
            assert hvd.synchronize(handle) is None
        np.testing.assert_array_equal(hvd.synchronize(early), data)
        np.testing.assert_array_equal(second, data + 1)


@pytest.mark.usefixtures("need_ranks")
def test_tags_are_received_in_any_order_and_messages_of_one_in_order(tag: int) -> None:
    if hvd.rank() == 0:
        for i in range(40):
            hvd.synchronize(hvd.send_async(np.array([i]), 1, tag + i % 2))
    elif hvd.rank() == 1:
        for first in (1, 0):
            got = [hvd.recv(np.zeros(1, int), 0, tag + first).item() for _ in range(20)]
            assert got == list(range(first, 40, 2))


@pytest.mark.usefixtures("need_ranks")
def test_of_any_rank(tag: int) -> None:
    for n in (1, 50_000):
        tag += 1  # another rank may be ahead
        if hvd.rank() != 0:
            hvd.send(np.full(n, hvd.rank()), 0, tag)
            continue
        arrays = [np.zeros(n, int) for _ in range(hvd.size() - 1)]
        handles = [hvd.recv_any_async(array, tag) for array in arrays]
        sources = [hvd.synchronize(handle) for handle in handles]
        assert sorted(sources) == list(range(1, hvd.size()))
        for source, array in zip(sources, arrays, strict=True):
            np.testing.assert_array_equal(array, source)


def test_everybody_to_everybody(tag: int) -> None:
    n = 30_000
    into = [np.zeros(n, np.int64) for _ in range(hvd.size())]
    operations = []
    for peer in range(hvd.size()):
        operations.append(hvd.P2POp(hvd.send, np.full(n, hvd.rank() * 100 + peer), peer, tag))
    for peer in reversed(range(hvd.size())):
        operations.append(hvd.P2POp(hvd.recv_async, into[peer], peer, tag))
    hvd.batch(operations)
    for peer, array in enumerate(into):
        np.testing.assert_array_equal(array, peer * 100 + hvd.rank())


def test_arrays_that_are_not_contiguous(tag: int) -> None:
    matrix = np.zeros((50, 60))
    to_the_next(values("float64", (60, 50), hvd.rank()).T, matrix[:, :], tag)
    np.testing.assert_array_equal(matrix, values("float64", (60, 50), next_rank(-1)).T)
    columns = np.zeros((60, 3))
    to_the_next(np.full(60, 7.0), columns[:, 1], tag)
    np.testing.assert_array_equal(columns.sum(axis=0), [0, 420, 0])


@pytest.mark.usefixtures("need_ranks")
def test_a_mismatch_concerns_two_ranks_alone(tag: int, name: str) -> None:
    large = np.zeros(100_000, np.float32)
    if hvd.rank() == 0:
        with pytest.raises(
            hvd.MismatchError, match=r"rank 0 sends 100000 .* rank 1 receives 99999"
        ):
            hvd.send(large, 1, tag)
    elif hvd.rank() == 1:
        with pytest.raises(
            hvd.MismatchError, match=f"recv from rank 0, tag {tag} on process set 0"
        ):
            hvd.recv(large[1:], 0, tag)
    hvd.allreduce(large, name=name)
    if hvd.rank() == 0:
        hvd.send(np.zeros(3, np.int32), 1, tag)
    elif hvd.rank() == 1:
        with pytest.raises(hvd.MismatchError, match="3 elements of int32"):
            hvd.recv(np.zeros(3, np.float32), 0, tag)
    assert hvd.allreduce(np.ones(1), op=hvd.Sum, name=name).item() == hvd.size()


def test_objects(tag: int) -> None:
    everything = [{"rank": hvd.rank()}, None, "ä" * 1000, list(range(100_000))]
    for obj in everything:
        if hvd.rank() % 2 == 0 and hvd.rank() + 1 < hvd.size():
            hvd.send_object(obj, hvd.rank() + 1, tag)
        if hvd.rank() % 2 == 1:
            received = hvd.recv_object(hvd.rank() - 1, tag)
            assert received == ({"rank": hvd.rank() - 1} if obj == everything[0] else obj)


def test_process_sets_do_not_meet(process_set: hvd.ProcessSet, tag: int) -> None:
    if not process_set.included():
        return
    ranks = process_set.ranks
    place = ranks.index(hvd.rank())
    into = np.zeros(20_000, np.int64)
    hvd.batch(
        [
            hvd.P2POp(
                hvd.send,
                np.full(20_000, hvd.rank()),
                ranks[(place + 1) % len(ranks)],
                tag,
                process_set,
            ),
            hvd.P2POp(hvd.recv, into, ranks[place - 1], tag, process_set),
        ]
    )
    np.testing.assert_array_equal(into, ranks[place - 1])


@pytest.mark.usefixtures("need_ranks")
def test_a_joined_rank_may_send(tag: int) -> None:
    """The others can still exchange messages while one has joined."""
    data = np.arange(50_000)
    if hvd.rank() == 0:
        handle = hvd.send_async(data, 1, tag)
        hvd.join()
        hvd.synchronize(handle)
        return
    if hvd.rank() == 1:
        np.testing.assert_array_equal(hvd.recv(np.zeros(50_000, int), 0, tag), data)
    hvd.join()


def test_wrong_arguments(tag: int) -> None:
    array = np.zeros(3)
    with pytest.raises(ValueError, match="dst="):
        hvd.send(array, hvd.size(), tag)
    with pytest.raises(ValueError, match="src=-1"):
        hvd.recv(array, -1, tag)
    with pytest.raises(ValueError, match="tag=-1"):
        hvd.send(array, 0, -1)
    with pytest.raises(TypeError, match="numpy array"):
        hvd.recv([1, 2], 0, tag)
    with pytest.raises(NotImplementedError):
        hvd.send(np.array(["text"]), 0, tag)
    with pytest.raises(TypeError, match="P2POp"):
        hvd.batch([(hvd.send, array, 0)])
    with pytest.raises(ValueError, match="needs a peer"):
        hvd.batch([hvd.P2POp(hvd.send, array, 0, tag), hvd.P2POp(hvd.recv, array)])
    with pytest.raises(ValueError, match="none of send"):
        hvd.batch([hvd.P2POp(print, array, 0)])
    read_only = np.zeros(3)
    read_only.flags.writeable = False
    with pytest.raises(ValueError, match="writable"):
        hvd.recv(read_only, 0, tag)


def test_an_interrupted_view_is_given_back(need_ranks: None) -> None:
    """Its sender would wait forever."""
    message = hvd.empty_shared(300_000, dtype=np.uint8)
    if hvd.rank() == 1:
        with interrupted():
            hvd.recv_view(300_000, np.uint8, 0)
    hvd.barrier()
    if hvd.rank() == 0:
        hvd.send(message, 1)
    hvd.barrier()


@pytest.mark.conformance
def test_metrics_tell_what_is_pending(name: str, tag: int) -> None:
    if hvd.size() == 1:
        pytest.skip("nobody to wait for")
    before = hvd.metrics()["waiting_seconds"]
    if hvd.rank() == 0:
        handle = hvd.allreduce_async(np.ones(3), name=name)
        found = hvd.metrics()["progress"]["0"]
        assert (found["pending"], found["pending_operation"]) == (1, name)
        assert found["pending_seconds"] >= 0
        for rank in range(1, hvd.size()):
            hvd.send(np.zeros(1), rank, tag)
        handle.wait()
    else:
        hvd.recv(np.zeros(1), 0, tag)
        hvd.allreduce(np.ones(3), name=name)
    after = hvd.metrics()
    found = after["progress"]["0"]
    assert (found["pending"], found["pending_operation"], found["last_operation"]) == (0, "", name)
    assert after["waiting_seconds"] > before
    hvd.allreduce(np.ones(3))
    last = hvd.metrics()["progress"]["0"]["last_operation"]
    assert re.fullmatch(r"allreduce\.unnamed\.[1-9]\d*", last)
