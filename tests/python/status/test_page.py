"""The page of a real job with ranks that train, stall and die; and of many ranks."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect
from shown import DESKTOP, PATIENCE_MS, PHONE, answer, assert_accessible, assert_agrees, opened
from support.watched_job import WatchedJob
from support.watched_launcher import WatchedLauncher, played_hosts

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
        assert_agrees(page, answer(page))
        assert_accessible(page)

        (tmp_path / "stall").touch()
        tile(page, 2, "late")
        tile(page, 0, "waiting")
        told = answer(page)
        assert_agrees(page, told)
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
        told = answer(page)
        assert_agrees(page, told)
        assert_accessible(page)
        assert "SIGKILL" in (page.text_content("#recoveries h3") or "")
        picture(page, "status.png", 1110, tmp_path)

        (tmp_path / "end").touch()
        assert job.finish()[0] == 0
        expect(page.locator("body")).to_have_attribute("data-live", "lost", timeout=PATIENCE_MS)
        expect(page.get_by_role("status")).to_contain_text("the job has ended")


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
    server = StatusServer(job.watch, 0)
    yield job, f"{server.url()}?token={server.token}"
    server.close()


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
        assert_agrees(page, answer(page))
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
        told = next(one for one in answer(page)["ranks"] if one["rank"] == 7)
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
