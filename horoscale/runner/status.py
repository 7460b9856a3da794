"""`horoscalerun --status`: the status of an elastic job as a table, updated each second."""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from horoscale.runner.control import ControlError
from horoscale.runner.text import printable

if TYPE_CHECKING:
    from rich.console import RenderableType

_INTERVAL_S = 1.0
_HEADINGS = ("rank", "host", "slot", "state", "progress", "computes", "pending", "reported")

Status = dict[str, Any]


def show_status(ask: Callable[[], Status], as_json: bool, show: Callable[[str], object]) -> None:
    """Show the status once, or on a terminal with rich until Ctrl-C or the end of the job.

    Raises control.ControlError if the first query fails.
    """
    status = ask()
    if as_json:
        show(json.dumps(status, indent=2) + "\n")
    elif sys.stdout.isatty() and importlib.util.find_spec("rich"):
        _show_live(status, ask)
    else:
        show(as_text(status))


def as_text(status: Status) -> str:
    """Return the table in columns, and the problems."""
    lines = [_HEADINGS, *rows(status)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(_HEADINGS))]
    text = [title(status)]
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        text.append("  ".join(cells).rstrip())
    text += [f"! {one}" for one in wrong(status)]
    return "\n".join(text) + "\n"


def title(status: Status) -> str:
    """Return a line about the whole job."""
    return f"view {status['view']}: {status['size']} ranks, {status['resets']} changes so far"


def rows(status: Status) -> list[tuple[str, ...]]:
    """Return the cells of each process, ranks first."""
    processes = sorted(status["processes"], key=lambda one: (one["rank"] is None, one["rank"] or 0))
    return [tuple(printable(cell) for cell in _cells(one)) for one in processes]


def wrong(status: Status) -> list[str]:
    """Return sentences about stalled ranks and process sets, and about slow ranks."""
    return [printable(str(one["text"])) for one in status["findings"]]


def _cells(one: Status) -> tuple[str, ...]:
    progress = ", ".join(f"{name} {value}" for name, value in one["progress"].items())
    share = one["computing_share"]
    reported = f"{one['reported_seconds_ago']:.0f} s ago" if progress or one["sets"] else ""
    return (
        "" if one["rank"] is None else str(one["rank"]),
        one["host"],
        str(one["slot"]),
        one["part"],
        progress,
        "" if share is None else f"{share:.0%}",
        _pending(one["sets"]),
        reported,
    )


def _pending(sets: list[Status]) -> str:
    """Return the operation that has been pending longest, if it is long."""
    waiting = [one for one in sets if one.get("pending") and one.get("pending_seconds", 0) >= 1]
    if not waiting:
        return ""
    one = max(waiting, key=lambda one: float(one["pending_seconds"]))
    return f"{one['pending_operation']} in set {one['set']}, {one['pending_seconds']:.0f} s"


def _show_live(status: Status, ask: Callable[[], Status]) -> None:
    from rich.live import Live

    try:
        with Live(_drawn(status), auto_refresh=False) as live:
            while True:
                time.sleep(_INTERVAL_S)
                try:
                    live.update(_drawn(ask()), refresh=True)
                except ControlError:  # the job has ended
                    return
    except KeyboardInterrupt:
        return


def _drawn(status: Status) -> RenderableType:
    from rich.console import Group
    from rich.markup import escape
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title(status))
    for heading in _HEADINGS:
        table.add_column(heading)
    for row in rows(status):
        table.add_row(*map(escape, row))
    return Group(table, *(Text(one, style="bold red") for one in wrong(status)))
