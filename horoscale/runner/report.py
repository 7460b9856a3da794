"""How a job ended, told to the user."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from horoscale.runner.processes import status_text
from horoscale.runner.tracebacks import named

LAUNCHER = "horoscalerun"
CANNOT_START = 2  # exit statuses of the launcher
LAUNCHER_FAILED = 1


@dataclass(frozen=True)
class Exit:
    """The end of a rank that didn't end well."""

    rank: int
    hostname: str
    status: int  # as subprocess: -N for signal N

    @property
    def shell_status(self) -> int:
        """What a shell would report: 128 + N for signal N."""
        return self.status if self.status >= 0 else 128 - self.status

    def describe(self) -> str:
        """Such as "exit status 3" or "ended by SIGKILL"."""
        hint = " (out of memory?)" if self.status == -signal.SIGKILL else ""
        return f"{status_text(self.status)}{hint}"


def failure_report(
    failures: Sequence[tuple[Exit, Sequence[bytes]]], ended_well: Mapping[int, Exit]
) -> tuple[Exit, bytes]:
    """The first failure of a job, and the last words on the job, which end with the rank's own.

    Args:
        failures: the ranks that failed by themselves, in order, with their last lines on stderr.
        ended_well: the ranks that ended with status 0, by number. One that the others say to miss
            is what the report begins with.
    """
    # A rank that raises because another has failed may be the faster one to exit.
    first, last_lines = min(failures, key=lambda failure: _is_consequence(failure[1]))
    others = [other for other, _ in failures if other is not first]
    missed = _rank_that_left(last_lines)
    left = None if missed is None else ended_well.get(missed)
    if left is not None:
        lines = _after_leaving(left, first, others)
    else:
        lines = [f"failed as well: {_listing(others)}"] if others else []
        lines.append(f"rank {first.rank} on {first.hostname} failed first: {first.describe()}; its")
    if last_lines:
        lines[-1] += " last lines on stderr:"
    else:
        lines[-1] = lines[-1].rpartition(";")[0] + "; it printed nothing on stderr"
    report = [f"{LAUNCHER}: {line}".encode() for line in lines]
    report += [b"    " + line.rstrip(b"\r\n") for line in last_lines]
    return first, b"".join(line + b"\n" for line in report)


def _after_leaving(left: Exit, first: Exit, others: Sequence[Exit]) -> list[str]:
    return [
        f"rank {left.rank} on {left.hostname} ended first: with exit status 0, while other ranks "
        "needed it (a rank that has less to do calls join())",
        f"failed because of that: {_listing([first, *others])}; rank {first.rank}'s",
    ]


def _listing(exits: Sequence[Exit]) -> str:
    """How ranks ended, those that ended alike together."""
    alike: dict[str, list[int]] = {}
    for one in exits:
        alike.setdefault(one.describe(), []).append(one.rank)
    return ", ".join(f"{named(sorted(ranks))} {how}" for how, ranks in alike.items())


def _is_consequence(last_lines: Sequence[bytes]) -> bool:
    return _rank_that_left(last_lines) is not None or any(
        line.split(b":", 1)[0].endswith(b"RankFailedError") for line in last_lines
    )


def _rank_that_left(last_lines: Sequence[bytes]) -> int | None:
    """The rank of whom the runtime says that it left, in the words of cpp/core/departures.cc."""
    for line in reversed(last_lines):
        if match := re.search(rb"\brank (\d+) left the job\b", line):
            return int(match[1])
    return None
