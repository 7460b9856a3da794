"""Draws what adaptive compression chose for each step while the network changed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

LEVELS = {  # from the mildest on
    "none": "#dddddd",
    "bfloat16": "#cfe3f5",
    "int8": "#7fb0d9",
    "int4": "#2b5d8a",
    "onebit": "#f0a860",
    "topk": "#c0504d",
}


def draw(recorded: Sequence[tuple[int, Path]], files: Sequence[str], title: str) -> None:
    """Write pictures of the steps that were recorded at each rate in Mbit/s, in this order."""
    import matplotlib as mpl

    mpl.use("agg")
    mpl.rcParams["svg.hashsalt"] = "choices"
    from matplotlib import pyplot

    steps = []
    figure, (times, shares) = pyplot.subplots(2, 1, figsize=(11, 6), sharex=True)
    for rate, path in recorded:
        for axis in (times, shares):
            axis.axvline(len(steps), color="#888888", lw=0.8)
        times.annotate(f"{rate} Mbit/s", (len(steps), 1), xycoords=("data", "axes fraction"))
        steps += json.loads(path.read_text())
    times.plot([x + 0.5 for x in range(len(steps))], [1e3 * step["seconds"] for step in steps])
    times.set_ylabel("ms per step")
    times.set_ylim(bottom=0)
    below = [0.0] * len(steps)
    for level, color in LEVELS.items():
        part = [step["bytes"].get(level, 0) / sum(step["bytes"].values()) for step in steps]
        shares.bar(
            range(len(steps)), part, 1.0, below, align="edge", color=color, label=level, lw=0
        )
        below = [a + b for a, b in zip(below, part, strict=True)]
    shares.set_ylabel("share of the gradients' bytes")
    shares.set_xlabel("step")
    shares.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    figure.suptitle(title)
    figure.tight_layout()
    for file in files:
        figure.savefig(file, dpi=120, metadata={"Date": None} if file.endswith("svg") else None)
    pyplot.close(figure)
