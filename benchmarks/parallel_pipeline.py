"""A section of benchmarks/parallel.py: the bubble of a pipeline whose stages sleep.

Two stages sleep 30 ms forward, 30 ms for the gradient of their input and 30 ms for those of their
weights, and leave the cores to the messages, which have 256 KiB. The bubble is the part of a step
in which a rank does not sleep, of the rank that waits longest; sleeps count as long as they really
took, which is longer on a busy machine. Ideal is what the schedule's own waiting gives.
"""

from __future__ import annotations

import contextlib
import statistics
from pathlib import Path

import figures
from folders import temporary_folder
from ranks import Job

STAGES, MICROBATCHES = 2, 8
UNIT_SECONDS = 0.030
STEPS = 2  # in a round
RANK_PROGRAM = Path(__file__).with_name("parallel_pipeline_rank.py")
WORK = 3 * MICROBATCHES  # of a rank, in units
IDEAL = {  # of a whole step, in units
    "gpipe": 3 * (MICROBATCHES + STAGES - 1),
    "1f1b": 3 * (MICROBATCHES + STAGES - 1),
    "zb-h1": WORK + STAGES - 1,
}
OURS_ALONE = ("zb-h1",)  # PyTorch's schedules of the kind have two stages on each rank


def run(rounds: int, smoke: bool) -> figures.Figures:
    """Measure bubbles, and print a table."""
    measured: figures.Figures = {}
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(temporary_folder())
        jobs = []
        for name in ("gloo", "horoscale"):
            jobs.append(Job(RANK_PROGRAM, name, STAGES, folder, folder))
            stack.callback(jobs[-1].end)
        for case in IDEAL:
            taking_part = [job for job in jobs if job.name != "gloo" or case not in OURS_ALONE]
            order = {case: (case, 1 if smoke else STEPS)}
            measured |= figures.interleave(taking_part, order, rounds)
    print(f"bubble of a pipeline: {STAGES} stages that sleep, {MICROBATCHES} microbatches")
    for case, units in IDEAL.items():
        cells = [f"ideal {1 - WORK / units:.3f}"]
        for name, bubbles in measured[case].items():
            low, middle, high = min(bubbles), statistics.median(bubbles), max(bubbles)
            cells.append(f"{name} {middle:.3f} ({low:.3f} to {high:.3f})")
        print(f"{case:>8}   {'   '.join(cells)}")
    return measured
