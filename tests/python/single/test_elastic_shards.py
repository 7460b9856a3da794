"""Who keeps whose shards, and where they move: pure decisions, for all losses of few ranks."""

from __future__ import annotations

from itertools import combinations

import pytest

from horoscale.elastic.buddies import ShardsLostError, Transfer, buddies_of, transfers


def test_buddies_are_on_the_next_host() -> None:
    assert buddies_of(["a"]) == [0]
    assert buddies_of(["a", "a", "a"]) == [1, 2, 0]
    assert buddies_of(["a", "a", "b", "b"]) == [2, 3, 0, 1]
    assert buddies_of(["a", "a", "a", "b"]) == [3, 3, 3, 0]
    assert buddies_of(["a", "b", "b", "c"]) == [1, 3, 3, 0]


def test_a_newcomer_gets_what_is_left_of_a_rank() -> None:
    # Ranks 0 and 2 of three remain; a newcomer is rank 2.
    assert transfers([0, 2, None], [1, 2, 0]) == [
        Transfer(0, 0, 0),
        Transfer(1, 1, 2),
        Transfer(2, 1, 1),
    ]
    # Nobody joins: the buddy has both.
    assert transfers([0, 2], [1, 2, 0])[1] == Transfer(1, 1, 1)
    # Nobody is lost: newcomers get nothing.
    assert transfers([0, None, None], [0]) == [Transfer(0, 0, 0)]


@pytest.mark.parametrize("hosts", [["a"] * 4, ["a", "a", "b", "b"], ["a", "b", "c"]])
@pytest.mark.parametrize("newcomers", [0, 1, 3])
def test_any_loss_is_recovered_or_told(hosts: list[str], newcomers: int) -> None:
    buddies = buddies_of(hosts)
    for count in range(len(hosts)):
        for gone in combinations(range(len(hosts)), count):
            former = [r for r in range(len(hosts)) if r not in gone] + [None] * newcomers
            lost = [r for r in gone if buddies[r] in gone]
            if lost:
                with pytest.raises(ShardsLostError, match=str(lost[0])):
                    transfers(former, buddies)
                continue
            plan = transfers(former, buddies)
            assert [one.former for one in plan] == list(range(len(hosts)))
            for one in plan:
                assert former[one.holder] in (one.former, buddies[one.former])
            targets = [one.target for one in plan if former[one.target] is None]
            assert len(targets) == len(set(targets)) == min(newcomers, count)
