"""Text tables, and the times in them."""

from __future__ import annotations

from collections.abc import Sequence


def table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return aligned columns. The first is left-aligned, the others are right-aligned."""
    lines = [heading, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(heading))]
    return "\n".join(
        "  ".join(
            text.rjust(width) if i else text.ljust(width)
            for i, (text, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def milliseconds(seconds: float) -> str:
    """Return a time in ms, with three digits or more."""
    return f"{seconds * 1e3:.3g}" if seconds < 0.9995 else f"{seconds * 1e3:,.0f}"
