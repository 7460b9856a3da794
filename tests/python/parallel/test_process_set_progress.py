"""Process sets progress independently of each other, and of ranks that don't call."""

from __future__ import annotations

import re
import threading
from functools import partial

import numpy as np
import pytest
from support.process_sets import SECONDS, all_registered, all_sets, registered, silent

import horoscale.numpy as hvd

pytestmark = pytest.mark.usefixtures("need_ranks")


def start(process_set: hvd.ProcessSet, name: str, elements: int = 1000) -> hvd.Handle:
    own = np.full(elements, float(hvd.rank()))
    return hvd.allreduce_async(own, op=hvd.Sum, name=name, process_set=process_set)


def finish(handle: hvd.Handle, process_set: hvd.ProcessSet) -> None:
    assert (hvd.synchronize(handle) == sum(process_set.ranks)).all()


def use(process_set: hvd.ProcessSet, name: str) -> None:
    finish(start(process_set, name), process_set)


def groups() -> tuple[list[int], list[int]]:
    """All but the last rank, and all but the first one."""
    everyone = list(range(hvd.size()))
    return everyone[:-1], everyone[1:]


@pytest.mark.conformance
def test_nobody_waits_for_a_rank_outside(name: str) -> None:
    ours, theirs = groups()
    with all_registered([ours, theirs]) as (process_set, _):
        with silent(hvd.size() - 1):
            if process_set.included():
                for step in range(20):
                    use(process_set, f"{name}.{step % 3}")
                hvd.barrier(process_set)
        use(hvd.global_process_set, name)


@pytest.mark.conformance
def test_a_member_that_does_not_call_delays_no_other_set(name: str) -> None:
    if hvd.size() == 2:
        pytest.skip("needs a set without the silent rank that overlaps with its set")
    ours, theirs = groups()
    with all_registered([ours, theirs]) as (active, stuck):
        handles = []
        with silent(hvd.size() - 1):
            if stuck.included() and hvd.rank() < hvd.size() - 1:
                # More than the banks and the credit of a set hold.
                handles = [start(stuck, f"{name}.{i}", 100_000 * i) for i in range(8)]
            if active.included():
                for step in range(20):
                    use(active, f"{name}.{step % 3}")
            assert not any(map(hvd.poll, handles))
        if hvd.rank() == hvd.size() - 1:
            handles = [start(stuck, f"{name}.{i}", 100_000 * i) for i in reversed(range(8))]
        for handle in handles:
            finish(handle, stuck)


@pytest.mark.parametrize("seed", range(3))
def test_overlapping_sets_in_another_order_on_every_rank(seed: int, name: str) -> None:
    own_order = np.random.default_rng([seed, hvd.rank()])
    with all_registered(all_sets(30)) as sets:
        mine = [one for one in [*sets, hvd.global_process_set] if one.included()]
        for step in range(10):
            calls = [(one, k) for one in mine for k in range(3)]
            own_order.shuffle(calls)
            handles = [(start(one, f"{name}.{k}", 10 ** (k + step % 4)), one) for one, k in calls]
            own_order.shuffle(handles)
            for handle, one in handles:
                finish(handle, one)


def test_threads_that_block_in_different_sets(name: str) -> None:
    """A deadlock with a single thread: each rank blocks in all sets at once."""
    problems: list[BaseException] = []

    def work(process_set: hvd.ProcessSet) -> None:
        try:
            for step in range(30):
                use(process_set, f"{name}.{step % 2}")
        except BaseException as error:
            problems.append(error)

    with all_registered(all_sets(6)) as sets:
        mine = [one for one in sets if one.included()]
        order = np.random.default_rng(hvd.rank()).permutation(len(mine))
        threads = [threading.Thread(target=work, args=(mine[i],), daemon=True) for i in order]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SECONDS)
            assert not thread.is_alive()
    assert not problems


@pytest.mark.conformance
def test_sets_come_and_go_while_others_are_busy(name: str) -> None:
    ours, theirs = groups()
    with registered(ours) as busy:
        for step in range(20):
            # Rank 0 calls its operations after all others of its sets.
            handles = []
            if busy.included() and hvd.rank() != 0:
                handles = [start(busy, f"{name}.{k}", 200_000) for k in range(3)]
            with registered(theirs) as guest:
                if guest.included():
                    use(guest, f"{name}.{step}")
                if hvd.rank() == 0:
                    handles = [start(busy, f"{name}.{k}", 200_000) for k in range(3)]
            for handle in handles:
                finish(handle, busy)


def test_sets_come_and_go_beside_a_thread_that_uses_another(name: str) -> None:
    ours, theirs = groups()
    ended = threading.Event()
    problems: list[BaseException] = []

    def work(process_set: hvd.ProcessSet) -> None:
        try:
            for step in range(200):
                use(process_set, f"{name}.{step % 2}")
        except BaseException as error:
            problems.append(error)
        ended.set()

    with registered(ours) as busy:
        thread = threading.Thread(target=work, args=(busy,), daemon=True)
        if busy.included():
            thread.start()
        for _ in range(50):
            with registered(theirs) as guest:
                if guest.included():
                    use(guest, name)
        if busy.included():
            assert ended.wait(SECONDS)
            thread.join(SECONDS)
    assert not problems


@pytest.mark.conformance
def test_a_step_costs_the_same_messages_with_64_other_sets(name: str) -> None:
    """64 sets on 8 ranks; fewer ranks can't form that many."""

    def step() -> None:
        for k in range(3):
            use(hvd.global_process_set, f"{name}.{k}")

    def cost() -> dict[str, int]:
        step()  # the names are cached from now on
        before = hvd.metrics()
        for _ in range(10):
            step()
        after = hvd.metrics()
        # Received data depends on the senders, which may be ahead.
        counters = ("control_frames_sent", "socket_frames_sent", "data_bytes_sent")
        return {one: after[one] - before[one] for one in counters}

    alone = cost()
    with all_registered(all_sets(64)) as sets:
        for one in sets:
            if one.included():
                use(one, name)
        hvd.barrier()
        assert cost() == alone
    assert alone["control_frames_sent"] == 10 * 3 * (hvd.size() - 1 if hvd.rank() == 0 else 1)


@pytest.mark.conformance
def test_contradictions_are_told_to_all(name: str) -> None:
    first = hvd.rank() == 0
    with all_registered([[0], [1]]) as (zero, one):
        add, remove = hvd.add_process_set, hvd.remove_process_set
        new = [0, 1] if hvd.size() > 2 else [0]  # already cached
        contradictions = [
            (partial(add, new), partial(add, [1]), "the set of ranks? 0", "the set of rank 1"),
            (
                partial(add, new),
                partial(remove, one),
                "add_process_set, the set",
                "remove_process_set, process set",
            ),
            (partial(remove, zero), partial(remove, one), r"process set \d+", r"process set \d+"),
        ]
        for of_first, of_others, said_by_first, said_by_others in contradictions:
            with pytest.raises(hvd.MismatchError) as raised:
                (of_first if first else of_others)()
            assert re.search(f"rank 0: {said_by_first}", str(raised.value))
            assert re.search(f"ranks? 1.*: {said_by_others}", str(raised.value))
        assert len(hvd.get_process_set_ids_and_ranks()) == 3
    with registered(groups()[1]) as process_set:
        if process_set.included() and hvd.size() > 2:
            rows = 3 if hvd.rank() == 1 else 4
            with pytest.raises(hvd.MismatchError) as raised:
                hvd.allreduce(np.ones(rows), name=name, process_set=process_set)
            for said in (f"process set {process_set.process_set_id}", r"rank 1: float64\[3\]"):
                assert re.search(said, str(raised.value))
            assert re.search(r"ranks? 2.*: float64\[4\]", str(raised.value))
            use(process_set, name)


@pytest.mark.conformance
def test_sets_of_a_rank_that_has_joined_raise_on_the_others(name: str) -> None:
    ours, theirs = groups()
    last = hvd.size() - 1
    with all_registered([ours, theirs, [0, last]] if hvd.size() > 2 else [ours, theirs]) as sets:
        for step in range(5):
            if hvd.rank() != last:
                for one in sets:
                    if one.included() and last in one.ranks:
                        with pytest.raises(
                            hvd.HorovodInternalError, match=f"rank {last}, which called"
                        ):
                            use(one, f"{name}.{step}")
                    elif one.included():
                        use(one, f"{name}.{step}")
                total = hvd.allreduce(np.ones(3), op=hvd.Sum, name=f"{name}.global")
                assert (total == last).all()
            hvd.join()
            for one in sets:  # immediately
                if one.included():
                    use(one, name)
        # Operations that were requested before join() still complete.
        for one in sets:
            if one.included():
                handle = start(one, name)
                if hvd.rank() != last:
                    finish(handle, one)
        assert hvd.join() in range(hvd.size())
