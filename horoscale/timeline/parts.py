"""Parts: where the time of a step goes. Timelines, scaling reports and the planner say it so. Pure.

    compute         the rank computed
    communication   it waited for messages that nothing hid
    bubble          it had nothing to do, as the schedule of a pipeline says
    waiting         it waited for ranks that were slower

What timelines tell of a rank that waits while no operation is executed is `waiting`: they don't
know of schedules, so that a pipeline's bubble is part of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields


@dataclass(frozen=True)
class Parts:
    """A step in seconds; the parts add up to it."""

    compute: float
    communication: float = 0.0
    bubble: float = 0.0
    waiting: float = 0.0

    @property
    def step(self) -> float:
        """How long the step takes."""
        return self.compute + self.exposed

    @property
    def exposed(self) -> float:
        """Exposed communication: what the step takes beside computing."""
        return self.communication + self.bubble + self.waiting

    @property
    def efficiency(self) -> float:
        """1 - exposed communication / step."""
        return self.compute / self.step

    @classmethod
    def observed(cls, length: float, executed: float, blocked: float, either: float) -> Parts:
        """Divide what was seen of a step, in seconds.

        Args:
            length: of the step.
            executed: in which some operation was executed.
            blocked: in which the program was blocked in a wait.
            either: in which one of both was so.
        """
        communication = executed + blocked - either
        return cls(length - blocked, communication, 0.0, blocked - communication)

    @classmethod
    def mean(cls, of: Sequence[Parts]) -> Parts:
        """Return the mean of several steps, or of several ranks."""
        columns = zip(*map(astuple, of), strict=True)
        return cls(*(sum(column) / len(of) for column in columns))

    def shares(self) -> dict[str, float]:
        """Return which part of the step each is, by name."""
        return {one.name: getattr(self, one.name) / self.step for one in fields(Parts)}
