"""Draws timeline files of training steps: which gradients are on the way while what is computed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

COLORS = {"forward": "#cfe3f5", "backward": "#fbe3c8", "step": "#dddddd"}
SHOWN = 3  # of the recorded steps, the last ones


def draw(recorded: Sequence[tuple[str, Path]], files: Sequence[str], title: str) -> None:
    """Write pictures of timeline files, each with a name and the phases of its steps beside it."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(len(recorded), 1, figsize=(11, 4 * len(recorded)), sharex=True)
    for axis, (name, path) in zip(axes, recorded, strict=True):
        phases = json.loads(path.with_suffix(".phases").read_text())[-3 * SHOWN :]
        start = phases[0][1][0]
        for phase, (begin, end) in phases:
            axis.axvspan((begin - start) * 1e3, (end - start) * 1e3, color=COLORS[phase], lw=0)
        rows, bars = gradients(json.loads(path.read_text()), start)
        for row, begin, length in bars:
            axis.barh(row, length, left=begin, color="#2b5d8a")
        axis.set_yticks(range(len(rows)), rows, fontsize=5)
        axis.invert_yaxis()
        axis.set_xlim(left=0)
        axis.set_title(f"{title}: {name}")
    axes[-1].set_xlabel("ms; background: forward (blue) and backward pass (orange)")
    figure.tight_layout()
    for file in files:
        figure.savefig(file, dpi=120)
    pyplot.close(figure)


def gradients(events: list[dict], start: float) -> tuple[list[str], list[tuple[int, float, float]]]:
    """The names of gradients, and when each was reduced: row, beginning and length in ms."""
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    tids = [tid for tid, name in names.items() if "gradient." in name and "layouts" not in name]
    tids.sort(key=lambda tid: -last_priority(events, tid))  # as the forward pass needs them
    rows = {tid: row for row, tid in enumerate(tids)}
    bars = [
        (rows[e["tid"]], e["ts"] / 1e3 - start * 1e3, e["dur"] / 1e3)
        for e in events
        if e["name"] == "allreduce" and e["tid"] in rows and e["ts"] >= start * 1e6
    ]
    return [names[tid].split("gradient.", 1)[1] for tid in tids], bars


def last_priority(events: list[dict], tid: int) -> int:
    """The priority that a gradient ended with."""
    own = (e["args"] for e in events if e.get("tid") == tid)
    return [arguments["priority"] for arguments in own if "priority" in arguments][-1]
