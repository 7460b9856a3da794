"""The content of the page, compared with the API."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, ConsoleMessage, Page

PATIENCE_MS = 60_000
NOTHING = "\N{EN DASH}"  # in a table
DESKTOP = {"width": 1280, "height": 900}
PHONE = {"width": 390, "height": 844}

_DECISIONS = {"autotune", "balance", "compression", "view", "recovery", "end"}
_SECONDS = {"µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
_UNITS = _SECONDS | {"GB/s": 1e9, "MB/s": 1e6, "kB/s": 1e3, "B/s": 1.0}
_ROUNDED = 0.06  # the most by which a number with few digits differs
# Everything at one moment, with the number of the answer that is shown.
_SHOWN = """() => {
  const all = (query, of, root = document) => [...root.querySelectorAll(query)].map(of);
  const text = (element) => element.textContent;
  const cells = (row) => [...row.children].map(text);
  const event = (item) => [item.dataset.kind, item.dataset.severity,
    item.querySelector("time").dateTime, text(item.querySelector(".text"))];
  return {
    answer: Number(document.body.dataset.shown),
    command: text(document.querySelector("#command")),
    state: text(document.querySelector("#state")),
    numbers: Object.fromEntries(all("#numbers div", cells)),
    hosts: all("#hosts > div", (card) => [text(card.querySelector("h3 span")),
      all(".tile", (tile) => [tile.dataset.rank, tile.dataset.state, tile.ariaLabel], card)]),
    legend: Object.fromEntries(all("#legend div", cells)),
    sets: all("#sets tr", cells),
    links: all("#links li .words", cells),
    findings: all("#findings-list li", text),
    recoveries: all("#recoveries > li", (one) => all("ol li", (row) => text(row.lastChild), one)),
    decisions: all("#decisions li", event),
    messages: all("#messages li", event),
  };
}"""


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


def answer(page: Page) -> tuple[dict[str, Any], dict[str, Any]]:
    """An answer of the API, and what the page shows of it."""
    while True:
        before = page.evaluate("() => Number(document.body.dataset.shown)")
        with page.expect_response(lambda one: "/api/v1/status" in one.url) as response:
            pass
        told = response.value.json()
        page.wait_for_function("n => Number(document.body.dataset.shown) > n", arg=before)
        shown = page.evaluate(_SHOWN)
        if shown["answer"] == before + 1:
            return told, shown


def assert_agrees(page: Page) -> dict[str, Any]:
    """The page shows what the API says, which is returned."""
    told, shown = answer(page)
    _assert_job(told["job"], shown)
    _assert_ranks(told["ranks"], shown["hosts"])
    _assert_step(told["history"], shown["legend"])
    _assert_sets(told["sets"], shown["sets"])
    _assert_links(told["links"], shown["links"])
    assert shown["findings"] == [one["text"] for one in told["findings"]]
    for one, phases in zip(reversed(told["recoveries"]), shown["recoveries"], strict=True):
        going_on = [] if one["over"] else ["going on"]
        assert phases == [phase["what"] for phase in one["phases"]] + going_on
    assert_events(told["events"], shown)
    return told


def _assert_job(job: dict[str, Any], shown: dict[str, Any]) -> None:
    assert shown["command"] == job["command"]
    assert shown["state"] == job["state"]
    numbers = shown["numbers"]
    assert numbers["Ranks"] == f"{job['size']:,}"
    assert numbers["Hosts"] == str(len(job["hosts"]))
    assert numbers["Step"] == f"{job['steps']:,}"
    assert _rate(numbers["Speed"]) == pytest.approx(job["steps_per_second"], rel=_ROUNDED)
    assert quantity(numbers["Reduced"]) == pytest.approx(
        job["reduced_bytes_per_second"], rel=_ROUNDED
    )
    assert numbers.get("View", "0") == str(job["view"])
    saved = {name: words for name, words in numbers.items() if name.startswith("Sent as ")}
    assert saved.keys() == {f"Sent as {name}" for name in job["encodings"]}
    for name, used in job["encodings"].items():
        ratio = used["bytes_before"] / used["bytes_after"]
        assert saved[f"Sent as {name}"] == f"{ratio:.1f} times fewer bytes"


def _assert_ranks(ranks: list[dict[str, Any]], hosts: list[Any]) -> None:
    """Each is under its host, with its state and its speed."""
    expected: dict[str, list[dict[str, Any]]] = {}
    for one in ranks:
        expected.setdefault(one["host"], []).append(one)
    assert [host for host, _ in hosts] == list(expected)
    for host, tiles in hosts:
        for one, (rank, state, label) in zip(expected[host], tiles, strict=True):
            assert (rank, state) == ("" if one["rank"] is None else str(one["rank"]), one["state"])
            assert _rate(label) == pytest.approx(one["steps_per_second"], rel=_ROUNDED)


def _assert_step(history: list[dict[str, float]], legend: dict[str, str]) -> None:
    """The parts of the newest point that has steps."""
    parts = {"Computing": "computing", "Exposed": "exposed", "Waiting": "waiting"}
    last = next(
        (one for one in reversed(history) if sum(one[part] for part in parts.values()) > 0), None
    )
    if last is None:
        assert set(legend.values()) == {NOTHING}
        return
    whole = sum(last[part] for part in parts.values())
    assert quantity(legend["A step"]) == pytest.approx(whole, rel=_ROUNDED)
    for name, part in parts.items():
        seconds, _, share = legend[name].partition(" · ")
        assert quantity(seconds) == pytest.approx(last[part], rel=_ROUNDED, abs=1e-6)
        assert int(share.removesuffix(" %")) == pytest.approx(100 * last[part] / whole, abs=0.6)


def _assert_sets(sets: list[dict[str, Any]], rows: list[list[str]]) -> None:
    for one, row in zip(sets, rows, strict=True):
        number, ranks, executing, waits_for, since, waiting, missing, operations = row
        assert (number, ranks) == (str(one["set"]), one["ranks"])
        assert executing == (one["executing"] or NOTHING)
        assert waits_for == (one["waits_for"] or NOTHING)
        assert waiting == (one["waiting"] or NOTHING)
        assert operations == f"{one['operations']:,}"
        if one["waits_for"]:
            assert quantity(since) == pytest.approx(one["waits_seconds"], rel=_ROUNDED)
            nobody = "none: it is being executed" if one["executing"] else NOTHING
            assert missing == (one["missing"] or nobody)


def _assert_links(links: list[dict[str, Any]], rows: list[list[str]]) -> None:
    used = [one for one in links if one["bytes_per_second"] or len(links) <= 8]
    for one, (words, speed) in zip(used, rows, strict=True):
        inside = one["from"] == one["to"]
        route = f"{one['from']} → {one['to']}"
        assert words == (f"inside {one['from']} (shared memory)" if inside else route)
        assert quantity(speed) == pytest.approx(one["bytes_per_second"], rel=_ROUNDED, abs=1)


def assert_events(events: list[dict[str, Any]], shown: dict[str, Any]) -> None:
    """Decisions and messages are in their lists, with their times."""
    for one in events:
        listed = shown["decisions" if one["kind"] in _DECISIONS else "messages"]
        at = datetime.fromtimestamp(one["time"]).astimezone()
        assert any(
            (kind, severity) == (one["kind"], one["severity"])
            and one["text"] in text
            and abs((datetime.fromisoformat(time) - at).total_seconds()) < 0.01
            for kind, severity, time, text in listed
        ), (one, listed)


def quantity(text: str) -> float:
    """The seconds or bytes a second of "1.5 ms", "1 h 2 min" or "3.20 GB/s"."""
    return sum(float(number) * _UNITS[unit] for number, unit in re.findall(r"([\d.]+) (\S+)", text))


def _rate(text: str) -> float:
    """The steps a second in a sentence; 0 without any."""
    found = re.search(r"([\d.]+) steps/s", text)
    return float(found[1]) if found else 0.0


def assert_accessible(page: Page) -> None:
    """axe-core finds no problems."""
    results = Axe().run(page)
    assert results.violations_count == 0, results.generate_report()
