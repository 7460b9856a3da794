"""Joining ranks receive the commit from those that have it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from support.ranks import run_ranks

from horoscale.elastic.newcomers import givers


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=8))
def test_newcomers_get_the_commit_from_near_and_from_many(ranks: list[tuple[str, bool]]) -> None:
    hosts = [host for host, _ in ranks]
    previous = [rank if has else None for rank, (_, has) in enumerate(ranks)]
    have = [rank for rank, one in enumerate(previous) if one is not None]
    newcomers = [rank for rank, one in enumerate(previous) if one is None]
    giver_of = givers(hosts, previous)
    if giver_of is None:
        assert len(newcomers) > len(have)  # otherwise each rank has at most one
        return
    given = Counter(giver_of.values())
    assert sorted(giver_of) == newcomers
    assert set(given) <= set(have)
    assert max(given.values(), default=0) <= 2
    for newcomer, giver in giver_of.items():
        near = [one for one in have if hosts[one] == hosts[newcomer]]
        if hosts[giver] != hosts[newcomer]:
            assert all(given[one] == 2 for one in near)
        else:
            assert given[giver] <= 1 + min(given[one] for one in near)


def test_too_many_newcomers_are_for_a_broadcast() -> None:
    assert givers("abc", [0, None, None]) == {1: 0, 2: 0}
    assert givers("abcd", [0, None, None, None]) is None
    assert givers("ab", [0, 1]) == {}


JOB = f"""
import sys
import numpy as np
import horoscale.numpy as hvd
from horoscale import elastic
from horoscale.common.views import views_of
from horoscale.elastic import membership
from horoscale.elastic.snapshot import Block

sys.path.append({str(Path(__file__).parents[1])!r})
from support.elastic_links import PreparedLink

hvd.init()
# The last two have joined; rank 1 is not the source.
members = ["a:0:1", "a:1:2", "b:0:3", "b:1:4"]
view = views_of(2, members, [0, 1, None, None], source=0, commit=5, skip_sync=False)[hvd.rank()]
membership.use_link(PreparedLink(view))
old = hvd.rank() < 2
own = 5 if old else hvd.rank()
state = elastic.ObjectState(weights=np.full(90_000, float(own)), empty=np.zeros(0), step=own)
if old:
    state._commits.replace(state._commits.latest(), 5)
    state._saved = True  # as by run()

def digest(block):
    raise AssertionError("hashed")

Block.digest = digest
state.sync()
assert (state.weights == 5.0).all()
assert (state.step, state.empty.shape) == (5, (0,))
assert state._held()[-1] == 5
state.step += 1
state.commit()  # the numbers agree
assert state._held() == [5, 6]
"""


def test_what_joins_gets_the_commit_and_nobody_hashes() -> None:
    ended = run_ranks(4, JOB)
    assert all(one.returncode == 0 for one in ended), ended
