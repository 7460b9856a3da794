"""Counters of all process sets of a job do not decrease when sets are removed."""

from __future__ import annotations

from horoscale.common.set_totals import SetTotals


def counters(operations: int) -> dict[str, int]:
    return {"operations": operations, "bytes": 8 * operations, "message_bytes_sent": operations}


def sums(operations: int) -> dict[str, int]:
    return {"operations": operations, "reduced_bytes": 8 * operations, "message_bytes": operations}


def test_the_counters_of_a_removed_set_stay_in_the_sums() -> None:
    totals = SetTotals()
    assert totals.over({"0": counters(4), "1": counters(6)}) == sums(10)
    assert totals.over({"0": counters(5)}) == sums(11)
    assert totals.over({"0": counters(5)}) == sums(11)


def test_a_new_set_with_the_id_of_a_removed_one_is_added() -> None:
    totals = SetTotals()
    totals.over({"0": counters(4), "1": counters(6)})
    assert totals.over({"0": counters(4), "1": counters(2)}) == sums(12)
    assert totals.over({"0": counters(4), "1": counters(3)}) == sums(13)


def test_the_next_job_starts_at_zero() -> None:
    totals = SetTotals()
    totals.over({"0": counters(4)})
    totals.reset()
    assert totals.over({"0": counters(1)}) == sums(1)
