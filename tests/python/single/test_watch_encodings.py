"""What is known of the encodings of a watched job: totals by process set, and decisions."""

from __future__ import annotations

from horoscale.watch.encodings import MOST_TOTALS, OTHER, Encodings, encoded_of
from horoscale.watch.job import JobWatch


def watched(ranks: int, *, elastic: bool = False) -> JobWatch:
    watch = JobWatch("python", elastic=elastic)
    for rank in range(ranks):
        watch.started(rank, rank, "node", rank)
    return watch


def texts(watch: JobWatch) -> list[str]:
    return [one["text"] for one in watch.snapshot()["events"] if one["kind"] == "compression"]


def totals(watch: JobWatch) -> dict[tuple[str, str], tuple[float, float]]:
    found, _ = watch.encodings()
    return {(one.process_set, one.encoding): (one.bytes_before, one.bytes_after) for one in found}


def test_lossy_encodings_are_summed_by_process_set_and_told_of_once() -> None:
    watch = watched(2)
    for at, bytes_before in ((1.0, 200), (2.0, 400)):
        sets = {"0": {"int8": [bytes_before, bytes_before // 4, 0.01], "x": [1], "y": "nonsense"}}
        for rank in range(2):
            own = sets | {"7": {"int8": [100, 20, 0.02 * rank]}}
            watch.report({str(rank): {"at": at, "encodings": own}}, "node")
    assert totals(watch) == {("0", "int8"): (800, 200), ("7", "int8"): (200, 40)}
    (of_all, of_seven), _ = watch.encodings()
    assert (of_all.ratio, of_all.relative_error) == (4.0, 0.01)
    assert (of_seven.ratio, of_seven.relative_error) == (5.0, 0.02)
    snapshot = watch.snapshot()
    assert snapshot["job"]["encodings"] == {
        "int8": {"bytes_before": 1000, "bytes_after": 240, "relative_error": 0.02}
    }
    (event,) = snapshot["events"]
    assert (event["kind"], event["ranks"]) == ("compression", "0-1")
    assert event["text"] == "tensors are sent as int8 between hosts"


def test_totals_do_not_fall_when_ranks_leave_or_begin_anew() -> None:
    watch = watched(2, elastic=True)
    for rank in range(2):
        watch.report({str(rank): {"encodings": {"0": {"int8": [400, 100, 0.01]}}}}, "node")
    watch.ended(1, -9, "ended by SIGKILL")
    assert totals(watch) == {("0", "int8"): (800, 200)}
    watch.report({"0": {"encodings": {"0": {"int8": [40, 10, 0.01]}}}}, "node")  # a new runtime
    assert totals(watch) == {("0", "int8"): (840, 210)}
    watch.report({"0": {"encodings": {}}}, "node")
    watch.report({"0": {"encodings": {"0": {"int8": [60, 15, 0.01]}}}}, "node")
    assert totals(watch) == {("0", "int8"): (900, 225)}


def test_a_new_set_with_the_id_of_a_removed_one_is_counted_in_full() -> None:
    watch = watched(1)
    watch.report({"0": {"encodings": {"3": {"int8": [400, 100, 0.3]}}}}, "node")
    watch.report({"0": {"encodings": {"3": {"int8": [500, 20, 0.3]}}}}, "node")
    assert totals(watch) == {("3", "int8"): (900, 120)}


def test_the_last_known_error_stays_with_the_totals() -> None:
    watch = watched(1)
    watch.report({"0": {"encodings": {"1": {"int8": [400, 100, 0.3]}}}}, "node")
    watch.report({"0": {"encodings": {}}}, "node")
    (one,), _ = watch.encodings()
    assert (one.bytes_before, one.relative_error) == (400, 0.3)


def test_the_choices_of_a_set_that_exists_are_not_evicted() -> None:
    encodings = Encodings()
    assert len(encodings.decided(0, {"0": {"int8": 3}})) == 1
    for number in range(1, 300):
        assert encodings.decided(0, {"0": {"int8": 3}, str(number): {"int8": 1}}) != []
        assert encodings.decided(0, {"0": {"int8": 3}}) == []


def test_what_is_kept_is_bounded() -> None:
    encodings = Encodings()
    for number in range(2 * MOST_TOTALS):
        encodings.take({}, encoded_of({str(number): {"int8": [8, 2, 0.5]}}))
        encodings.decided(number, {str(number): {"int8": 1}})
    found = encodings.totals([encoded_of({str(2 * MOST_TOTALS - 1): {"int8": [8, 2, 0.5]}})])
    assert len(found) == MOST_TOTALS + 1
    assert sum(one.bytes_before for one in found) == 2 * MOST_TOTALS * 8
    (rest,) = (one for one in found if one.process_set == OTHER)
    assert (rest.encoding, rest.relative_error) == (OTHER, 0.5)
    assert len(encodings._chosen) <= 64
    nonsense = ({"x": {"int8": [1, 1, 1]}}, {"0": 5}, {"1" * 99: {"int8": [1, 1, 1]}}, [1], "x")
    assert [encoded_of(one) for one in nonsense] == [{}] * len(nonsense)


def test_decisions_of_adaptive_compression_are_told_when_they_change() -> None:
    watch = watched(2)
    first, second = {"0": {"int8": 3, "none": 1}}, {"0": {"int4": 3, "none": 1}}
    for rank, chosen in ((0, first), (1, first), (0, second), (1, first), (1, second), (0, second)):
        watch.report({str(rank): {"adaptive": chosen}}, "node")
    assert texts(watch) == [
        "adaptive compression in process set 0, tensors by encoding: int8 3, none 1",
        "adaptive compression in process set 0, tensors by encoding: int4 3, none 1",
    ]
    _, tensors = watch.encodings()
    assert tensors == {("0", "int4"): 3, ("0", "none"): 1}


def test_another_rank_tells_of_decisions_when_the_first_is_lost() -> None:
    watch = watched(2, elastic=True)
    for rank in range(2):
        watch.report({str(rank): {"adaptive": {"0": {"int8": 3}}}}, "node")
    watch.ended(0, -9, "ended by SIGKILL")
    watch.report({"1": {"adaptive": {"0": {"int8": 3}}}}, "node")
    assert len(texts(watch)) == 1
    watch.report({"1": {"adaptive": {"0": {"int8": 2, "int4": 1}}}}, "node")
    assert texts(watch)[1].endswith("by encoding: int4 1, int8 2")


def test_a_set_that_is_gone_leaves_its_place_to_others() -> None:
    encodings = Encodings()
    for number in range(200):
        assert encodings.decided(0, {str(number): {"int8": 1}}) != []
