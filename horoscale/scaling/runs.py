"""Runs a program on some ranks, and measures where its steps spend their time."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from horoscale.timeline.files import RankTimeline, TimelineError, read_job
from horoscale.timeline.parts import Parts
from horoscale.timeline.steps import step_title, steps


class ScalingError(RuntimeError):
    """A run without usable results. The message is for the user."""


@dataclass(frozen=True)
class Measured:
    """A step on some ranks.

    Attributes:
        ranks: the number of ranks.
        parts: the parts of the step, as the mean over steps and ranks.
        nbytes: the bytes of the operations that a rank submits in a step.
    """

    ranks: int
    parts: Parts
    nbytes: float


def run(ranks: int, command: Sequence[str], skip: int, seconds: float) -> Measured:
    """Run a Python program on this machine. It inherits this process's output streams.

    Args:
        ranks: the number of ranks.
        command: the program and its arguments, in which {ranks} is replaced by their number.
        skip: the number of steps to skip at the beginning.
        seconds: the time limit.

    Raises:
        ScalingError: it failed, took longer, or its steps can't be detected.
    """
    with tempfile.TemporaryDirectory() as folder:
        timeline = Path(folder) / "timeline.json"
        launcher = [sys.executable, "-m", "horoscale.runner", "-np", str(ranks)]
        launcher += ["--timeline-filename", str(timeline), sys.executable]
        arguments = [one.replace("{ranks}", str(ranks)) for one in command]
        try:
            done = subprocess.run([*launcher, *arguments], timeout=seconds, check=False)
        except subprocess.TimeoutExpired as error:
            raise ScalingError(f"{ranks} ranks took longer than {seconds:g} s") from error
        if done.returncode:
            raise ScalingError(
                f"{ranks} ranks failed with status {done.returncode}; their output is above"
            )
        try:
            timelines = read_job(timeline)
        except TimelineError as error:
            raise ScalingError(
                f"{ranks} ranks left no timeline: does the program call hvd.init()? ({error})"
            ) from error
        return measured(timelines, skip)


def measured(timelines: Sequence[RankTimeline], skip: int) -> Measured:
    """Measure where the steps of a job spend their time.

    Raises:
        ScalingError: there are no steps.
    """
    title = step_title(timelines[0].operations)
    if title is None:
        raise ScalingError("no named operation comes twice: there are no steps to tell of")
    found = [_of_rank(one, title, skip) for one in timelines]
    parts, nbytes = zip(*found, strict=True)
    return Measured(len(timelines), Parts.mean(parts), mean(nbytes))


def _of_rank(timeline: RankTimeline, title: str, skip: int) -> tuple[Parts, float]:
    """Return the mean step of a rank, and the bytes that it submits in a step."""
    found = steps(timeline, title)[skip:]
    if not found:
        raise ScalingError(
            f'rank {timeline.rank} has no more than {skip} steps from one "{title}" to the next'
        )
    begin, end = found[0].begin, found[-1].end
    nbytes = sum(
        int(one.arguments.get("bytes", 0))
        for one in timeline.operations
        if begin <= one.submitted < end
    )
    return Parts.mean([one.parts for one in found]), nbytes / len(found)
