"""The content of the page, compared with the API."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, ConsoleMessage, Page

PATIENCE_MS = 60_000
NOTHING = "\N{EN DASH}"  # in a table
DESKTOP = {"width": 1280, "height": 900}
PHONE = {"width": 390, "height": 844}

_TILES = """tiles => tiles.map(tile => [tile.dataset.rank, tile.dataset.state])"""
_ROWS = """rows => rows.map(row => [...row.children].map(cell => cell.textContent))"""
_EVENTS = """items => items.map(item => [item.dataset.kind, item.dataset.severity])"""


@contextmanager
def opened(
    browser: Browser, url: str, *, scheme: str = "light", viewport: dict[str, int] = DESKTOP
) -> Iterator[Page]:
    """The page, once it shows a response. It must have no errors and load nothing external."""
    context = browser.new_context(
        viewport=viewport, color_scheme=scheme, reduced_motion="reduce", locale="en-GB"
    )
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    wrong: list[str] = []
    asked: set[str] = set()
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda line: wrong.append(line.text) if _is_wrong(line) else None)
    page.on("request", lambda request: asked.add(request.url.split("/")[2]))
    page.goto(url)
    page.wait_for_function("() => document.body.dataset.shown")
    try:
        yield page
        assert wrong == []
        assert len(asked) == 1, asked
    finally:
        context.close()


def _is_wrong(line: ConsoleMessage) -> bool:
    """A message that is not about a launcher that has ended meanwhile."""
    return line.type == "error" and "Failed to load resource: net::ERR_" not in line.text


def answer(page: Page) -> dict[str, Any]:
    """The API response that the page currently shows."""
    while True:
        shown = page.evaluate("() => Number(document.body.dataset.shown)")
        with page.expect_response(lambda one: "/api/v1/status" in one.url) as response:
            pass
        told = response.value.json()
        page.wait_for_function("n => Number(document.body.dataset.shown) > n", arg=shown)
        if page.evaluate("() => Number(document.body.dataset.shown)") == shown + 1:
            return told


def assert_agrees(page: Page, told: dict[str, Any]) -> None:
    """The page agrees with the API."""
    tiles = page.eval_on_selector_all(".tile", _TILES)
    ranks = [
        ["" if one["rank"] is None else str(one["rank"]), one["state"]] for one in told["ranks"]
    ]
    assert sorted(tiles) == sorted(ranks)
    rows = page.eval_on_selector_all("#sets tr", _ROWS)
    assert [(row[0], row[1]) for row in rows] == [(str(s["set"]), s["ranks"]) for s in told["sets"]]
    for row, one in zip(rows, told["sets"], strict=True):
        assert row[3] == (one["waits_for"] or NOTHING)
        assert row[5] == (one["waiting"] or NOTHING)
        if one["waits_for"]:
            nobody = "none: it is being executed" if one["executing"] else NOTHING
            assert row[6] == (one["missing"] or nobody)
    assert page.text_content("#command") == told["job"]["command"]
    assert page.text_content("#state") == told["job"]["state"]
    numbers = dict(page.eval_on_selector_all("#numbers div", _ROWS))
    assert numbers["Ranks"] == str(told["job"]["size"])
    assert {name for name in numbers if name.startswith("Sent as ")} == {
        f"Sent as {name}" for name in told["job"]["encodings"]
    }
    assert numbers["Step"] == f"{told['job']['steps']:,}"
    listed = page.eval_on_selector_all("#findings-list li", "all => all.map(li => li.textContent)")
    assert listed == [one["text"] for one in told["findings"]]
    links = page.eval_on_selector_all("#links li", "all => all.length")
    assert links == len(
        [one for one in told["links"] if one["bytes_per_second"] or len(told["links"]) <= 8]
    )
    recoveries = page.eval_on_selector_all("#recoveries > li", "all => all.length")
    assert recoveries == len(told["recoveries"])
    shown = page.eval_on_selector_all(".events li", _EVENTS)
    for one in told["events"]:
        assert [one["kind"], one["severity"]] in shown


def assert_accessible(page: Page) -> None:
    """axe-core finds no problems."""
    results = Axe().run(page)
    assert results.violations_count == 0, results.generate_report()
