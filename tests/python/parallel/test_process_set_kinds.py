"""Process sets that are distinct, ordered, or created by their members alone."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
import pytest
from support.process_sets import registered, silent

import horoscale.numpy as hvd
from horoscale.common.process_sets import give_up_process_set

pytestmark = pytest.mark.usefixtures("need_ranks")
FIRST_BY_MEMBERS = 1 << 30


def total(process_set: hvd.ProcessSet, name: str | None = None) -> int:
    own = np.array([1 << hvd.rank()])
    return int(hvd.allreduce(own, op=hvd.Sum, name=name, process_set=process_set)[0])


def total_of(ranks: Sequence[int]) -> int:
    return sum(1 << rank for rank in ranks)


def by_members(ranks: Sequence[int], **options: object) -> hvd.ProcessSet | None:
    """The set that the ranks create, or None on the others, which do nothing."""
    if hvd.rank() not in ranks:
        return None
    return hvd.add_process_set(ranks, members_only=True, **options)


# ---------------------------------------------------------------- distinct


@pytest.mark.conformance
def test_equal_ranks_twice_have_to_be_distinct(name: str) -> None:
    ranks = list(range(1, hvd.size()))
    with registered(ranks) as one:
        with pytest.raises(ValueError, match="already exists: process set"):
            hvd.add_process_set(ranks)
        other = hvd.add_process_set(ranks, distinct=True)
        assert one != other
        assert one.ranks == other.ranks
        with pytest.raises(ValueError, match="already exists"):
            hvd.add_process_set(other)
        if one.included():
            # The same name in both sets, started in a different order on each rank.
            sets = [one, other][:: 1 if hvd.rank() == 1 else -1]
            handles = [
                hvd.allreduce_async(np.ones(3), op=hvd.Sum, name=name, process_set=process_set)
                for process_set in sets
            ]
            for handle in handles:
                assert hvd.synchronize(handle)[0] == len(ranks)
            counted = hvd.metrics()["process_sets"]
            assert {str(one.process_set_id), str(other.process_set_id)} <= set(map(str, counted))
        assert hvd.remove_process_set(one)
        assert hvd.get_process_set_ids_and_ranks()[other.process_set_id] == ranks
        if other.included():
            assert total(other) == total_of(ranks)
        hvd.remove_process_set(other)
        again = hvd.add_process_set(hvd.ProcessSet(ranks, distinct=True))
        hvd.remove_process_set(again)
        hvd.add_process_set(one)


def test_ranks_that_disagree_whether_a_set_is_distinct_hear_so() -> None:
    with pytest.raises(hvd.MismatchError, match=r"(?=.*rank 0: not d)(?=.*: distinct)"):
        hvd.add_process_set([0, 1], distinct=hvd.rank() > 0)


def test_the_global_set_may_have_a_twin() -> None:
    twin = hvd.add_process_set(range(hvd.size()), distinct=True)
    assert twin.process_set_id != 0
    assert total(twin) == total_of(range(hvd.size()))
    hvd.remove_process_set(twin)


# ---------------------------------------------------------------- ordered


@pytest.mark.conformance
def test_results_follow_the_order_of_the_set(name: str) -> None:
    order = list(range(hvd.size()))[::-1]
    with registered(hvd.ProcessSet(order, ordered=True)) as process_set:
        assert process_set.ranks == order
        assert hvd.rank(process_set) == order.index(hvd.rank())
        assert hvd.get_process_set_ids_and_ranks()[process_set.process_set_id] == order
        options = {"process_set": process_set, "name": name}
        own = np.full((hvd.rank() + 1, 2), hvd.rank())
        expected = np.concatenate([np.full((rank + 1, 2), rank) for rank in order])
        np.testing.assert_array_equal(hvd.allgather(own, **options), expected)
        assert hvd.allgather_object(hvd.rank(), name, process_set) == order
        for root in order:
            assert hvd.broadcast(own[:1], root_rank=root, **options)[0, 0] == root
            gathered = hvd.gather(own, root, **options)
            if hvd.rank() == root:
                np.testing.assert_array_equal(gathered, expected)
            splits = np.arange(hvd.size())
            dealt = np.repeat(splits, splits) if hvd.rank() == root else np.zeros(0, splits.dtype)
            scattered = hvd.scatter(dealt, root, splits=splits, **options)
            position = order.index(hvd.rank())
            np.testing.assert_array_equal(scattered, [position] * position)


@pytest.mark.conformance
@pytest.mark.parametrize("rows", [1, 7, 50_000])
def test_alltoall_and_reducescatter_follow_the_order(rows: int, name: str) -> None:
    """Sizes for each way in which members access each other's memory."""
    order = [*range(1, hvd.size()), 0]
    with registered(hvd.ProcessSet(order, ordered=True)) as process_set:
        position, size = order.index(hvd.rank()), hvd.size()
        options = {"process_set": process_set, "name": name}
        splits = [rows * (to + 1) for to in range(size)]
        own = np.concatenate([np.full(n, 100 * hvd.rank() + to) for to, n in enumerate(splits)])
        expected = [np.full(splits[position], 100 * rank + position) for rank in order]
        received, received_splits = hvd.alltoall(own, splits, **options)
        np.testing.assert_array_equal(received, np.concatenate(expected))
        assert list(received_splits) == [splits[position]] * size

        bounds = np.cumsum([0, *splits])
        mine = slice(bounds[position], bounds[position + 1])
        values = np.random.default_rng(3).normal(size=(size, bounds[-1])).astype(np.float32)
        whole = hvd.allreduce(values[hvd.rank()], op=hvd.Sum, **options)
        same = hvd.allreduce(values[hvd.rank()], op=hvd.Sum, name=name)
        assert whole.tobytes() == same.tobytes()  # the sum has the order of the ranks
        part = hvd.reducescatter(values[hvd.rank()], op=hvd.Sum, splits=splits, **options)
        assert part.tobytes() == whole[mine].tobytes()
        evenly = hvd.reducescatter(values[hvd.rank()][: size + 1], op=hvd.Sum, **options)
        first = position + min(position, 1)
        assert evenly.tobytes() == whole[first : first + (2 if position == 0 else 1)].tobytes()


def test_ranks_that_disagree_about_the_order_hear_so() -> None:
    order = [0, 1] if hvd.rank() == 0 else [1, 0]
    said = r"(?=.*rank 0: the set of ranks 0 and 1)(?=.*: the set of ranks 1 and 0)"
    with pytest.raises(hvd.MismatchError, match=said):
        hvd.add_process_set(order, ordered=True)
    with pytest.raises(ValueError, match="a rank twice"):
        hvd.ProcessSet([1, 0, 1], ordered=True)
    with pytest.raises(ValueError, match="pass them to ProcessSet"):
        hvd.add_process_set(hvd.ProcessSet([0, 1]), ordered=True)


def test_another_order_is_another_set() -> None:
    one, turned = hvd.ProcessSet([0, 1], distinct=True), hvd.ProcessSet([1, 0], ordered=True)
    with registered(one), registered(turned):
        assert turned.ranks == [1, 0]
        with pytest.raises(ValueError, match="ranks 1 and 0 already exists"):
            hvd.add_process_set([1, 0], ordered=True)


# ---------------------------------------------------------------- created by members


@pytest.mark.conformance
def test_members_make_use_and_remove_a_set_while_another_rank_does_nothing() -> None:
    idle = hvd.size() - 1
    members = list(range(hvd.size() - 1))
    for _ in range(3):
        with silent(idle):
            process_set = by_members(members)
            if process_set is not None:
                assert process_set.process_set_id >= FIRST_BY_MEMBERS
                assert hvd.get_process_set_ids_and_ranks()[process_set.process_set_id] == members
                assert total(process_set) == total_of(members)
                assert hvd.allgather_object(hvd.rank(), process_set=process_set) == members
                hvd.barrier(process_set)
                assert hvd.remove_process_set(process_set)
                assert process_set.process_set_id is None
        assert hvd.get_process_set_ids_and_ranks() == {0: list(range(hvd.size()))}


@pytest.mark.conformance
def test_ids_agree_and_are_not_used_again() -> None:
    ids = []
    for _ in range(3):
        process_set = by_members([0, 1], distinct=True)
        if process_set is not None:
            ids.append(process_set.process_set_id)
            hvd.remove_process_set(process_set)
    known = hvd.allgather_object(ids)
    assert known[0] == known[1]
    assert len(set(known[0])) == 3
    assert all(not other for other in known[2:])


@pytest.mark.conformance
def test_only_members_may_call() -> None:
    if hvd.rank() > 0:
        with pytest.raises(ValueError, match="which only its members create"):
            hvd.add_process_set([0], members_only=True)
        return
    alone = hvd.add_process_set([0], members_only=True)
    assert total(alone) == 1
    with pytest.raises(ValueError, match="already exists"):
        hvd.add_process_set([0], members_only=True)
    with pytest.raises(ValueError, match="already registered"):
        hvd.add_process_set(alone, members_only=True)
    with pytest.raises(ValueError, match="already registered, with members_only=True"):
        hvd.add_process_set(alone)
    assert total(alone) == 1
    twin = hvd.add_process_set([0], members_only=True, distinct=True)
    assert twin != alone
    for one in (alone, twin):
        assert hvd.remove_process_set(one)
    with pytest.raises(ValueError, match="members_only"):
        hvd.add_process_set([0], tag="x")


def test_members_that_contradict_each_other_hear_so() -> None:
    if hvd.rank() < 2:
        with pytest.raises(hvd.MismatchError, match=r"rank 0: .*; rank 1: .* distinct"):
            hvd.add_process_set([0, 1], members_only=True, distinct=hvd.rank() == 1)
        process_set = by_members([0, 1], distinct=True)
        assert total(process_set) == 3
        hvd.remove_process_set(process_set)


def test_a_set_is_given_up_with_what_is_pending(name: str) -> None:
    process_set = by_members([0, 1], distinct=True)
    if process_set is None:
        return
    if hvd.rank() == 0:
        handle = hvd.allreduce_async(np.ones(3), name=name, process_set=process_set)
        give_up_process_set(process_set, abandon=True)
        with pytest.raises(hvd.HorovodInternalError, match="rank 0 abandoned process set"):
            hvd.synchronize(handle)
        return
    with pytest.raises(hvd.RankFailedError, match="rank 0 abandoned process set") as failed:
        hvd.allreduce(np.ones(3), name=f"{name} too", process_set=process_set)
    assert failed.value.ranks == (0,)
    assert hvd.remove_process_set(process_set)


@pytest.mark.conformance
def test_sets_of_overlapping_members_are_made_at_once_in_any_order() -> None:
    """Threads create several in different orders on each rank; ranks or tags distinguish them."""
    everyone = list(range(hvd.size()))
    wanted = [(everyone, tag) for tag in "abc"] + [([0, rank], "") for rank in everyone[1:]]
    wanted = [(ranks, tag) for ranks, tag in wanted if hvd.rank() in ranks]
    made: dict[tuple[int, ...], hvd.ProcessSet] = {}

    def make(ranks: list[int], tag: str) -> None:
        made[(*ranks, ord(tag or "-"))] = hvd.add_process_set(
            ranks, members_only=True, distinct=True, tag=tag
        )

    shuffled = np.random.default_rng(hvd.rank()).permutation(len(wanted))
    threads = [threading.Thread(target=make, args=wanted[i]) for i in shuffled]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == len(wanted)
    for key in sorted(made):
        assert total(made[key]) == total_of(made[key].ranks)
    ids = hvd.allgather_object({key: one.process_set_id for key, one in made.items()})
    for of_rank in ids:
        assert all(of_rank[key] == ids[0][key] for key in of_rank)
    for key in sorted(made):
        hvd.remove_process_set(made[key])


def test_they_run_beside_operations_of_other_sets(name: str) -> None:
    handle = None
    if hvd.rank() > 0:  # rank 0 enters the global set later
        handle = hvd.allreduce_async(np.ones(3), op=hvd.Sum, name=name)
    process_set = by_members([0, 1], distinct=True)
    if process_set is not None:
        assert total(process_set) == 3
        hvd.remove_process_set(process_set)
    result = hvd.synchronize(handle or hvd.allreduce_async(np.ones(3), op=hvd.Sum, name=name))
    assert result[0] == hvd.size()


def test_an_order_of_their_own() -> None:
    order = list(range(hvd.size()))[::-1]
    process_set = hvd.add_process_set(order, members_only=True, ordered=True)
    assert hvd.allgather_object(hvd.rank(), process_set=process_set) == order
    hvd.remove_process_set(process_set)


# ---------------------------------------------------------------- all kinds against a model


@dataclass
class Known:
    """The model's knowledge of a set."""

    order: list[int]
    by_members: bool
    set: hvd.ProcessSet | None  # None on ranks that don't know it


@pytest.mark.conformance
@pytest.mark.parametrize("seed", range(3))
def test_random_sequences_against_a_model(seed: int) -> None:
    """All ranks draw the same; ranks that a step does not involve don't call."""
    random = np.random.default_rng(seed)
    size, me = hvd.size(), hvd.rank()
    known: list[Known] = []
    for step in range(60):
        if known and random.random() < 0.35:
            gone = known.pop(random.integers(len(known)))
            if not gone.by_members or me in gone.order:
                assert hvd.remove_process_set(gone.set), (seed, step)
            continue
        order = list(map(int, random.permutation(size)[: random.integers(1, size + 1)]))
        members_only, ordered, distinct = (bool(x) for x in random.integers(0, 2, 3))
        order = order if ordered else sorted(order)
        concerned = me in order or not members_only
        if members_only:
            equal = any(one.order == order for one in known) or order == list(range(size))
        else:
            candidates = [one.order for one in known if not one.by_members]
            equal = order in [*candidates, list(range(size))]
        options = {"members_only": members_only, "ordered": ordered, "distinct": distinct}
        if not concerned:
            if distinct or not equal:
                known.append(Known(order, members_only, None))
        elif equal and not distinct:
            with pytest.raises(ValueError, match="already exists"):
                hvd.add_process_set(order, **options)
        else:
            made = hvd.add_process_set(order, **options)
            assert made.ranks == order, (seed, step)
            known.append(Known(order, members_only, made))
        mine = [one for one in known if one.set is not None]
        registered_sets = {one.set.process_set_id: one.order for one in mine}
        assert hvd.get_process_set_ids_and_ranks() == registered_sets | {0: list(range(size))}
        if known:
            used = known[random.integers(len(known))]
            if me in used.order:
                assert list(hvd.allgather(np.array([me]), process_set=used.set)) == used.order
                assert total(used.set) == total_of(used.order)
    for one in known:
        if one.set is not None:
            hvd.remove_process_set(one.set)
    assert list(hvd.get_process_set_ids_and_ranks()) == [0]


# ---------------------------------------------------------------- reused ids


def test_a_set_is_not_taken_for_an_earlier_one_of_its_id() -> None:
    """Operations prepared for the ranks of the earlier set do not match."""
    rows = np.arange(2.0 * hvd.size())
    with registered(hvd.ProcessSet(range(hvd.size()), distinct=True)) as one:
        identity = one.process_set_id
        hvd.alltoall(rows, process_set=one, out=np.empty_like(rows))
        share = np.empty(2)
        hvd.reducescatter(rows, op=hvd.Sum, process_set=one, out=share)
    with ExitStack() as stack:
        for _ in range(100):
            other = stack.enter_context(registered(hvd.ProcessSet([0], distinct=True)))
            if other.process_set_id == identity:
                break
        assert other.process_set_id == identity
        if other.included():
            assert (hvd.alltoall(rows, process_set=other, out=np.empty_like(rows)) == rows).all()
            with pytest.raises(ValueError, match="out= has shape"):
                hvd.reducescatter(rows, op=hvd.Sum, process_set=other, out=share)
    hvd.barrier()
