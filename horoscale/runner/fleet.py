"""The tree of supervisors below a process: its own, and those started by relays.

A process starts at most FANOUT supervisors itself. If there are more hosts, it divides them into
parts and starts the first host of each part, whose supervisor starts the rest of the part.
"""

from __future__ import annotations

import itertools
import selectors
from collections.abc import Callable, Sequence

from horoscale.runner.host import HostLink, HostSpec
from horoscale.runner.processes import status_text
from horoscale.runner.protocol import (
    MAX_PAYLOAD_BYTES,
    Header,
    ProtocolError,
    checked_report,
)

FANOUT = 32


class Fleet:
    """Links to supervisors, and through them to those below.

    `on_frame` gets every frame from them with `host`, the index of the host that it concerns.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        on_frame: Callable[[Header, bytes], None],
    ) -> None:
        self._selector = selector
        self._on_frame = on_frame
        self._links: list[HostLink] = []
        self._below: dict[HostLink, Sequence[HostSpec]] = {}  # hosts for which each link relays
        self._routes: dict[int, HostLink] = {}
        self._timeout_s = 0.0
        self._dismissed = False

    def adopt(self, hosts: Sequence[HostSpec], timeout_s: float) -> None:
        """Start supervisors on these hosts, which must say hello within `timeout_s` seconds."""
        self._timeout_s = timeout_s
        for part in divided(hosts, FANOUT):
            self._open(part[0], part[1:])

    @property
    def ended(self) -> bool:
        """Whether no supervisor is left."""
        return all(link.ended for link in self._links)

    @property
    def deadline(self) -> float | None:
        """The next time to call check_deadlines()."""
        known = [link.start_deadline for link in self._links if link.start_deadline is not None]
        return min(known, default=None)

    @property
    def pids(self) -> dict[int, HostLink]:
        """The processes that the links have started."""
        return {link.pid: link for link in self._links}

    def send(self, header: Header, payload: bytes = b"") -> None:
        """Send an order to the host named by its `to`, or to all hosts."""
        if "to" in header:
            self._routes[header["to"]].send(header, payload)
            return
        for link in self._links:
            link.send(header, payload)

    def send_task(self, task: bytes) -> None:
        """Send the function of horoscale.run() to all hosts, in pieces."""
        for start in range(0, len(task), MAX_PAYLOAD_BYTES):
            self.send({"kind": "task"}, task[start : start + MAX_PAYLOAD_BYTES])

    def leads_to(self, host: int) -> bool:
        """Return whether a host is below this process."""
        return host in self._routes

    def give_up(self, host: int) -> None:
        """Cut the link that leads to an unresponsive host."""
        self._routes[host].abandon()

    def check_deadlines(self, now: float) -> None:
        """Give up supervisors that have not said hello in time."""
        for link in list(self._links):
            if link.start_deadline is not None and now >= link.start_deadline:
                link.abandon()
                self._lost(link, f"did not start within {self._timeout_s:g} s (--start-timeout)")

    def set_reading(self, wanted: bool) -> None:
        """Stop or resume reading, so that ranks block if their output is not consumed."""
        for link in self._links:
            link.set_reading(wanted)

    def dismiss(self) -> None:
        """Make all supervisors end their hosts, as if this process had ended."""
        self._dismissed = True
        for link in self._links:
            if link.greeted:
                link.dismiss()
            else:
                link.abandon()

    def abandon(self) -> list[str]:
        """Cut the remaining links; return the names of their hosts."""
        left = [link for link in self._links if not link.ended]
        for link in left:
            link.abandon()
        return [link.host.name for link in left]

    def _open(self, host: HostSpec, below: Sequence[HostSpec]) -> None:
        try:
            link = HostLink(host, self._selector, self._on_link, self._timeout_s)
        except OSError as error:
            self._report_lost(host, f"{host.command[0]!r} can't be started: {error}", False)
            self.adopt(below, self._timeout_s)
            return
        self._links.append(link)
        self._below[link] = below
        for one in (host, *below):
            self._routes[one.index] = link

    def _on_link(self, link: HostLink) -> None:
        was_ended = link.ended
        try:
            for header, payload in link.receive():
                self._on_link_frame(link, checked_report(header), payload)
        except ProtocolError as error:
            link.abandon()
            self._lost(link, f"can't be understood: {error}")
            return
        if link.greeted:
            for line in link.take_errors():
                self._on_frame({"kind": "note", "host": link.host.index, "text": line}, b"")
        if link.ended and not was_ended and (link.status != 0 or not link.greeted):
            self._lost(link, status_text(link.status))

    def _on_link_frame(self, link: HostLink, header: Header, payload: bytes) -> None:
        index = header.setdefault("host", link.host.index)
        if self._routes.get(index) is not link:
            raise ProtocolError(f"a {header['kind']!r} about host {index!r}")
        is_own_hello = header["kind"] == "hello" and index == link.host.index
        if is_own_hello == link.greeted:
            raise ProtocolError("a second hello" if is_own_hello else "no hello came first")
        if is_own_hello:
            link.greeted = True
            if below := self._below[link]:
                hosts = [host.header() for host in below]
                link.send({"kind": "adopt", "hosts": hosts, "timeout": self._timeout_s})
        elif header["kind"] == "lost" and not header["greeted"] and not self._dismissed:
            # The host may be reachable from here even if it is not from the relay.
            host = next((one for one in self._below[link] if one.index == index), None)
            if host is not None:
                self._open(host, ())
                return
        self._on_frame(header, payload)

    def _lost(self, link: HostLink, why: str) -> None:
        if not link.greeted:
            why = "; ".join([why, *link.take_errors()])
        self._report_lost(link.host, why, link.greeted)
        if not link.greeted and not self._dismissed:
            self.adopt(self._below[link], self._timeout_s)

    def _report_lost(self, host: HostSpec, why: str, greeted: bool) -> None:
        header = {"kind": "lost", "host": host.index, "error": why, "greeted": greeted}
        self._on_frame(header, b"")


def divided(hosts: Sequence[HostSpec], parts: int) -> list[Sequence[HostSpec]]:
    """Divide a list into at most `parts` non-empty pieces of nearly equal length."""
    count = min(parts, len(hosts))
    bounds = [len(hosts) * part // count for part in range(count + 1)] if count else []
    return [hosts[start:end] for start, end in itertools.pairwise(bounds)]
