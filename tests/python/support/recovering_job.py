"""A JobWatch of an elastic job that loses a rank, step by step, on a clock of its own."""

from __future__ import annotations

from horoscale.watch.job import JobWatch


class Recovering:
    """An elastic job of three ranks, of which one is lost."""

    def __init__(self) -> None:
        self.now = 100.0
        self.watch = JobWatch("python", elastic=True, clock=lambda: self.now, wall=lambda: self.now)
        for process in (1, 2, 3):
            self.watch.started(process, process - 1, "node", process)
        self.membership(1, {1: 0, 2: 1, 3: 2})
        self.report(1, {1: 50, 2: 50, 3: 50})

    def membership(self, view: int, ranks: dict[int, int | None], part: str = "member") -> None:
        self.watch.membership(view, view - 1, [(one, rank, part) for one, rank in ranks.items()])

    def report(self, view: int, commits: dict[int, int]) -> None:
        for process, commit in commits.items():
            told = {"view": view, "at": self.now, "commit": commit, "operations": 1}
            self.watch.report({process: told}, "node")

    def after(self, seconds: float) -> None:
        self.now += seconds

    @property
    def phases(self) -> list[tuple[str, float]]:
        (one,) = self.watch.snapshot()["recoveries"]
        return [(phase["what"], phase["seconds"]) for phase in one["phases"]]
