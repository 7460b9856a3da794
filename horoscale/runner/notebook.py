"""The display of horoscale.run() below a notebook cell: progress, and each rank's output, folded.

The progress comes from the job's status, which the launcher serves on loopback (--status-port).
It is an IPython display that is updated; nothing else must be installed. At the end the output gets
a separate display, because some front ends (the Jupyter console, Qt's) do not update displays, and
a kernel can't detect its front end.
"""

from __future__ import annotations

import html
import http.client
import json
import re
import secrets
import sys
import time
import urllib.request
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from horoscale.runner.text import printable

_INTERVAL_S = 0.5  # between two updates
_ASK_S = 1.0  # between two queries, and the time limit of each
_MOST_BYTES = 512 << 10  # of all ranks' output; the newest is kept
_LEAST_OF_RANK = 4 << 10
_MOST_LINE = 2000  # characters

_PREFIX = re.compile(r"^(?:[^\[\n]*)\[(\d[\d,-]*)\]<(stdout|stderr)>:(.*)$")
_URL = re.compile(r"^horoscalerun: status: (http://\S+) \(token: HOROSCALE_STATUS_TOKEN\)$")

# Ignores proxy settings: the launcher is on loopback, and must be the only one to get the token.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Display(Protocol):
    """Shows a bundle of MIME types."""

    def __call__(self, bundle: dict[str, str], /, *, below: bool = False) -> None:
        """Show it in place of the previous one, or permanently below it."""


def display_of_cell() -> Display | None:
    """Return a function that displays below the running cell, or None outside a notebook."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if shell is None or not hasattr(shell, "kernel"):
        return None
    from IPython.display import display

    handle = display({"text/plain": "horoscale.run"}, raw=True, display_id=True)

    def show(bundle: dict[str, str], /, *, below: bool = False) -> None:
        if below:
            display(bundle, raw=True)
        else:
            handle.update(bundle, raw=True)

    return show


class _Output:
    """The newest lines of one rank, or of several ranks with equal output."""

    def __init__(self) -> None:
        self.lines: deque[str] = deque()
        self.size = 0
        self.left_out = 0
        self.failed = False  # whether it has printed a traceback
        self._moves = False  # whether the next line replaces the last (ended by carriage return)

    def add(self, line: str, end: str, most: int) -> None:
        if self._moves and self.lines:
            self.size -= len(self.lines.pop())
        self._moves = end == "\r"
        self.lines.append(line)
        self.size += len(line)
        while self.size > most and len(self.lines) > 1:
            self.size -= len(self.lines.popleft())
            self.left_out += 1


class NotebookOutput:
    """The display of one call of horoscale.run() in a cell."""

    def __init__(
        self, show: Display, ranks: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`ranks` is the caller's number; `show` is from display_of_cell()."""
        self._show = show
        self._clock = clock
        self._began = clock()
        self._shown_at = self._asked_at = float("-inf")
        self._most = max(_LEAST_OF_RANK, _MOST_BYTES // max(1, ranks))
        self._outputs: dict[str, _Output] = {}
        self._own: deque[str] = deque(maxlen=100)  # the launcher's own lines
        self._rest = {"stdout": "", "stderr": ""}
        self._url: str | None = None
        self._job: Mapping[str, Any] = {}
        self.token = secrets.token_urlsafe(24)

    def feed(self, stream: str, text: str) -> None:
        """Add text that the launcher has printed on "stdout" or "stderr"."""
        *lines, rest = re.split(r"(\r\n|\n|\r(?!\Z))", self._rest[stream] + text)
        self._rest[stream] = rest
        for line, end in zip(lines[::2], lines[1::2], strict=True):
            self._take(line, end)
        self.update()

    def _take(self, line: str, end: str) -> None:
        if found := _URL.match(line):
            self._url = found[1]
        elif found := _PREFIX.match(line):
            ranks, _, said = found.groups()
            output = self._outputs.setdefault(ranks, _Output())
            output.add(printable(said)[:_MOST_LINE], end, self._most)
            output.failed = output.failed or said.startswith("Traceback (most recent call last)")
        elif line:
            self._own.append(printable(line)[:_MOST_LINE])

    @property
    def timeout(self) -> float:
        """Return the seconds until the next update is due."""
        return _INTERVAL_S

    def update(self) -> None:
        """Update the display, at most once per interval."""
        now = self._clock()
        if self._url is not None and now - self._asked_at >= _ASK_S:
            self._asked_at = now
            self._job = self._ask() or self._job
        if now - self._shown_at >= _INTERVAL_S:
            self._shown_at = now
            self._show(_joined(_headline(self._progress()), self._said()))

    def finish(self, status: int) -> None:
        """Show the launcher's exit status."""
        for stream, rest in self._rest.items():
            if rest:
                self.feed(stream, "\n")
        seconds = f"{self._clock() - self._began:.1f} s"
        ended = f"ended well after {seconds}" if status == 0 else f"failed after {seconds}"
        self._show(_headline(ended))
        if self._outputs or self._own:
            self._show(self._said(failed=status != 0), below=True)

    def _ask(self) -> Mapping[str, Any] | None:
        request = urllib.request.Request(
            f"{self._url}api/v1/job", headers={"Authorization": f"Bearer {self.token}"}
        )
        try:
            with _OPENER.open(request, timeout=_ASK_S) as answer:
                told = json.load(answer)
        except (OSError, ValueError, http.client.HTTPException):  # the launcher is ending
            return None
        return told if isinstance(told, dict) else None

    def _progress(self) -> str:
        parts = [f"{self._clock() - self._began:.0f} s"]
        if job := self._job:
            parts.insert(0, f"{job['state']}, {job['size']} ranks")
            if job["steps"]:
                parts += [f"step {job['steps']}", f"{job['steps_per_second']:.3g} steps/s"]
        return " · ".join(parts)

    def _said(self, failed: bool = False) -> dict[str, str]:
        """Return the output of the ranks and the launcher."""
        ordered = sorted(self._outputs.items(), key=lambda item: int(re.split("[,-]", item[0])[0]))
        folds = [_fold(ranks, output, failed and output.failed) for ranks, output in ordered]
        own = html.escape("\n".join(self._own))
        text = [f"[{ranks}] {line}" for ranks, output in ordered for line in output.lines]
        return {
            "text/html": "".join(folds) + (f"<pre>{own}</pre>" if own else ""),
            "text/plain": "\n".join([*text, *self._own]),
        }


def _headline(text: str) -> dict[str, str]:
    return {
        "text/html": f"<div><strong>horoscale.run</strong> {html.escape(text)}</div>",
        "text/plain": f"horoscale.run: {text}",
    }


def _joined(head: dict[str, str], rest: dict[str, str]) -> dict[str, str]:
    return {
        "text/html": head["text/html"] + rest["text/html"],
        "text/plain": f"{head['text/plain']}\n{rest['text/plain']}",
    }


def _fold(ranks: str, output: _Output, is_open: bool) -> str:
    name = f"rank{'' if ranks.isdecimal() else 's'} {ranks}"
    count = len(output.lines) + output.left_out
    last = next((line for line in reversed(output.lines) if line), "")
    left_out = f"… {output.left_out} lines before these\n" if output.left_out else ""
    body = html.escape(left_out + "\n".join(output.lines))
    return (
        f"<details{' open' if is_open else ''}><summary>{name} · {count} "
        f"line{'' if count == 1 else 's'} · <code>{html.escape(last[:120])}</code></summary>"
        f"<pre>{body}</pre></details>"
    )
