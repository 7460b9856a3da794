"""The report: a table as text, and an HTML page with a picture and tables."""

from __future__ import annotations

import html
import importlib.util
from collections.abc import Sequence
from io import StringIO

from horoscale._tables import milliseconds
from horoscale.scaling.runs import Measured

PARTS = {
    "compute": "tab:blue",
    "communication": "tab:orange",
    "bubble": "tab:olive",
    "waiting": "tab:gray",
}
HEADING = ("ranks", "step ms", *PARTS, "efficiency", "speed-up")
_STYLE = (
    "body{font-family:sans-serif;max-width:60em;margin:2em auto}"
    "td,th{padding:.2em .8em;text-align:right}th{border-bottom:1px solid}"
)


def rows(runs: Sequence[Measured], mode: str, samples: int | None) -> list[list[str]]:
    """Return the lines of the table: HEADING, and samples per second if their number is known.

    The speed-up is the ratio of samples per second to those of the first run.

    Args:
        runs: the runs; the first one is the reference.
        mode: "strong" or "weak".
        samples: the samples of a step: of each rank under weak scaling, of all under strong.
    """
    first, lines = runs[0], []
    for one in runs:
        step, shares = one.parts.step, one.parts.shares()
        speedup = first.parts.step / step * (one.ranks / first.ranks if mode == "weak" else 1)
        line = [
            f"{one.ranks:,}",
            milliseconds(step),
            *(f"{shares[part]:.0%}" for part in PARTS),
            f"{one.parts.efficiency:.0%}",
            f"{speedup:.2f}",
        ]
        if samples is not None:
            number = samples * (one.ranks if mode == "weak" else 1)
            line.append(f"{number / step:,.0f}")
        lines.append(line)
    return lines


def heading(samples: int | None) -> list[str]:
    """Return the headings of the columns of rows()."""
    return [*HEADING, *(["samples/s"] if samples is not None else [])]


def page(title: str, sections: Sequence[tuple[str, Sequence[str], Sequence[Sequence[str]]]],
         picture: str) -> str:  # fmt: skip
    """Return an HTML page: a picture (SVG), and sections of a title, a heading and rows."""
    parts = [
        "<!doctype html>",
        f'<html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title>',
        f"<style>{_STYLE}</style><h1>{html.escape(title)}</h1>{picture}",
    ]
    for name, columns, lines in sections:
        parts.append(f"<h2>{html.escape(name)}</h2><table>")
        parts.append(_line("th", columns))
        parts += [_line("td", line) for line in lines]
        parts.append("</table>")
    return "\n".join([*parts, "</html>", ""])


def _line(cell: str, texts: Sequence[str]) -> str:
    return f"<tr>{''.join(f'<{cell}>{html.escape(text)}</{cell}>' for text in texts)}</tr>"


def can_draw() -> bool:
    """Return whether matplotlib, which draws the picture, is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def picture(runs: Sequence[Measured], told: Sequence[Measured]) -> str:
    """Return the parts of a step by ranks as SVG: first measured ones, then predicted ones."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "horoscale"  # reproducible output
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4), layout="constrained")
    bars = [*runs, *told]
    names = [f"{one.ranks:,}" for one in runs] + [f"{one.ranks:,}*" for one in told]
    bottom = [0.0] * len(bars)
    for part, color in PARTS.items():
        values = [one.parts.shares()[part] for one in bars]
        axes.bar(range(len(bars)), values, bottom=bottom, color=color, label=part)
        bottom = [a + b for a, b in zip(bottom, values, strict=True)]
    axes.set_xticks(range(len(bars)), names, rotation=45)
    axes.set(xlabel="ranks (*: by the cost model)", ylabel="share of a step")
    axes.legend(loc="lower left")
    text = StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    pyplot.close(figure)
    return text.getvalue().partition("<svg")[1] + text.getvalue().partition("<svg")[2]
