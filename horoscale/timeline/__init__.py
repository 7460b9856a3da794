"""Reads the timelines that ranks write (HOROSCALE_TIMELINE, hvd.start_timeline()).

    python -m horoscale.timeline merge DIR     one file of all ranks, for https://ui.perfetto.dev
    python -m horoscale.timeline report DIR    steps, exposed communication, who waited for whom

files.py reads and merges files, parts.py defines the parts of a step, steps.py determines them, and
report.py writes tables.
"""

from horoscale.timeline.files import (
    Operation,
    RankTimeline,
    Span,
    TimelineError,
    merge,
    read,
    read_job,
)

__all__ = ["Operation", "RankTimeline", "Span", "TimelineError", "merge", "read", "read_job"]
