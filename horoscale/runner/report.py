"""How a job ended, told to the user."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from horoscale.runner.processes import signal_name

LAUNCHER = "horoscalerun"


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
        if self.status >= 0:
            return f"exit status {self.status}"
        hint = " (out of memory?)" if -self.status == 9 else ""
        return f"ended by {signal_name(-self.status)}{hint}"


def failure_report(first: Exit, others: Sequence[Exit], last_lines: Sequence[bytes]) -> bytes:
    """The last words on a job that a rank brought down: the first failure and its last lines."""
    lines = []
    if others:
        listing = ", ".join(f"rank {other.rank} {other.describe()}" for other in others)
        lines.append(f"{LAUNCHER}: failed later: {listing}".encode())
    end = "its last lines on stderr:" if last_lines else "it printed nothing on stderr"
    lines.append(
        f"{LAUNCHER}: rank {first.rank} on {first.hostname} failed first: {first.describe()}; "
        f"{end}".encode()
    )
    lines += [b"    " + line.rstrip(b"\r\n") for line in last_lines]
    return b"".join(line + b"\n" for line in lines)
