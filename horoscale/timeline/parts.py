"""Parts: where the time of a step goes. Timelines, scaling reports and the planner use them. Pure.

    compute         the rank computed
    communication   it waited for messages that were not hidden
    bubble          it was idle because of a pipeline's schedule
    waiting         it waited for slower ranks

In timelines, a rank that waits while no operation is executed counts as `waiting`. Timelines do not
know schedules, so this includes a pipeline's bubble.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields


@dataclass(frozen=True)
class Parts:
    """The parts of a step, in seconds; their sum is the step."""

    compute: float
    communication: float = 0.0
    bubble: float = 0.0
    waiting: float = 0.0

    @property
    def step(self) -> float:
        """The duration of the step."""
        return self.compute + self.exposed

    @property
    def exposed(self) -> float:
        """Exposed communication: the step without computation."""
        return self.communication + self.bubble + self.waiting

    @property
    def efficiency(self) -> float:
        """1 - exposed communication / step."""
        return self.compute / self.step

    @classmethod
    def observed(cls, length: float, executed: float, blocked: float, either: float) -> Parts:
        """Determine the parts from observed times, in seconds.

        Args:
            length: the duration of the step.
            executed: the time in which any operation was executed.
            blocked: the time in which the program was blocked in a wait.
            either: the time in which at least one of these was the case.
        """
        communication = executed + blocked - either
        return cls(length - blocked, communication, 0.0, blocked - communication)

    @classmethod
    def mean(cls, of: Sequence[Parts]) -> Parts:
        """Return the mean of several steps, or of several ranks."""
        columns = zip(*map(astuple, of), strict=True)
        return cls(*(sum(column) / len(of) for column in columns))

    def shares(self) -> dict[str, float]:
        """Return each part as a fraction of the step, by name."""
        return {one.name: getattr(self, one.name) / self.step for one in fields(Parts)}
