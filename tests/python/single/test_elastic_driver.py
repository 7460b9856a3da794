"""The components of elastic jobs, each on its own."""

from __future__ import annotations

import json
import selectors
import socket
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horoscale.common import elastic_link
from horoscale.common.elastic_link import ElasticLink, LeftJobError
from horoscale.common.views import Provisional, View, views_of
from horoscale.driver.agreement import Candidate, agreed_commit, compose
from horoscale.driver.bans import BanPolicy, Bans
from horoscale.driver.discovery import DiscoveryError, parse_discovered, run_script
from horoscale.driver.driver import Driver, MessageError
from horoscale.driver.events import Start
from horoscale.driver.membership import REPLACE_AFTER_S, SETTLE_S, Rules
from horoscale.runner.rank_link import MAX_LINE_BYTES, RankLink

PATIENCE_S = 30.0


def two_ranks(number: int = 1) -> list[View]:
    members = ["a:0:1", "b:0:2"]
    return views_of(number, members, [None, None], source=0, commit=0, skip_sync=False)


# -------------------------------------------------------------------------------- views


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=5))
def test_views_number_ranks_as_the_launcher_does(slots: list[int]) -> None:
    members = [f"host{i}:{slot}:{i}{slot}" for i, n in enumerate(slots) for slot in range(n)]
    views = views_of(3, members, [None] * len(members), source=0, commit=0, skip_sync=False)
    for rank, view in enumerate(views):
        assert View.from_json(view.to_json()) == view
        host = int(view.host.removeprefix("host"))
        assert (view.rank, view.local_size) == (rank, slots[host])
        assert members[rank].split(":")[1] == str(view.local_rank)
        assert view.cross_size == sum(count > view.local_rank for count in slots)
        assert view.cross_rank == sum(count > view.local_rank for count in slots[:host])


@pytest.mark.parametrize(
    "change",
    [
        {"number": 0},
        {"number": True},
        {"rank": 2},
        {"size": 3},
        {"members": ["a:0:1", "a:0:1"]},
        {"members": "a:0:1"},
        {"previous": [0, 0]},
        {"previous": [0, -1]},
        {"source": 1, "previous": [0, None]},
        {"skip_sync": True},
        {"local_rank": 5},
        {"more": 1},
    ],
    ids=str,
)
def test_views_that_contradict_themselves_are_refused(change: dict[str, object]) -> None:
    fields = json.loads(two_ranks()[0].to_json())
    with pytest.raises(ValueError, match="view"):
        View.from_fields({**fields, **change})


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.recursive(st.none() | st.integers() | st.text(), st.lists, max_leaves=4) | st.binary())
def test_what_is_no_view_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"view|decode|Expecting|Extra|utf|literal|surrog"):
        View.from_json(value if isinstance(value, bytes) else json.dumps(value))


# -------------------------------------------------------------------------------- agreement


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.dictionaries(st.integers(0, 5), st.lists(st.integers(1, 9), max_size=2), min_size=1))
def test_survivors_agree_on_the_highest_commit_that_those_with_one_hold(
    held: dict[int, list[int]],
) -> None:
    commit, holders = agreed_commit(held)
    assert all(commit in held[one] for one in holders) or commit == 0
    with_any = {one for one, commits in held.items() if commits}
    common = set.intersection(*(set(held[one]) for one in with_any)) if with_any else set()
    if common:
        assert (commit, holders) == (max(common), with_any)
    elif not with_any:
        assert (commit, holders) == (0, set(held))
    else:
        assert commit == max(max(held[one]) for one in with_any)


def test_a_newcomer_in_the_first_slot_is_not_rank_0() -> None:
    views = compose(
        2,
        [Candidate(4, "a", 0, None), Candidate(2, "a", 1, 1, (7,)), Candidate(3, "b", 0, 2, (7,))],
        ["a", "b"],
        failed=True,
    )
    assert views[2].members == ("a:1:2", "a:0:4", "b:0:3")
    assert views[2].previous == (1, None, 2)
    assert (views[2].source, views[2].commit, views[2].skip_sync) == (0, 7, False)


def test_the_oldest_host_keeps_rank_0() -> None:
    candidates = [
        Candidate(1, "old", 0, 0, (3,)),
        Candidate(9, "added", 0, None),
        Candidate(2, "second", 0, 1, (3,)),
    ]
    views = compose(2, candidates, ["added", "second", "old"], failed=False)
    assert views[1].members == ("old:0:1", "second:0:2", "added:0:9")


def test_sync_is_skipped_only_where_nobody_is_new_and_nothing_failed() -> None:
    both = [Candidate(1, "a", 0, 0, (3, 4)), Candidate(2, "a", 1, 1, (3, 4))]
    assert compose(2, both, ["a"], failed=False)[1].skip_sync
    assert not compose(2, both, ["a"], failed=True)[1].skip_sync
    behind = [both[0], Candidate(2, "a", 1, 1, (3,))]
    assert compose(2, behind, ["a"], failed=False)[1].commit == 3
    assert not compose(2, behind, ["a"], failed=False)[1].skip_sync


# -------------------------------------------------------------------------------- bans


def test_a_host_is_banned_when_a_slot_fails_again_and_again() -> None:
    bans = Bans(BanPolicy())
    assert not bans.failed("a", 0, 0.0)
    assert not bans.failed("a", 1, 1.0)
    assert not bans.failed("a", 0, 2.0)
    assert bans.failed("a", 0, 3.0)
    assert bans.banned("a", 12.9)
    assert not bans.banned("a", 13.0)
    assert not bans.banned("b", 3.0)
    assert [bans.failed("a", 0, 20.0 + i) for i in range(3)] == [False, False, True]
    assert bans.deadline(30.0) == 42.0  # twice as long


def test_failures_that_are_long_ago_do_not_count() -> None:
    bans = Bans(BanPolicy())
    assert not any(bans.failed("a", 0, 200.0 * i) for i in range(10))


def test_horovods_policy_bans_at_once_and_for_ever() -> None:
    bans = Bans(BanPolicy.horovod(None))
    assert bans.failed("a", 0, 0.0)
    assert bans.banned("a", 1e12)
    assert bans.deadline(1.0) is None


# -------------------------------------------------------------------------------- discovery


def test_discovered_hosts_are_read() -> None:
    text = "a:2\n\n# nobody\nb\n[fe80::1]:3\na:1  # more\nc:0\n"
    assert parse_discovered(text, 4) == (("a", 3), ("b", 4), ("fe80::1", 3))


@pytest.mark.parametrize("line", ["a:x", "a b", "-oProxyCommand=x:1", "a:1:2", "a:-1", "b"])
def test_what_names_no_host_is_refused(line: str) -> None:
    with pytest.raises(DiscoveryError, match="line 2"):
        parse_discovered(f"a:1\n{line}\n", None)


def test_a_script_that_fails_or_hangs_is_an_error() -> None:
    with pytest.raises(DiscoveryError, match="ended with status 3"):
        run_script("echo a:1; echo because >&2; exit 3")
    with pytest.raises(DiscoveryError, match=r"took longer than 0\.2 s"):
        run_script("sleep 600 & sleep 600", 0.2)
    with pytest.raises(DiscoveryError, match="prints more"):
        run_script("yes")


# -------------------------------------------------------------------------------- the driver


class _Recorder:
    """A launcher that starts nothing."""

    def __init__(self) -> None:
        self.done: list[tuple[object, ...]] = []

    def start(self, order: Start) -> None:
        self.done.append(("start", order.process, order.host, order.slot))

    def stop(self, process: int, grace_s: float) -> None:
        self.done.append(("stop", process))

    def send(self, process: int, line: bytes) -> None:
        self.done.append((json.loads(line)["kind"], process))

    def call_off(self, view: int, why: str) -> None:
        self.done.append(("call off", view))

    def say(self, text: str) -> None:
        pass

    def finish(self, status: int, why: str) -> None:
        self.done.append(("finish", status))


def report(view: int, commits: list[int], cause: str | None) -> bytes:
    message = {"kind": "report", "view": view, "commits": commits, "cause": cause}
    return json.dumps(message).encode()


def test_survivors_of_a_death_go_on_before_a_standby_starts() -> None:
    launcher = _Recorder()
    driver = Driver(Rules(np=2, min_np=1, max_np=2), launcher)
    driver.discovered([("a", 2)], 0.0)
    assert launcher.done == [("start", 1, "a", 0), ("start", 2, "a", 1)]
    launcher.done.clear()
    driver.ended(2, -9, "ended by SIGKILL", 1.0)
    assert launcher.done == [("call off", 1)]
    driver.said(1, report(1, [4, 5], "rank 1 failed"), 1.01)
    assert driver.deadline(1.01) == pytest.approx(1.01 + SETTLE_S)  # others may have died
    launcher.done.clear()
    driver.check_deadlines(1.2)
    assert launcher.done == [("view", 1)]
    assert driver.deadline(1.2) == pytest.approx(1.2 + REPLACE_AFTER_S)
    driver.check_deadlines(1.2 + REPLACE_AFTER_S)
    assert launcher.done == [("view", 1), ("start", 3, "a", 1)]
    driver.said(3, report(0, [], None), 5.0)
    assert launcher.done[2:] == [("interrupt", 1)]
    driver.said(1, report(2, [6, 7], None), 5.5)
    assert launcher.done[3:] == [("view", 1), ("view", 3)]
    assert driver.status(6.0)["size"] == 2


def test_an_answer_is_a_line_that_ranks_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """They mistake a longer one for the launcher's end."""
    lines: list[bytes] = []
    launcher = _Recorder()
    driver = Driver(Rules(np=1, min_np=1, max_np=1), launcher)
    driver.discovered([("a", 1)], 0.0)
    monkeypatch.setattr(launcher, "send", lambda process, line: lines.append(line))
    whole = driver.status(1.0)
    for name in ("processes", "findings"):
        huge = {**whole, name: ["x" * 1000] * 2000}
        monkeypatch.setattr(driver, "status", lambda now, huge=huge: huge)
        driver.said(1, b'{"kind": "status"}', 1.0)
        assert len(lines[-1]) <= elastic_link.MAX_LINE_BYTES
        assert json.loads(lines[-1])["status"][name] == []


def test_a_standby_starts_at_once_where_survivors_wait_for_it() -> None:
    launcher = _Recorder()
    driver = Driver(Rules(np=2, min_np=2, max_np=2), launcher)
    driver.discovered([("a", 2)], 0.0)
    launcher.done.clear()
    driver.ended(2, -9, "ended by SIGKILL", 1.0)
    assert launcher.done == [("call off", 1), ("start", 3, "a", 1)]


def test_a_standby_does_not_wait_for_the_eviction_of_a_rank() -> None:
    launcher = _Recorder()
    driver = Driver(Rules(np=3, min_np=1, max_np=3), launcher)
    driver.discovered([("a", 3)], 0.0)
    launcher.done.clear()
    driver.ended(3, -9, "ended by SIGKILL", 1.0)
    driver.said(1, report(1, [4, 5], "rank 2 failed"), 1.0)  # rank 1 is stopped
    driver.check_deadlines(1.0 + REPLACE_AFTER_S)
    assert launcher.done == [("call off", 1), ("start", 4, "a", 2)]


@pytest.mark.parametrize(("status", "of_job"), [(0, 0), (1, 1), (-9, 1)])
def test_a_job_ends_well_if_all_ranks_do(status: int, of_job: int) -> None:
    launcher = _Recorder()
    driver = Driver(Rules(np=2, min_np=1, max_np=3), launcher)
    driver.discovered([("a", 2)], 0.0)
    driver.ended(1, 0, "ended", 1.0)
    assert driver.finished is None
    driver.ended(2, status, "ended somehow", 2.0)
    assert driver.finished is not None
    assert driver.finished.status == of_job
    assert ("rank 1 (slot 1 of a) ended somehow" in driver.finished.why) == (of_job != 0)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    st.binary()
    | st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(
                st.sampled_from(["kind", "view", "commits", "cause", "values", "x"]), inner
            )
        ),
        max_leaves=12,
    ).map(lambda value: json.dumps(value).encode())
)
def test_what_no_rank_can_say_is_refused(line: bytes) -> None:
    driver = Driver(Rules(np=1, min_np=1, max_np=1), _Recorder())
    driver.discovered([("a", 1)], 0.0)
    try:
        driver.said(1, line, 1.0)
    except MessageError:
        return
    assert json.loads(line)["kind"] in ("report", "progress")


# -------------------------------------------------------------------------------- the link


def line_of(**message: object) -> bytes:
    return json.dumps(message).encode() + b"\n"


def view_line(view: View) -> bytes:
    return line_of(kind="view", view=json.loads(view.to_json()))


def test_a_rank_hears_its_driver() -> None:
    driver, rank = socket.socketpair()
    with driver:
        driver.settimeout(PATIENCE_S)
        driver.sendall(view_line(two_ranks(1)[0]) + line_of(kind="interrupt"))
        link = ElasticLink(rank)
        assert link.view() == two_ranks(1)[0]
        assert link.provisional() is None
        driver.sendall(view_line(two_ranks(2)[1]))
        assert link.next_view(commits=[4, 3], cause=None) == two_ranks(2)[1]
        assert link.interruption() == 0  # those of the previous view are forgotten
        said = json.loads(driver.makefile("rb").readline())
        assert said == {"kind": "report", "view": 1, "commits": [3, 4], "cause": None}
        driver.sendall(line_of(kind="leave", status=0, why="host a is not needed"))
        with pytest.raises(LeftJobError, match="host a is not needed") as left:
            link.next_view(commits=[], cause=None)
        assert left.value.status == 0


def test_a_standby_has_a_provisional_rank() -> None:
    driver, rank = socket.socketpair()
    with driver:
        fields = dict.fromkeys(Provisional.__dataclass_fields__, 0)
        fields.update(rank=3, size=4, local_size=2, cross_size=1)
        driver.sendall(line_of(kind="hello", provisional=fields))
        link = ElasticLink(rank)
        assert link.view() is None
        assert link.provisional() == Provisional(3, 4, 0, 2, 0, 1)
        link.close()


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b"", "is gone"),
        (b"x\n", "cannot decode"),
        (b"[]\n", "cannot decode"),
        (line_of(kind="new"), "cannot decode"),
        (line_of(kind="view", view={}), "cannot decode"),
        (b"[" * 100_000 + b"\n", "cannot decode"),
    ],
    ids=["end", "no JSON", "no object", "unknown", "no view", "nested"],
)
def test_a_driver_that_is_gone_or_mad_ends_the_wait(said: bytes, why: str) -> None:
    driver, rank = socket.socketpair()
    driver.sendall(view_line(two_ranks(1)[0]))
    link = ElasticLink(rank)
    driver.sendall(said)
    driver.close()
    with pytest.raises(LeftJobError, match=why) as left:
        link.next_view(commits=[], cause="x")
    assert left.value.status == 1


def test_a_rank_that_says_too_much_is_not_listened_to() -> None:
    lines: list[bytes] = []
    with selectors.DefaultSelector() as selector:
        link = RankLink(selector, lines.append)
        descriptor, inode = link.variable().split(":")
        assert Path(f"/proc/self/fd/{descriptor}").stat().st_ino == int(inode)
        rank = socket.socket(fileno=socket.dup(int(descriptor)))
        link.started()
        rank.settimeout(PATIENCE_S)
        with rank:
            rank.sendall(b"one\ntwo\nthr")
            while len(lines) < 2:
                for key, _ in selector.select(PATIENCE_S):
                    key.data()
            assert lines == [b"one\n", b"two\n"]
            link.send(b"a view\n")
            assert rank.recv(100) == b"a view\n"
            rank.setblocking(False)
            try:
                for _ in range(100):
                    rank.send(b"x" * MAX_LINE_BYTES)
                    for key, _ in selector.select(0):
                        key.data()
            except BrokenPipeError:
                pass
            else:
                pytest.fail("the link is still open")
        assert lines == [b"one\n", b"two\n"]
