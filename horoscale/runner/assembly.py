"""The first phase of a job: start supervisors on all hosts, and find a launcher address.

No rank starts before this has succeeded. Problems with hosts are reported for all of them together.
"""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable, Sequence

from horoscale.runner.fleet import Fleet
from horoscale.runner.host import HostSpec
from horoscale.runner.protocol import VERSION, Header, ProtocolError
from horoscale.runner.reach import Beacon


class Assembly:
    """Ends with a call of `on_ready(address)` or `on_failure(reason)`."""

    def __init__(
        self,
        hosts: Sequence[HostSpec],
        addresses: Sequence[str],
        selector: selectors.BaseSelector,
        on_ready: Callable[[str], None],
        on_failure: Callable[[str], None],
    ) -> None:
        """`addresses` are the launcher's. A single one is used without a probe."""
        self._hosts = hosts
        self._addresses = addresses
        self._selector = selector
        self._on_ready = on_ready
        self._on_failure = on_failure
        self._missing = {host.index for host in hosts}
        self._lost: dict[int, str] = {}
        self._reached: dict[str, set[int]] = {address: set() for address in addresses}
        self._beacon: Beacon | None = None
        self._fleet: Fleet | None = None
        self._done = False
        self._timeout_s = 0.0
        self.deadline: float | None = None  # for the probe; Fleet has those for the hosts

    def begin(self, fleet: Fleet, timeout_s: float) -> None:
        """Start the supervisors. They have `timeout_s`, and the probe then as much again."""
        self._fleet = fleet
        self._timeout_s = timeout_s
        fleet.adopt(self._hosts, timeout_s)

    def on_frame(self, header: Header) -> None:
        """Handle hello, lost and reached."""
        if self._done:
            return
        kind, host = header["kind"], header["host"]
        if kind == "reached":
            self._on_reached(host, header["address"])
            return
        if kind == "hello" and header["version"] != VERSION:
            raise ProtocolError(
                f"its supervisor uses protocol version {header['version']}, the launcher version "
                f"{VERSION}: install the same horoscale on all hosts"
            )
        if kind == "lost":
            self._lost[host] = header["error"]
        self._missing.discard(host)
        if self._missing and not (kind == "lost" and header["greeted"]):
            return
        if self._lost:
            self._fail(_list_lost(self._hosts, self._lost))
        elif self._beacon is None:
            self._find_address()

    def check_deadline(self, now: float) -> None:
        """Fail if hosts have not reached the launcher in time."""
        if self.deadline is None or now < self.deadline:
            return
        best = max(self._reached.values(), key=len)
        names = ", ".join(host.name for host in self._hosts if host.index not in best)
        self._fail(
            f"no address of this machine can be reached from all hosts; tried "
            f"{', '.join(self._addresses)}, missing {names}. Check for a firewall, or choose "
            "the interface with --network-interface"
        )

    def close(self) -> None:
        """End it, unless it has ended."""
        self._done = True
        self.deadline = None
        if self._beacon is not None:
            self._beacon.close()
            self._beacon = None

    def _find_address(self) -> None:
        if len(self._addresses) == 1:
            self._succeed(self._addresses[0])
            return
        assert self._fleet is not None
        self._beacon = Beacon(self._selector)
        self.deadline = time.monotonic() + self._timeout_s
        self._fleet.send(
            {
                "kind": "probe",
                "addresses": list(self._addresses),
                "port": self._beacon.port,
                "token": self._beacon.token,
            }
        )

    def _on_reached(self, host: int, address: str) -> None:
        hosts = self._reached.get(address, set())
        hosts.add(host)
        if len(hosts) == len(self._hosts):
            self._succeed(address)

    def _succeed(self, address: str) -> None:
        self.close()
        self._on_ready(address)

    def _fail(self, message: str) -> None:
        self.close()
        self._on_failure(message)


def _list_lost(hosts: Sequence[HostSpec], lost: dict[int, str]) -> str:
    lines = [f"    {hosts[index].name}: {why}" for index, why in sorted(lost.items())]
    number = "a host" if len(lines) == 1 else f"{len(lines)} of {len(hosts)} hosts"
    return "\n".join([f"no rank was started, because of {number}:", *lines])
