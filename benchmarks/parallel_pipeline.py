"""A section of benchmarks/parallel.py: the bubble of a pipeline whose stages sleep.

Two stages sleep 30 ms forward, 30 ms for the gradient of their input and 30 ms for those of their
weights, and leave the cores to the messages of 256 KiB. The bubble is the fraction of a step in
which a rank does not compute. The real times of stages, loss and autograd are measured on both
ranks, operation by operation. From these the schedule gives the shortest possible step. The excess
over it is added to the ideal bubble, which assumes stages that take equally long. CPU time is that
of a rank for each microbatch, without stages, loss and autograd.
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
IDEAL = {
    "gpipe": 1 - WORK / (3 * (MICROBATCHES + STAGES - 1)),
    "1f1b": 1 - WORK / (3 * (MICROBATCHES + STAGES - 1)),
    "zb-h1": 1 - WORK / (WORK + STAGES - 1),
}
OURS_ALONE = ("zb-h1",)  # PyTorch's schedules of this kind have two stages per rank


def run(rounds: int, smoke: bool) -> figures.Figures:
    """Measure bubbles and CPU time, and print a table."""
    measured: figures.Figures = {}
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(temporary_folder())
        jobs = []
        for name in ("gloo", "horoscale"):
            jobs.append(Job(RANK_PROGRAM, name, STAGES, folder, folder))
            stack.callback(jobs[-1].end)
        for case in IDEAL:
            taking_part = [job for job in jobs if job.name != "gloo" or case not in OURS_ALONE]
            steps = 1 if smoke else STEPS
            orders = {f"{case} {what}": (what, case, steps) for what in ("bubble", "cpu")}
            measured |= figures.interleave(taking_part, orders, rounds)
    print(f"pipelines of {STAGES} stages that sleep, {MICROBATCHES} microbatches: bubble, CPU time")
    for case, ideal in IDEAL.items():
        cells = [f"ideal {ideal:.3f}"]
        for name, bubbles in measured[f"{case} bubble"].items():
            low, middle, high = min(bubbles), statistics.median(bubbles), max(bubbles)
            cpu = statistics.median(measured[f"{case} cpu"][name])
            cells.append(f"{name} {middle:.3f} ({low:.3f} to {high:.3f}), {cpu * 1e6:.0f} us")
        print(f"{case:>8}   {'   '.join(cells)}")
    return measured
