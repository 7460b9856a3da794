"""Output that several ranks have in common is printed once, and nothing is lost."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from horoscale._rank_ranges import named, rank_intervals, rank_ranges
from horoscale.runner import tracebacks
from horoscale.runner.tracebacks import (
    HOLD_S,
    Tracebacks,
    split_traceback,
    with_source,
    without_own_frames,
)

SIMPLE = b"""Traceback (most recent call last):
  File "train.py", line 3, in <module>
    main()
    ~~~~^^
ValueError: no luck
"""
CHAINED = (
    SIMPLE
    + b"""
During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "train.py", line 5, in <module>
    other()
KeyError: 'x'
"""
)


class Stream:
    def __init__(self, rank: int, printed: list[tuple[Sequence[int], bytes]]) -> None:
        self.rank = rank
        self.printed = printed
        self.remembered = b""

    def emit(self, lines: bytes, ranks: Sequence[int]) -> None:
        self.printed.append((ranks, lines))
        self.remember(lines)

    def remember(self, lines: bytes) -> None:
        self.remembered += lines


class Ranks:
    """Streams of some ranks, and a clock that stands still."""

    def __init__(self, count: int, *, show_all: bool = False) -> None:
        self.now = 100.0
        self.printed: list[tuple[Sequence[int], bytes]] = []
        self.streams = [Stream(rank, self.printed) for rank in range(count)]
        self.tracebacks = Tracebacks(show_all=show_all, clock=lambda: self.now)

    def say(self, rank: int, lines: bytes) -> None:
        self.tracebacks.feed(self.streams[rank], lines)

    def wait(self, seconds: float = HOLD_S) -> None:
        self.now += seconds
        self.tracebacks.check_deadline(self.now)


def test_other_lines_pass_at_once() -> None:
    ranks = Ranks(1)
    ranks.say(0, b"a\nb\n")
    ranks.say(0, b"said: Traceback (most recent call last):\n")
    assert ranks.printed == [([0], b"a\nb\n"), ([0], b"said: Traceback (most recent call last):\n")]
    assert ranks.tracebacks.deadline is None


def test_one_traceback_of_several_ranks_is_printed_once() -> None:
    ranks = Ranks(4)
    for rank in (2, 0, 3, 1):
        for line in (b"before\n" + SIMPLE).splitlines(keepends=True):
            ranks.say(rank, line)
    assert ranks.printed == [([rank], b"before\n") for rank in (2, 0, 3, 1)]
    assert ranks.tracebacks.deadline == ranks.now + HOLD_S
    ranks.wait()
    assert ranks.printed[4:] == [([0, 1, 2, 3], SIMPLE)]
    assert [stream.remembered for stream in ranks.streams] == [b"before\n" + SIMPLE] * 4
    assert ranks.tracebacks.deadline is None


def test_it_is_held_no_longer_than_said_whatever_follows() -> None:
    ranks = Ranks(1)
    ranks.say(0, SIMPLE)
    ranks.wait(HOLD_S / 2)
    ranks.say(0, b"it goes on\n")
    assert ranks.printed == []
    ranks.wait(HOLD_S / 2)
    ranks.say(0, b"and on\n")
    assert ranks.printed == [([0], SIMPLE), ([0], b"it goes on\n"), ([0], b"and on\n")]


def test_what_differs_is_printed_for_each() -> None:
    ranks = Ranks(3)
    other = SIMPLE.replace(b"luck", b"money")
    ranks.say(0, SIMPLE)
    ranks.say(1, other)
    ranks.say(2, SIMPLE)
    ranks.tracebacks.flush()
    assert ranks.printed == [([0, 2], SIMPLE), ([1], other)]


def test_what_follows_a_traceback_is_printed_once_only_if_all_say_it() -> None:
    ranks = Ranks(2)
    for rank in range(2):
        ranks.say(rank, SIMPLE + b"the same end\n")
    ranks.wait()
    assert ranks.printed == [([0, 1], SIMPLE), ([0, 1], b"the same end\n")]
    ranks = Ranks(2)
    for rank in range(2):
        ranks.say(rank, SIMPLE + b"the end of %d\n" % rank)
    ranks.wait()
    assert ranks.printed == [
        ([0, 1], SIMPLE),
        ([0], b"the end of 0\n"),
        ([1], b"the end of 1\n"),
    ]


def test_a_rank_that_comes_later_refers_to_the_others() -> None:
    ranks = Ranks(4)
    ranks.say(0, SIMPLE)
    ranks.say(1, SIMPLE)
    ranks.wait()
    ranks.say(3, SIMPLE + b"bye\n")
    ranks.wait()
    assert ranks.printed == [
        ([0, 1], SIMPLE),
        ([3], b"(the same traceback as that of ranks 0-1)\n"),
        ([3], b"bye\n"),
    ]
    assert SIMPLE in ranks.streams[3].remembered  # for the report
    # A rank that prints it again does so in full.
    ranks.say(0, SIMPLE)
    ranks.wait()
    assert ranks.printed[-1] == ([0], SIMPLE)


def test_nothing_is_held_on_demand() -> None:
    ranks = Ranks(2, show_all=True)
    for rank in range(2):
        ranks.say(rank, SIMPLE)
    assert ranks.printed == [([0], SIMPLE), ([1], SIMPLE)]


def test_a_flood_is_not_held() -> None:
    ranks = Ranks(1)
    flood = b"x" * 99 + b"\n"
    ranks.say(0, SIMPLE)
    for _ in range(12_000):
        ranks.say(0, flood)
    assert sum(len(text) for _, text in ranks.printed) > 500_000
    ranks.tracebacks.flush()
    assert b"".join(text for _, text in ranks.printed) == SIMPLE + flood * 12_000


def test_where_a_traceback_ends() -> None:
    for text in (SIMPLE, CHAINED, SIMPLE.replace(b"\n", b"\r\n")):
        assert split_traceback(text + b"more\n") == (text, b"more\n")
        assert split_traceback(text) == (text, b"")
    assert split_traceback(SIMPLE + b"\nDuring\n") == (SIMPLE, b"\nDuring\n")
    header = SIMPLE.splitlines(keepends=True)[0]
    assert split_traceback(header) == (header, b"")


def test_our_own_frames_are_left_out() -> None:
    text = b"""Traceback (most recent call last):
  File "train.py", line 3, in <module>
    hvd.allreduce(x)
  File "/site-packages/horoscale/torch/ops.py", line 7, in allreduce
    return go(
           ^^^
  File "/site-packages/horoscale/_core/handle.py", line 8, in wait
  [Previous line repeated 2 more times]
  File "/site-packages/torch/x.py", line 7, in hook
    user()
  File "/site-packages/horoscale/x.py", line 7, in f
    g()
horoscale.MismatchError: no
  a note
"""
    assert (
        without_own_frames(text).decode()
        == """Traceback (most recent call last):
  File "train.py", line 3, in <module>
    hvd.allreduce(x)
  (2 frames of horoscale: HOROSCALE_FULL_TRACEBACK=1 shows them)
  File "/site-packages/torch/x.py", line 7, in hook
    user()
  (1 frame of horoscale: HOROSCALE_FULL_TRACEBACK=1 shows them)
horoscale.MismatchError: no
  a note
"""
    )
    assert without_own_frames(SIMPLE) == SIMPLE
    alone = SIMPLE.replace(b"train.py", b"/site-packages/horoscale/timeline.py")
    assert without_own_frames(alone) == alone


@pytest.mark.parametrize(
    ("file", "own"),
    [
        (tracebacks.__file__, True),
        ("/home/me/venv/lib/python3.12/site-packages/horoscale/torch/of_next_year.py", True),
        ("/usr/lib/python3/dist-packages/horoscale/config.py", True),
        ("/home/me/src/horoscale/horoscale/runner/tracebacks.py", True),
        ("/home/me/horoscale/train.py", False),
        ("/home/me/horoscale/config.py", False),
        ("/home/me/horoscale/torch/train.py", False),
        ("/home/me/venv/lib/python3.12/site-packages/torch/nn/modules/module.py", False),
        ("runner/tracebacks.py", False),
    ],
)
def test_own_frames_are_known_wherever_a_rank_has_the_package(file: str, own: bool) -> None:
    """It may differ from the launcher's location. A user's folder may have our name."""
    text = SIMPLE.replace(
        b"ValueError", f'  File "{file}", line 5, in there\n    call()\nValueError'.encode()
    )
    assert (b"(1 frame of horoscale: " in without_own_frames(text)) == own
    assert (file.encode() in without_own_frames(text)) != own


def test_names_of_ranks() -> None:
    assert rank_ranges([0, 1, 2, 3, 7, 9, 10]) == "0-3,7,9-10"
    assert rank_ranges([0, 1, 2, 3, 7, 9, 10], most=2) == "0-3,7,…"
    assert rank_intervals("0-3, 7,9-10") == [(0, 3), (7, 7), (9, 10)]
    assert [rank_intervals(text) for text in ("0-3,7,…", "0-3, 1…", "")] == [None] * 3
    assert named([4]) == "rank 4"
    assert named([4, 5]) == "ranks 4-5"


def test_lines_that_only_the_caller_has_are_put_into_a_traceback() -> None:
    import linecache

    source = ["def f():\n", "    raise ValueError(1)\n"]
    linecache.cache["<a cell>"] = (0, None, source, "<a cell>")
    own = 'Traceback:\n  File "<a cell>", line 2, in f\nValueError: 1'
    try:
        told = with_source(own)
    finally:
        del linecache.cache["<a cell>"]
    assert told.splitlines()[2] == "    raise ValueError(1)"
    assert with_source(told) == told
    assert with_source(own) == own
