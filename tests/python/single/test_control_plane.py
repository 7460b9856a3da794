"""The control plane's guarantees hold in every job: any sets, programs and arrival order.

Hypothesis draws the job and a seed, which orders the events. A failure prints both.
HOROSCALE_PROPERTY_EXAMPLES=5000 runs more examples, drawn anew each time.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("horoscale.sim", reason="built without HOROSCALE_BUILD_SIM=1")

from support.simulated_job import Join, Register, SimulatedJob, Step, Submit

from horoscale.sim import (
    CoordinatorOptions,
    DataType,
    FusionPlanner,
    Negotiator,
    OpKind,
    ReduceOp,
    Request,
    Scheduler,
    Signature,
    SlotTable,
    TensorSpec,
)

EXAMPLES = int(os.environ.get("HOROSCALE_PROPERTY_EXAMPLES", "0"))


def settle(examples: int) -> settings:
    return settings(
        max_examples=EXAMPLES or examples,
        derandomize=not EXAMPLES,
        database=None,
        deadline=None,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


# ---------------------------------------------------------------------- jobs

SHAPES = st.lists(st.sampled_from([0, 1, 3, 40, 130]), max_size=2)
DTYPES = st.sampled_from([DataType.FLOAT32, DataType.INT64])


@st.composite
def signatures(draw: st.DrawFn, ranks: list[int]) -> Signature:
    kinds = [OpKind.ALLREDUCE] * 4 + [OpKind.BROADCAST, OpKind.ALLGATHER, OpKind.BARRIER]
    kind = draw(st.sampled_from(kinds))
    if kind is OpKind.BARRIER:
        return Signature(kind)
    dtype = draw(DTYPES)
    tensors = []
    for _ in range(draw(st.sampled_from([1, 1, 1, 3]))):
        shape = draw(SHAPES)
        tensors.append(TensorSpec([-1, *shape] if kind is OpKind.ALLGATHER else shape, dtype))
    if kind is OpKind.BROADCAST:
        return Signature(kind, tensors, root=draw(st.sampled_from(ranks)))
    return Signature(kind, tensors, reduce_op=draw(st.sampled_from([ReduceOp.SUM, ReduceOp.MAX])))


@st.composite
def rank_sets(draw: st.DrawFn, size: int, at_most: int) -> list[list[int]]:
    """Distinct sets of some of the ranks, overlapping or not."""
    members = st.sets(st.integers(0, size - 1), min_size=1, max_size=max(1, size - 1))
    drawn = draw(st.lists(members, max_size=at_most, unique_by=lambda s: tuple(sorted(s))))
    return [sorted(s) for s in drawn if len(s) < size]


@st.composite
def option_makers(draw: st.DrawFn) -> Callable[[], CoordinatorOptions]:
    capacity = draw(st.sampled_from([1024, 0, 1, 2, 5]))
    threshold = draw(st.sampled_from([1 << 20, 1, 300, 2000]))
    partition = draw(st.sampled_from([0, 256, 512]))
    credit = draw(st.sampled_from([1 << 24, 1, 1000, 4000]))
    by_priority = draw(st.booleans())

    def make() -> CoordinatorOptions:
        options = CoordinatorOptions()
        options.cache_capacity = capacity
        options.fusion_threshold_bytes = threshold
        options.partition_bytes = partition
        options.credit_bytes = credit
        options.priority_scheduling = by_priority
        return options

    return make


@dataclass(frozen=True)
class Operation:
    """One position of a set's step: on every rank of the set, normally with the same signature."""

    name: str
    signature: Signature
    contradiction: tuple[int, Signature] | None  # a rank, and its contradictory signature


@st.composite
def operations(draw: st.DrawFn, ranks: list[int], mismatches: bool) -> list[Operation]:
    count = draw(st.integers(1, 5))
    pool = []
    for i in range(count):
        signature = draw(signatures(ranks))
        contradiction = None
        if mismatches and len(ranks) > 1 and draw(st.integers(0, 3)) == 0:
            contradiction = (draw(st.sampled_from(ranks)), draw(signatures(ranks)))
        pool.append(Operation(draw(st.sampled_from(["", f"t{i}"])), signature, contradiction))
    return pool


class Programmer:
    """Writes the programs of all ranks: the same calls, in a different order on each rank."""

    def __init__(self, size: int, seed: int) -> None:
        self.random = Random(seed)
        self.programs: list[list[Step]] = [[] for _ in range(size)]
        self.next_number = 0

    def register(self, key: int, signature: Signature) -> None:
        self.next_number += 1
        request = Request(signature, f"register.{self.next_number}")
        for program in self.programs:
            program.append(Register(key, self.next_number, request))

    def join(self) -> None:
        for program in self.programs:
            program.append(Join())

    def step(
        self, pools: list[tuple[int, list[int], list[Operation]]], leaving: frozenset[int]
    ) -> None:
        """All operations once, on ranks that don't join before."""
        own: list[list[list[Submit]]] = [[] for _ in self.programs]
        for key, ranks, pool in pools:
            submits: dict[int, list[Submit]] = {rank: [] for rank in ranks}
            for operation in pool:
                self.next_number += 1
                for rank in ranks:
                    said = operation.signature
                    if operation.contradiction and operation.contradiction[0] == rank:
                        said = operation.contradiction[1]
                    request = Request(said, operation.name, self.random.randint(-2, 2))
                    submits[rank].append(Submit(key, self.next_number, request))
            for rank in ranks:
                own[rank].append(submits[rank])
        for rank, lists in enumerate(own):
            if rank not in leaving:
                self.programs[rank] += self._merge(lists)

    def _merge(self, lists: list[list[Submit]]) -> list[Submit]:
        """In any order, except that the unnamed calls of a set stay in sequence."""
        merged: list[Submit] = [submit for submits in lists for submit in submits]
        self.random.shuffle(merged)
        unnamed: dict[int, list[Submit]] = {}
        for submit in sorted(merged, key=lambda s: s.number):
            if not submit.request.name:
                unnamed.setdefault(submit.set_key, []).append(submit)
        return [s if s.request.name else unnamed[s.set_key].pop(0) for s in merged]


SEEDS = st.integers(0, 2**32 - 1)
HOST_SIZES = st.sampled_from([0, 1, 2, 3])  # 0: every member reports directly to the coordinator


def run(job: SimulatedJob) -> SimulatedJob:
    job.run()
    job.check_end()
    return job


@settle(150)
@given(data=st.data(), size=st.integers(1, 6), seed=SEEDS, host_size=HOST_SIZES)
def test_all_members_execute_the_same_and_everything_ends_once(
    data: st.DataObject, size: int, seed: int, host_size: int
) -> None:
    sets = [list(range(size)), *data.draw(rank_sets(size, 4), "sets")]
    pools = [(key, ranks, data.draw(operations(ranks, True))) for key, ranks in enumerate(sets)]
    writer = Programmer(size, seed)
    for _ in range(data.draw(st.integers(1, 4), "steps")):
        writer.step(pools, frozenset())
    slow = frozenset(data.draw(st.sets(st.integers(0, size - 1)), "slow"))
    options = data.draw(option_makers())
    job = run(
        SimulatedJob(
            writer.programs, list(enumerate(sets)), options, seed, slow=slow, host_size=host_size
        )
    )
    assert job.all_ended()


@settle(100)
@given(data=st.data(), size=st.integers(2, 6), seed=SEEDS, host_size=HOST_SIZES)
def test_no_set_waits_for_another(
    data: st.DataObject, size: int, seed: int, host_size: int
) -> None:
    """Ranks that stop calling only block operations that need them."""
    sets = [list(range(size)), *data.draw(rank_sets(size, 4), "sets")]
    pools = [(key, ranks, data.draw(operations(ranks, False))) for key, ranks in enumerate(sets)]
    writer = Programmer(size, seed)
    for _ in range(data.draw(st.integers(1, 3), "steps")):
        writer.step(pools, frozenset())
    stops = data.draw(st.dictionaries(st.integers(0, size - 1), st.integers(0, 12)), "stops")
    options = data.draw(option_makers())
    run(
        SimulatedJob(
            writer.programs, list(enumerate(sets)), options, seed, stops=stops, host_size=host_size
        )
    )


@settle(80)
@given(data=st.data(), size=st.integers(1, 5), seed=SEEDS, host_size=HOST_SIZES)
def test_sets_come_and_go(data: st.DataObject, size: int, seed: int, host_size: int) -> None:
    """Added and removed while other sets, and they themselves, have pending operations."""
    everybody = list(range(size))
    live = {0: everybody}
    writer = Programmer(size, seed)
    key = 0
    for _ in range(data.draw(st.integers(1, 6), "changes")):
        removable = sorted(live.keys() - {0})
        if removable and data.draw(st.booleans(), "remove"):
            victim = data.draw(st.sampled_from(removable))
            del live[victim]
            place = Signature(OpKind.REMOVE_PROCESS_SET, target_set=victim)
            writer.register(victim, place)
        else:
            ranks = data.draw(rank_sets(size, 1), "add")
            if ranks and ranks[0] not in live.values():
                key += 1
                live[key] = ranks[0]
                writer.register(key, Signature(OpKind.ADD_PROCESS_SET, ranks=ranks[0]))
        pools = [(k, ranks, data.draw(operations(ranks, False))) for k, ranks in live.items()]
        writer.step(pools, frozenset())
    slow = frozenset(data.draw(st.sets(st.integers(0, size - 1)), "slow"))
    stops = data.draw(st.dictionaries(st.integers(0, size - 1), st.integers(0, 30)), "stops")
    options = data.draw(option_makers())
    job = run(
        SimulatedJob(
            writer.programs,
            [(0, everybody)],
            options,
            seed,
            slow=slow,
            stops=stops,
            host_size=host_size,
        )
    )
    assert stops or job.all_ended()


@settle(80)
@given(data=st.data(), size=st.integers(1, 5), seed=SEEDS, host_size=HOST_SIZES)
def test_joined_ranks_hold_nobody_up(
    data: st.DataObject, size: int, seed: int, host_size: int
) -> None:
    sets = [list(range(size)), *data.draw(rank_sets(size, 2), "sets")]
    pools = [(key, ranks, data.draw(operations(ranks, True))) for key, ranks in enumerate(sets)]
    writer = Programmer(size, seed)
    for _ in range(data.draw(st.integers(1, 2), "epochs")):
        leaving: frozenset[int] = frozenset()
        for _ in range(data.draw(st.integers(1, 3), "steps")):
            writer.step(pools, leaving)
            leaving |= data.draw(st.frozensets(st.integers(0, size - 1)), "leaving")
        writer.join()
    options = data.draw(option_makers())
    job = run(
        SimulatedJob(writer.programs, list(enumerate(sets)), options, seed, host_size=host_size)
    )
    assert job.all_ended()


# ---------------------------------------------------------------------- the components alone


def floats(elements: int, op: ReduceOp = ReduceOp.SUM) -> Signature:
    return Signature(OpKind.ALLREDUCE, [TensorSpec([elements])], reduce_op=op)


@settle(200)
@given(
    units=st.lists(
        st.tuples(
            st.integers(0, 3000), st.integers(-2, 2), st.sampled_from([ReduceOp.SUM, ReduceOp.MAX])
        ),
        min_size=1,
        max_size=20,
    ),
    bucket=st.sampled_from([400, 4000, 1 << 20]),
    partition=st.sampled_from([0, 256, 1024]),
    credit=st.sampled_from([400, 8000, 1 << 24]),
    seed=SEEDS,
)
def test_scheduler_keeps_to_credit_and_priority(
    units: list[tuple[int, int, ReduceOp]], bucket: int, partition: int, credit: int, seed: int
) -> None:
    """Whatever is pushed and executed when: most urgent first, everything, within the credit."""
    random = Random(seed)
    scheduler = Scheduler(FusionPlanner(bucket, partition), credit)
    waiting = list(enumerate(units))
    left = {}  # elements that are not taken yet, by unit
    outstanding: dict[int, int] = {}
    sequence = 0
    while waiting or left or outstanding:
        what = random.randrange(3)
        if what == 0 and waiting:
            unit, (elements, priority, op) = waiting.pop()
            scheduler.push(unit, floats(elements, op), priority)
            left[unit] = elements
        elif what == 1 and outstanding:
            done = random.choice(sorted(outstanding))
            scheduler.executed(done)
            del outstanding[done]
        else:
            able = scheduler.can_take()
            taken = scheduler.take()
            assert able == bool(taken)
            for piece in taken[0].parts if taken else []:
                assert units[piece.unit][2] is units[taken[0].parts[0].unit][2]
                most_urgent = max(units[unit][1] for unit in left)
                assert units[piece.unit][1] == most_urgent
                whole = units[piece.unit][0]
                assert piece.whole or piece.begin == whole - left[piece.unit]
                left[piece.unit] -= whole if piece.whole else piece.count
                assert piece.is_last == (left[piece.unit] == 0)
                if piece.is_last:
                    del left[piece.unit]
            for filled in taken:
                sequence += 1
                scheduler.published(sequence, filled.bytes)
                assert len(filled.parts) == 1 or filled.bytes <= bucket
                assert not outstanding or sum(outstanding.values()) + filled.bytes <= credit
                outstanding[sequence] = filled.bytes


@settle(200)
@given(
    dtypes=st.lists(st.tuples(DTYPES, st.integers(0, 700)), min_size=1, max_size=12),
    bucket=st.sampled_from([300, 2000, 1 << 20]),
    partition=st.sampled_from([0, 256, 1024]),
)
def test_division_covers_a_group_once(
    dtypes: list[tuple[DataType, int]], bucket: int, partition: int
) -> None:
    signature = Signature(OpKind.ALLREDUCE, [TensorSpec([n], dtype) for dtype, n in dtypes])
    buckets = FusionPlanner(bucket, partition).divide(7, signature)
    done: dict[int, int] = {}
    for filled in buckets:
        assert len({dtypes[part.tensor][0] for part in filled.parts}) == 1
        assert len(filled.parts) == 1 or filled.bytes <= bucket
        for part in filled.parts:
            assert done.get(part.tensor, 0) == part.begin
            done[part.tensor] = part.begin + part.count
    assert done == {i: elements for i, (_, elements) in enumerate(dtypes)}
    assert [part.is_last for filled in buckets for part in filled.parts].count(True) == 1
    assert buckets[-1].parts[-1].is_last


@settle(100)
@given(size=st.integers(1, 8), leavers=st.sets(st.integers(0, 7)), seed=SEEDS)
def test_unit_is_ready_with_its_last_member_and_not_before(
    size: int, leavers: set[int], seed: int
) -> None:
    random = Random(seed)
    negotiator = Negotiator(size)
    members = list(range(size))
    random.shuffle(members)
    joined = sorted(leavers & set(members[1:]))
    for member in members:
        last = member == members[-1]
        if member in joined:
            assert bool(negotiator.join(member)) == last
        else:
            unit, ready = negotiator.report(member, "gradient", floats(3 + member % 2))
            assert ready == last
    said = {member % 2 for member in members if member not in joined}
    assert negotiator.variants(unit) == len(said)
    assert negotiator.absent(unit) == joined


@settle(200)
@given(
    names=st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=40),
    capacity=st.integers(0, 4),
    lag=st.integers(0, 6),
)
def test_slots_mean_what_they_meant_to_who_reports_them(
    names: list[str], capacity: int, lag: int
) -> None:
    """Slots of a member that is `lag` entries behind are understood, and of no older one."""
    table = SlotTable(capacity)
    live: dict[int, str] = {}
    known: list[dict[int, str]] = [{}]  # by sequence: the slots of a member that has applied it
    for sequence, name in enumerate(names, 1):
        if name not in live.values():
            slot, retired = table.assign(name, floats(1), sequence)
            assert slot is None or slot not in live
            for old in retired:
                del live[old]
            if slot is not None:
                live[slot] = name
        assert len(live) <= capacity
        known.append(dict(live))
        oldest = max(0, sequence - lag)
        table.release(oldest)
        for applied in range(oldest, sequence + 1):
            for slot in range(2 * capacity):
                assert table.meaning(slot, applied) == known[applied].get(slot)
