"""The hosts of a job, and the placement of its ranks."""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass


class HostsError(ValueError):
    """An invalid host list. The message is for the user."""


@dataclass(frozen=True)
class Host:
    """A machine and its number of slots."""

    name: str
    slots: int
    ssh_port: int | None = None  # None: ssh's own choice


@dataclass(frozen=True)
class Place:
    """A rank's place in the job."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    hostname: str


def parse_hosts(text: str) -> list[Host]:
    """Parse `-H`: host:slots, separated by commas; IPv6 addresses are in brackets."""
    return _merged([_parse_host(item.strip()) for item in text.split(",") if item.strip()], text)


def parse_hostfile(path: str) -> list[Host]:
    """Parse a host file with one line per host; # begins a comment.

    A line is `name slots=N`, `name:PORT slots=N` with the port of its ssh server, `name:N` with N
    slots, or `name`. IPv6 addresses are in brackets, which are optional before ` slots=`.
    `max_slots=N`, which mpirun's files may contain, is ignored.
    """
    try:
        with open(path, encoding="utf-8") as file:
            lines = [line.split("#", 1)[0].strip() for line in file]
    except (OSError, UnicodeDecodeError) as error:
        raise HostsError(f"can't read the host file {path}: {error}") from None
    hosts = []
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        match = re.fullmatch(r"(\S+)\s+(?:max_)?slots\s*=\s*(\S+)(?:\s+max_slots\s*=\s*\S+)?", line)
        try:
            hosts.append(_parse_host_with_port(*match.groups()) if match else _parse_host(line))
        except HostsError as error:
            raise HostsError(f"{path}:{number}: {error}") from None
    return _merged(hosts, path)


def place_ranks(hosts: Sequence[Host], size: int) -> list[Place]:
    """Assign a slot to each rank: hosts in order, the ranks of a host consecutive."""
    available = sum(host.slots for host in hosts)
    if available < size:
        listing = ", ".join(f"{host.name}:{host.slots}" for host in hosts)
        raise HostsError(
            f"-np {size} needs {size} slots, the hosts have {available} ({listing}); "
            "give more hosts or slots, or start fewer ranks"
        )
    counts: list[tuple[str, int]] = []
    remaining = size
    for host in hosts:
        if remaining > 0:
            counts.append((host.name, min(host.slots, remaining)))
            remaining -= counts[-1][1]
    places: list[Place] = []
    for host_index, (name, local_size) in enumerate(counts):
        for local_rank in range(local_size):
            # The peers are on hosts that have a rank with this local rank, in order of hosts.
            peers = [i for i, (_, count) in enumerate(counts) if count > local_rank]
            places.append(
                Place(
                    rank=len(places),
                    size=size,
                    local_rank=local_rank,
                    local_size=local_size,
                    cross_rank=peers.index(host_index),
                    cross_size=len(peers),
                    hostname=name,
                )
            )
    return places


def own_name() -> str:
    """Return this machine's own name."""
    return socket.gethostname() or "localhost"


def is_local(name: str) -> bool:
    """Return whether a host name or address refers to this machine."""
    if name in ("localhost", own_name()):
        return True
    if "@" in name:  # another user
        return False
    try:
        addresses = socket.getaddrinfo(name, 0, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):
        return False
    return any(_is_own_address(family, address) for family, _, _, _, address in addresses)


def _is_own_address(family: int, address: tuple[object, ...]) -> bool:
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind(address)  # the kernel rejects addresses of other machines
            return True
    except OSError:
        return False


def _parse_host(text: str) -> Host:
    match = re.fullmatch(r"(\[[^\]\s]+\]|[^:\s\[\]]+)(?::(\S+))?", text)
    if match is None:
        raise HostsError(f"{text!r} is not host:slots (put an IPv6 address in brackets)")
    return _make_host(match[1], match[2] or "1")


def _parse_host_with_port(text: str, slots: str) -> Host:
    """Parse a host that is followed by slots=N."""
    if text.count(":") > 1 and not text.startswith("["):
        return _make_host(text, slots)
    match = re.fullmatch(r"(\[[^\]]+\]|[^:\[\]]+)(?::(\S+))?", text)
    if match is None:
        raise HostsError(f"{text!r} is not host or host:port")
    if match[2] is None:
        return _make_host(match[1], slots)
    if not re.fullmatch(r"[0-9]{1,5}", match[2]) or not 0 < int(match[2]) < 65536:
        raise HostsError(f"host {match[1]!r}: {match[2]!r} is not a port")
    return _make_host(match[1], slots, int(match[2]))


def _make_host(name: str, slots: str, ssh_port: int | None = None) -> Host:
    name = name.strip("[]")
    if name.startswith("-"):  # a remote shell would parse it as an option
        raise HostsError(f"{name!r} is not the name of a host")
    if not re.fullmatch(r"[0-9]{1,6}", slots) or int(slots) == 0:
        raise HostsError(f"host {name!r}: slots must be a positive number, not {slots!r}")
    return Host(name, int(slots), ssh_port)


def _merged(hosts: Sequence[Host], source: str) -> list[Host]:
    if not hosts:
        raise HostsError(f"no host in {source!r}")
    merged: dict[str, Host] = {}
    for host in hosts:
        known = merged.get(host.name, Host(host.name, 0, host.ssh_port))
        if known.ssh_port != host.ssh_port:
            raise HostsError(f"host {host.name!r} has two different ports in {source!r}")
        merged[host.name] = Host(host.name, known.slots + host.slots, host.ssh_port)
    return list(merged.values())
