"""Finds an address at which all hosts can reach the launcher.

Names are not reliable: another host may know this one by a different name or by none, and addresses
such as those of container bridges exist on every host. So the hosts try. The launcher opens a
Beacon and sends all its addresses. Each supervisor's Probe reports which of them lead to the
beacon.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import secrets
import selectors
import socket
import struct
from collections.abc import Callable, Iterator, Sequence
from ipaddress import ip_address

LOOPBACK = "127.0.0.1"

_SIOCGIFADDR = 0x8915
_TOKEN_BYTES = 32
_BACKLOG = 4096  # all hosts connect at the same time, to several addresses


def own_addresses(interfaces: Sequence[str] = ()) -> list[str]:
    """Return this machine's addresses, loopback last; only of these interfaces, if given.

    Link-local addresses are omitted, because other hosts can't use them.
    """
    found = list(_addresses())
    chosen = [address for name, address in found if name in interfaces]
    addresses = chosen or [address for _, address in found]
    usable = [address for address in addresses if not ip_address(address).is_link_local]
    return sorted(dict.fromkeys(usable), key=lambda address: ip_address(address).is_loopback)


def reserve_port(peer: str) -> tuple[str, socket.socket]:
    """Return this machine's address for connections from a peer, and a socket that holds a port.

    The socket does not listen and shares its port: a server that sets SO_REUSEADDR can listen
    there, while the kernel assigns the port to nobody else. Raises OSError on failure.
    """
    family = socket.AF_INET6 if ":" in peer else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as asker:
        asker.connect((peer, 9))  # sends nothing
        address = str(asker.getsockname()[0])
    holder = socket.socket(family, socket.SOCK_STREAM)
    try:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("", 0))
    except OSError:
        holder.close()
        raise
    return address, holder


def _addresses() -> Iterator[tuple[str, str]]:
    """Yield pairs of interface and address: its IPv4 address, and all IPv6 addresses."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            with contextlib.suppress(OSError):  # it has no IPv4 address
                answer = fcntl.ioctl(asker.fileno(), _SIOCGIFADDR, request)
                yield name, socket.inet_ntop(socket.AF_INET, answer[20:24])
    with contextlib.suppress(OSError), open("/proc/net/if_inet6", encoding="ascii") as file:
        for line in file:
            digits, *_, name = line.split()
            yield name, socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits))


class Beacon:
    """A port of the launcher that sends every client a token, and nothing else."""

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self.token = secrets.token_hex(_TOKEN_BYTES // 2)  # identifies this beacon
        self._selector = selector
        if socket.has_dualstack_ipv6():
            self._listener = socket.create_server(
                ("", 0), family=socket.AF_INET6, dualstack_ipv6=True, backlog=_BACKLOG
            )
        else:
            self._listener = socket.create_server(("", 0), backlog=_BACKLOG)
        self._listener.setblocking(False)
        self.port = int(self._listener.getsockname()[1])
        selector.register(self._listener, selectors.EVENT_READ, self._answer)

    def close(self) -> None:
        """Stop answering."""
        self._selector.unregister(self._listener)
        self._listener.close()

    def _answer(self) -> None:
        with contextlib.suppress(OSError):  # the client has gone, or no descriptors are left
            client, _ = self._listener.accept()
            with client:
                client.setblocking(False)
                client.send(self.token.encode())


class Probe:
    """Tries to reach a beacon at several addresses; `on_reached` gets those that lead to it."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        addresses: Sequence[str],
        port: int,
        token: str,
        on_reached: Callable[[str], None],
    ) -> None:
        self._selector = selector
        self._token = token.encode()
        self._on_reached = on_reached
        self._attempts: dict[str, socket.socket] = {}
        for address in addresses:
            self._try(address, port)

    def close(self) -> None:
        """Cancel the attempts that have not been answered."""
        for address in list(self._attempts):
            self._drop(address)

    def _try(self, address: str, port: int) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        try:
            attempt = socket.socket(family, socket.SOCK_STREAM)
        except OSError:  # the host does not support this address family
            return
        attempt.setblocking(False)
        if attempt.connect_ex((address, port)) not in (0, errno.EINPROGRESS):
            attempt.close()
            return
        self._attempts[address] = attempt
        self._selector.register(attempt, selectors.EVENT_READ, lambda: self._on_answer(address))

    def _on_answer(self, address: str) -> None:
        attempt = self._attempts.get(address)
        if attempt is None:  # cancelled by an earlier event of the same batch
            return
        answer = b""
        with contextlib.suppress(OSError):
            answer = attempt.recv(_TOKEN_BYTES)
        self._drop(address)
        if answer == self._token:
            self._on_reached(address)

    def _drop(self, address: str) -> None:
        attempt = self._attempts.pop(address)
        self._selector.unregister(attempt)
        attempt.close()
