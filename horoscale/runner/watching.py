"""The launcher's interface to the status page (--status-port). Does nothing without that flag."""

from __future__ import annotations

import ipaddress
import os
import socket
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from horoscale.runner import usage
from horoscale.runner.host_reports import parsed

if TYPE_CHECKING:  # not imported for other jobs
    from horoscale.watch.job import JobWatch
    from horoscale.watch.server import StatusServer

LOOPBACK = "127.0.0.1"
TOKEN_VARIABLE = "HOROSCALE_STATUS_TOKEN"  # set by the user
LEAST_TOKEN = 16  # minimum number of characters


@dataclass(frozen=True)
class StatusSpec:
    """How to serve a job's status."""

    port: int  # 0: any free port
    address: str = LOOPBACK
    token: str | None = None  # set by the user

    @classmethod
    def parse(cls, port: str | None, address: str | None, token: str | None) -> StatusSpec | None:
        """Parse the flags and HOROSCALE_STATUS_TOKEN; return None without --status-port.

        Raises UsageError.
        """
        if port is None:
            if address is not None:
                raise usage.UsageError("--status-address needs --status-port")
            return None
        if not (port.isascii() and port.isdigit() and int(port) < 1 << 16):
            raise usage.UsageError(f"--status-port: expected a port, or 0, not {port!r}")
        try:
            ipaddress.ip_address(address or LOOPBACK)
        except ValueError:
            raise usage.UsageError(
                f"--status-address: expected an address of this host, such as {LOOPBACK} or "
                f"0.0.0.0, not {address!r}"
            ) from None
        if token is not None and (len(token) < LEAST_TOKEN or not token.isascii()):
            raise usage.UsageError(
                f"{TOKEN_VARIABLE} must have at least {LEAST_TOKEN} ASCII characters: create one "
                "with openssl rand -hex 32"
            )
        return cls(int(port), address or LOOPBACK, token)


class Watching:
    """The launcher's interface. Every method may be called with or without a status page."""

    def __init__(self, spec: StatusSpec | None, command: Sequence[str], *, elastic: bool) -> None:
        self._spec = spec
        self._watch: JobWatch | None = None
        self._server: StatusServer | None = None
        if spec is not None:
            from horoscale.watch.job import JobWatch

            self._watch = JobWatch(_shown(command), elastic=elastic)

    @property
    def wanted(self) -> bool:
        """Whether there is a status page, so that ranks must report."""
        return self._watch is not None

    def begin(self) -> list[str]:
        """Start to serve; return messages for the user. Raises OSError."""
        if self._spec is None or self._watch is None:
            return []
        from horoscale.watch.server import StatusServer

        spec = self._spec
        self._server = server = StatusServer(self._watch, spec.port, spec.address, spec.token)
        everywhere = ipaddress.ip_address(spec.address).is_unspecified
        url = server.url(socket.gethostname() if everywhere else None)
        token = f"?token={server.token}" if spec.token is None else f" (token: {TOKEN_VARIABLE})"
        lines = [f"status: {url}{token}"]
        if not server.is_local:
            lines.append(
                f"warning: the status is served at {spec.address} without encryption: anyone who "
                f"reads the network traffic gets the token. Omit --status-address to serve it at "
                f"{LOOPBACK}, and use ssh -L {server.port}:{LOOPBACK}:{server.port} to access it "
                "from another machine"
            )
        return lines

    def close(self) -> None:
        """Stop serving."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def host(self, name: str, state: str) -> None:
        """Record that a host is "up" or "lost"."""
        self._tell(lambda watch: watch.host(name, state))

    def started(self, process: int, rank: int | None, host: str, slot: int) -> None:
        """Record a started process. Except in elastic jobs its number is its rank."""
        self._tell(lambda watch: watch.started(process, rank, host, slot))

    def ended(self, process: int, status: int, how: str, *, expected: bool) -> None:
        """Record the end of a process. `expected`: whether it was told to end."""
        self._tell(lambda watch: watch.ended(process, status, how, expected=expected))

    def printed(self, process: int, stream: str, data: bytes) -> None:
        """Record output of a process."""
        if stream == "stderr":
            self._tell(lambda watch: watch.printed(process, data))

    def report(self, host: str, payload: bytes) -> None:
        """Record a host's report about its processes."""
        if self._watch is not None and isinstance(reports := parsed(payload), dict):
            self._tell(lambda watch: watch.report(reports, host))

    def said(self, text: str) -> None:
        """Record a message of the launcher to the user."""
        self._tell(lambda watch: watch.event("launcher", text))

    def membership(
        self, view: int, resets: int, parts: Iterable[tuple[int, int | None, str]]
    ) -> None:
        """Record an elastic job's membership: each process's rank and role."""
        self._tell(lambda watch: watch.membership(view, resets, parts))

    def stopping(self) -> None:
        """Record that the rest of the job is being ended."""
        self._tell(lambda watch: watch.stopping("the job is being ended"))

    def _tell(self, what: Callable[[JobWatch], object]) -> None:
        """Update the watch. An error in it ends watching, but not the job."""
        if self._watch is None:
            return
        try:
            what(self._watch)
        except Exception:
            self._watch = None
            self.close()
            sys.stderr.write(
                "horoscalerun: the status page stopped because of a bug in horoscale:\n"
                f"{traceback.format_exc()}"
            )


def _shown(command: Sequence[str]) -> str:
    """Return the visible part of a command: programs, but not arguments, which may be secret."""
    words = [os.path.basename(word) for word in command[:2]]
    is_python = words[0].startswith("python")
    return " ".join(words) if is_python and not words[-1].startswith("-") else words[0]
