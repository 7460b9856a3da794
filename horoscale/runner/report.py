"""The report of a job's failure to the user."""

from __future__ import annotations

import re
import signal
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from horoscale._rank_ranges import named
from horoscale.runner.processes import status_text

LAUNCHER = "horoscalerun"
CANNOT_START = 2  # exit status of the launcher
LAUNCHER_FAILED = 1

# Errors in which a rank blames others: our exceptions, and the messages of
# cpp/core/departures.cc, which TensorFlow repeats in its own exception.
_BLAME = re.compile(
    rb"((?:RankFailedError|HorovodInternalError): |\brank \d+ (?:left the job\b|failed: ))"
    rb".*?(?=; ready: |$)",  # ranks that were ready are not to blame
    re.MULTILINE,
)
_EXCEPTION = re.compile(rb"[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit)\b")
_RANKS = re.compile(rb"\branks? (\d+(?:-\d+)?(?:(?:, | and )\d+(?:-\d+)?)*)")
_RANGE = re.compile(rb"(\d+)(?:-(\d+))?")


@dataclass(frozen=True)
class Exit:
    """The end of a rank that failed."""

    rank: int
    hostname: str
    status: int  # as subprocess: -N for signal N

    @property
    def shell_status(self) -> int:
        """The status that a shell would report: 128 + N for signal N."""
        return self.status if self.status >= 0 else 128 - self.status

    def describe(self) -> str:
        """Return a description such as "exit status 3" or "ended by SIGKILL"."""
        hint = " (out of memory?)" if self.status == -signal.SIGKILL else ""
        return f"{status_text(self.status)}{hint}"


def failure_report(
    failures: Sequence[tuple[Exit, Sequence[bytes]]],
    ended_well: Mapping[int, Exit],
    unasked: Collection[int] = (),
) -> tuple[Exit, bytes]:
    """Return the first failure of a job, and the report, which ends with that rank's last lines.

    Args:
        failures: the ranks that failed by themselves, in order, with their last lines on stderr.
        ended_well: the ranks that ended with status 0, by number. The report begins with those that
            others blame.
        unasked: the ranks among these that the launcher had not told to end. The report mentions
            them.
    """
    # A rank that raises because of another one may exit first.
    missed_by = {
        failed.rank: _missed(failed, last_lines, ended_well, unasked)
        for failed, last_lines in failures
    }
    first, last_lines = min(
        failures, key=lambda failure: bool(missed_by[failure[0].rank]) or _is_consequence(failure)
    )
    others = [other for other, _ in failures if other is not first]
    if missed := missed_by[first.rank]:
        lines = _after_leaving(missed, first, others)
    else:
        lines = [f"failed as well: {_listing(others)}"] if others else []
        lines += [f"ended with exit status 0: {named(sorted(unasked))}"] if unasked else []
        lines.append(f"rank {first.rank} on {first.hostname} failed first: {first.describe()}; its")
    if last_lines:
        lines[-1] += " last lines on stderr:"
    else:
        lines[-1] = lines[-1].rpartition(";")[0] + "; it printed nothing on stderr"
    report = [f"{LAUNCHER}: {line}".encode() for line in lines]
    report += [b"    " + line.rstrip(b"\r\n") for line in last_lines]
    return first, b"".join(line + b"\n" for line in report)


def _after_leaving(missed: Sequence[Exit], first: Exit, others: Sequence[Exit]) -> list[str]:
    who, whom = f"rank {missed[0].rank} on {missed[0].hostname}", "it"
    if len(missed) > 1:
        who, whom = named([one.rank for one in missed]), "them"
    return [
        f"{who} ended first: with exit status 0, while other ranks needed {whom} (a rank that has "
        "less to do calls join())",
        f"failed because of that: {_listing([first, *others])}; rank {first.rank}'s",
    ]


def _listing(exits: Sequence[Exit]) -> str:
    """List the ends of ranks, grouped by equal ones."""
    alike: dict[str, list[int]] = {}
    for one in exits:
        alike.setdefault(one.describe(), []).append(one.rank)
    return ", ".join(f"{named(sorted(ranks))} {how}" for how, ranks in alike.items())


def _is_consequence(failure: tuple[Exit, Sequence[bytes]]) -> bool:
    return any(line.split(b":", 1)[0].endswith(b"RankFailedError") for line in failure[1])


def _missed(
    failed: Exit,
    last_lines: Sequence[bytes],
    ended_well: Mapping[int, Exit],
    unasked: Collection[int],
) -> list[Exit]:
    """Return the ranks that ended well by themselves and that a failure's exception names."""
    if failed.status < 0:  # a crash is not caused by another rank
        return []
    begins = [at for at, line in enumerate(last_lines) if _EXCEPTION.match(line)]
    errors = list(_BLAME.finditer(b"".join(last_lines[begins[-1] :]))) if begins else []
    if not errors:
        return []
    error = errors[-1]
    # A rank that left may have been told to end later; any other that was told did not end itself.
    left = b" left the job" in error[0]
    blamed = [one for ranks in _RANKS.findall(error[0]) for one in _RANGE.findall(ranks)]
    return [
        ended_well[rank]
        for rank in sorted(ended_well)
        if left or rank in unasked
        if any(int(first) <= rank <= int(last or first) for first, last in blamed)
    ]


def elastic_failure_report(why: str, last: tuple[int, Iterable[bytes]] | None) -> bytes:
    """Return the report of a failed elastic job.

    `last` is the last rank that failed, and its last lines on stderr.
    """
    report = f"{LAUNCHER}: the job has failed: {why}\n".encode()
    if last is not None and (lines := list(last[1])):
        report += f"{LAUNCHER}: last lines of rank {last[0]} on stderr:\n".encode()
        report += b"".join(b"    " + line.rstrip(b"\r\n") + b"\n" for line in lines)
    return report
