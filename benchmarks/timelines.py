"""Draws timeline files of training steps: gradients in progress, by phase of the step."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from horoscale.timeline import RankTimeline, read

COLORS = {"forward": "#cfe3f5", "backward": "#fbe3c8", "step": "#dddddd"}
SHOWN = 3  # the last ones of the recorded steps


def draw(recorded: Sequence[tuple[str, Path]], files: Sequence[str], title: str) -> None:
    """Write pictures of timeline files, each with a name and the phases of its steps."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(len(recorded), 1, figsize=(11, 4 * len(recorded)), sharex=True)
    for axis, (name, path) in zip(axes, recorded, strict=True):
        phases = json.loads(path.with_suffix(".phases").read_text())[-3 * SHOWN :]
        start = phases[0][1][0]
        for phase, (begin, end) in phases:
            axis.axvspan((begin - start) * 1e3, (end - start) * 1e3, color=COLORS[phase], lw=0)
        rows, bars = gradients(read(path), start)
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


def gradients(
    timeline: RankTimeline, start: float
) -> tuple[list[str], list[tuple[int, float, float]]]:
    """The names of gradients, and when each was reduced: row, beginning and length in ms."""
    own = [
        one
        for one in timeline.operations
        if "gradient." in one.title and "layouts" not in one.title
    ]
    priorities = {one.title: one.arguments["priority"] for one in own}  # the last ones
    titles = sorted(
        priorities, key=lambda title: -priorities[title]
    )  # in the order of the forward pass
    rows = {title: row for row, title in enumerate(titles)}
    bars = [
        (rows[one.title], (one.started - start) * 1e3, (one.done - one.started) * 1e3)
        for one in own
        if one.kind == "allreduce" and one.started >= start
    ]
    return [title.split("gradient.", 1)[1] for title in titles], bars
