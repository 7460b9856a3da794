"""How a job ended, told to the user."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass

from horoscale.runner.processes import status_text

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


def failure_report(failures: Sequence[tuple[Exit, Sequence[bytes]]]) -> tuple[Exit, bytes]:
    """The first failure of a job, and the last words on the job, which end with the rank's own.

    `failures` are the ranks that failed by themselves, in order, with their last lines on stderr.
    """
    # A rank that raises because another has failed may be the faster one to exit.
    first, last_lines = min(failures, key=lambda failure: _is_consequence(failure[1]))
    lines = []
    others = [other for other, _ in failures if other is not first]
    if others:
        listing = ", ".join(f"rank {other.rank} {other.describe()}" for other in others)
        lines.append(f"{LAUNCHER}: failed as well: {listing}".encode())
    end = "its last lines on stderr:" if last_lines else "it printed nothing on stderr"
    lines.append(
        f"{LAUNCHER}: rank {first.rank} on {first.hostname} failed first: {first.describe()}; "
        f"{end}".encode()
    )
    lines += [b"    " + line.rstrip(b"\r\n") for line in last_lines]
    return first, b"".join(line + b"\n" for line in lines)


def _is_consequence(last_lines: Sequence[bytes]) -> bool:
    return any(line.split(b":", 1)[0].endswith(b"RankFailedError") for line in last_lines)
