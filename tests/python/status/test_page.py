"""The page of a real job with ranks that train, stall and die; and of many ranks."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect
from shown import (
    DESKTOP,
    PATIENCE_MS,
    PHONE,
    answer,
    assert_accessible,
    assert_agrees,
    assert_events,
    opened,
)
from support.recovering_job import Recovering
from support.watched_job import WatchedJob
from support.watched_launcher import WatchedLauncher, played_hosts

from horoscale.watch.job import JobWatch
from horoscale.watch.server import StatusServer

RANK = Path(__file__).parents[1] / "integration" / "watched_rank.py"
# Where to write the pictures for the documentation; by default they are discarded.
PICTURES = os.environ.get("HOROSCALE_TEST_PICTURES")
DOCUMENTED = ("status.png", "status-64-dark.png")


def picture(page: Page, name: str, height: int, folder: Path) -> None:
    page.set_viewport_size({"width": DESKTOP["width"], "height": height})
    page.evaluate("() => window.scrollTo(0, 0)")
    target = Path(PICTURES) if PICTURES and name in DOCUMENTED else folder
    page.screenshot(path=target / name, scale="css")


def tile(page: Page, rank: int, state: str) -> None:
    expect(page.locator(f'.tile[data-rank="{rank}"][data-state="{state}"]')).to_have_count(
        1, timeout=PATIENCE_MS
    )


def test_a_job_with_a_stalled_rank_and_one_that_dies(browser: Browser, tmp_path: Path) -> None:
    hosts = played_hosts(tmp_path, "node1:2,node2:2")
    command = ["-np", 4, "--min-np", 2, *hosts, sys.executable, RANK, tmp_path]
    with WatchedLauncher(*command) as job, opened(browser, job.url) as page:
        for rank in range(4):
            tile(page, rank, "running")
        page.wait_for_function("() => document.querySelector('#area-computing').getAttribute('d')")
        assert_agrees(page)
        assert_accessible(page)

        (tmp_path / "stall").touch()
        tile(page, 2, "late")
        tile(page, 0, "waiting")
        told = assert_agrees(page)
        assert told["sets"][0]["missing"] == "2"
        assert page.text_content("#rank-h") is not None
        assert_accessible(page)
        (tmp_path / "stall").unlink()
        tile(page, 2, "running")

        os.kill(int((tmp_path / "pid.1").read_text()), signal.SIGKILL)
        expect(page.locator("#recoveries li ol")).to_contain_text(
            "the first step", timeout=PATIENCE_MS
        )
        tile(page, 3, "running")
        page.wait_for_function("() => document.querySelectorAll('.tile').length === 4")
        told = assert_agrees(page)
        assert_accessible(page)
        assert "SIGKILL" in (page.text_content("#recoveries h3") or "")
        picture(page, "status.png", 1110, tmp_path)

        (tmp_path / "end").touch()
        assert job.finish()[0] == 0
        expect(page.locator("body")).to_have_attribute("data-live", "lost", timeout=PATIENCE_MS)
        expect(page.get_by_role("status")).to_contain_text("the job has ended")


@contextmanager
def served(watch: JobWatch) -> Iterator[str]:
    """The URL of the page of a job."""
    server = StatusServer(watch, 0)
    try:
        yield f"{server.url()}?token={server.token}"
    finally:
        server.close()


def test_a_recovery_is_shown_as_it_happens(browser: Browser) -> None:
    job = Recovering()
    with served(job.watch) as url, opened(browser, url, scheme="dark") as page:
        phases = page.locator("#recoveries li ol")
        job.watch.ended(2, -9, "ended by SIGKILL")
        expect(phases).to_have_text("0 sranks were lost…going on", timeout=PATIENCE_MS)
        assert assert_agrees(page)["job"]["state"] == "recovering"
        job.after(0.2)
        job.membership(1, {1: 0, 3: 2}, "waiting")
        expect(phases).to_contain_text("all survivors have reported", timeout=PATIENCE_MS)
        tile(page, 0, "recovering")
        assert_agrees(page)
        assert_accessible(page)
        job.after(0.3)
        job.membership(2, {1: 0, 3: 1})
        expect(phases).to_contain_text("they have a new view…going on", timeout=PATIENCE_MS)
        job.report(2, {1: 50, 3: 50})
        job.report(2, {1: 51})
        expect(phases).to_contain_text("the first step", timeout=PATIENCE_MS)
        expect(phases).not_to_contain_text("going on")
        assert assert_agrees(page)["job"]["state"] == "running"


def test_decisions_and_messages_are_shown_with_their_times(browser: Browser) -> None:
    job = WatchedJob(4, elastic=True, compressed=True)
    job.second()
    job.watch.membership(1, 0, [(rank, rank, "member") for rank in range(4)])
    stall = b'[rank 0] warning: allreduce "loss" on process set 0 has waited for 9 s for rank 2\n'
    tuned = b"[rank 0] autotune: process set 0 was tuned in 238 steps\n"
    job.watch.printed(0, stall + tuned)
    notes = [["mismatch", "allreduce a: shapes differ"], ["balance", "batch sizes are now 3, 1"]]
    job.watch.report({"1": {"notes": notes}}, job.host_of(1))
    with served(job.watch) as url, opened(browser, url) as page:
        _, shown = answer(page)
        assert_accessible(page)
    assert_events(job.watch.snapshot()["events"], shown)
    assert {kind for kind, *_ in shown["decisions"]} == {
        *("autotune", "balance", "compression", "view")
    }
    assert {kind for kind, *_ in shown["messages"]} == {"mismatch", "stall"}
    texts = [text for *_, text in shown["decisions"]]
    assert "adaptive compression in process set 0, tensors by encoding: int8 32, none 8" in texts
    assert shown["numbers"]["Sent as int8"] == "4.0 times fewer bytes"


def test_a_thousand_ranks_are_shown(browser: Browser) -> None:
    job = WatchedJob(1000)
    for _ in range(3):
        job.second()
    with served(job.watch) as url, opened(browser, url, viewport=PHONE) as page:
        assert assert_agrees(page)["job"]["size"] == 1000
        assert page.locator(".tile").count() == 1000
        assert page.evaluate("() => document.documentElement.scrollWidth") <= PHONE["width"]


@pytest.fixture(scope="module")
def many() -> Iterator[tuple[WatchedJob, str]]:
    """64 ranks on eight hosts, one of which is late."""
    job = WatchedJob(64)
    for _ in range(90):
        job.second()
    job.watch.event("autotune", "process set 0 was tuned in 238 steps: steps take 7.3 % less time")
    job.stalled = {42}
    for _ in range(12):
        job.second()
    with served(job.watch) as url:
        yield job, url


def test_the_parts_of_steps_are_stacked(browser: Browser, many: tuple[WatchedJob, str]) -> None:
    with opened(browser, many[1]) as page:
        told, _ = answer(page)
        parts = ("computing", "exposed", "waiting")
        paths = [page.get_attribute(f"#area-{part}", "d") or "" for part in parts]
    bars = [re.findall(r"M([\d.]+) ([\d.]+)h[\d.]+v([\d.]+)", path) for path in paths]
    points = [one for one in told["history"] if one["computing"] > 0]
    for index, point in enumerate(points):
        below, heights = 150.0, []
        for part in bars:
            _, top, height = map(float, part[index])
            assert top + height == pytest.approx(below, abs=0.03)
            below = top
            heights.append(height)
        shares = [height / sum(heights) for height in heights]
        whole = sum(point[part] for part in parts)
        assert shares == pytest.approx([point[part] / whole for part in parts], abs=0.002)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_sixty_four_ranks_fit(
    browser: Browser,
    many: tuple[WatchedJob, str],
    scheme: str,
    viewport: dict[str, int],
    tmp_path: Path,
) -> None:
    with opened(browser, many[1], scheme=scheme, viewport=viewport) as page:
        assert_agrees(page)
        assert_accessible(page)
        width = page.evaluate("() => document.documentElement.scrollWidth")
        assert width <= viewport["width"]
        ground = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
        (red, *_) = map(int, re.findall(r"\d+", ground))
        assert (red < 64) == (scheme == "dark")
        if viewport is DESKTOP:
            picture(page, f"status-64-{scheme}.png", 1250, tmp_path)


def test_everything_is_reached_by_the_keyboard(
    browser: Browser, many: tuple[WatchedJob, str]
) -> None:
    with opened(browser, many[1]) as page:
        page.keyboard.press("Tab")
        assert page.evaluate("() => document.activeElement.className") == "skip"
        page.keyboard.press("Enter")
        page.keyboard.press("Tab")
        focused = "() => document.activeElement.dataset.rank"
        assert page.evaluate(focused) == "0"
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        expect(page.locator("#rank-h")).to_have_text("Rank 1 on node000")
        answer(page)  # the focused element keeps the focus when the page is redrawn
        assert page.evaluate(focused) == "1"
        for _ in range(70):
            page.keyboard.press("Tab")
            if page.evaluate("() => document.activeElement.className") == "scroll":
                return
        raise AssertionError("the table of process sets is not reached")


def test_a_screen_reader_hears_what_eyes_see(
    browser: Browser, many: tuple[WatchedJob, str]
) -> None:
    with opened(browser, many[1]) as page:
        late = page.get_by_role("button", name=re.compile("^rank 42: late"))
        expect(late).to_have_count(1)
        waiting = page.get_by_role(
            "button", name=re.compile(r"^rank 0: waiting, in gradient\.layers\.0")
        )
        expect(waiting).to_have_count(1)
        for name in ("Time of a step", "Ranks", "Process sets", "Bandwidth by link", "Messages"):
            expect(page.get_by_role("heading", name=name, exact=True)).to_have_count(1)
        assert page.get_by_role("region", name="Not advancing").count() == 1
        row = page.get_by_role("row", name=re.compile("gradient.layers.0.weight"))
        expect(row).to_contain_text("42")


def test_a_tile_says_more_of_its_rank(browser: Browser, many: tuple[WatchedJob, str]) -> None:
    with opened(browser, many[1]) as page:
        expect(page.locator("#rank-h")).to_have_text("Rank 42 on node005")  # others wait for it
        expect(page.locator("#rank-fields")).to_contain_text("late")
        page.locator('.tile[data-rank="7"]').click()
        expect(page.locator("#rank-h")).to_have_text("Rank 7 on node000")
        told = next(one for one in answer(page)[0]["ranks"] if one["rank"] == 7)
        fields = page.locator("#rank-fields")
        expect(fields).to_contain_text(f"{told['steps']:,}")
        expect(fields).to_contain_text(told["pending"])


def test_without_the_token_there_is_a_sentence(
    browser: Browser, many: tuple[WatchedJob, str]
) -> None:
    page = browser.new_page()
    answered = page.goto(many[1].partition("?")[0])
    assert answered is not None
    assert answered.status == 401
    expect(page.locator("body")).to_contain_text("open the URL that horoscalerun has printed")
    page.close()
