"""The tables of `python -m horoscale.timeline report`."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean, median, quantiles

from horoscale._tables import table
from horoscale.timeline.files import RankTimeline, TimelineError
from horoscale.timeline.steps import Lateness, Step, lateness, step_title, steps

_MATRIX_RANKS = 8  # more ranks are listed by pairs
_PAIRS = 10
_HEADING = ["rank", "steps", "median", "90 %", "executed", "exposed", "waiting"]


def report(ranks: Sequence[RankTimeline], title: str | None = None) -> str:
    """Return tables about the timelines of a job.

    Args:
        ranks: the job's timelines.
        title: the operation that is submitted once per step, such as "set 0: loss". None: determine
            it automatically.

    Raises:
        TimelineError: the ranks have no steps.
    """
    title = title or step_title(ranks[0].operations)
    if title is None:
        raise TimelineError("no named operation comes twice: there are no steps to tell of")
    by_rank = {one.rank: steps(one, title) for one in ranks}
    if not any(by_rank.values()):
        raise TimelineError(f'"{title}" does not come twice: there are no steps to tell of')
    waits = any(one.waits for one in ranks)
    parts = [
        f'{len(ranks)} ranks; a step is from one "{title}" to the next',
        table(_HEADING, _rows(by_rank)),
        "Times of a step in ms. Executed: an operation was. Exposed: the program was blocked in a\n"
        "wait; of that waiting: while no operation was executed."
        + ("" if waits else " (This program never was: its framework waits by other means.)"),
    ]
    if len(ranks) > 1:
        number = max(len(found) for found in by_rank.values())
        parts.append(_who_waited([one.rank for one in ranks], lateness(ranks), number))
    return "\n\n".join(parts) + "\n"


def _rows(by_rank: dict[int, list[Step]]) -> list[list[str]]:
    rows = []
    for rank, found in by_rank.items():
        if not found:
            rows.append([str(rank), "0", "", "", "", "", ""])
            continue
        times = [step.end - step.begin for step in found]
        slow = quantiles(times, n=10)[-1] if len(times) > 1 else times[0]
        whole = mean(times)
        rows.append(
            [
                *(str(rank), str(len(times)), _ms(median(times)), _ms(slow)),
                *(
                    f"{_ms(part)} ({part / whole:.0%})"
                    for part in (
                        mean(step.executed for step in found),
                        mean(step.parts.exposed for step in found),
                        mean(step.parts.waiting for step in found),
                    )
                ),
            ]
        )
    return rows


def _who_waited(ranks: Sequence[int], found: Lateness, number: int) -> str:
    """Return who waited for whom. `number`: the number of steps."""
    per_step = {pair: seconds / number for pair, seconds in found.seconds.items()}
    if len(ranks) <= _MATRIX_RANKS:
        text = table(
            ["waited for", *(f"rank {rank}" for rank in ranks)],
            [
                [
                    f"rank {waiting}",
                    *("-" if rank == waiting else _ms(per_step.get((waiting, rank), 0.0))
                      for rank in ranks),
                ]
                for waiting in ranks
            ],
        )  # fmt: skip
    else:
        most = sorted(per_step.items(), key=lambda item: -item[1])[:_PAIRS]
        rows = [[str(waiting), str(awaited), _ms(time)] for (waiting, awaited), time in most]
        text = table(["waiting rank", "waited for", "ms"], rows)
    shares = ", ".join(
        f"rank {rank} in {count / found.operations:.0%}"
        for rank, count in found.last.most_common(3)
    )
    return (
        f"Who waited for whom, in ms of a step: an operation was submitted on one rank, and not yet"
        f"\non the other, which was the last to.\n\n{text}\n\nThe last to submit an operation was "
        f"{shares or 'nobody'}."
    )


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f}"
