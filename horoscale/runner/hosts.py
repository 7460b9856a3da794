"""Which hosts a job runs on, and which rank has its place where."""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass


class HostsError(ValueError):
    """A host list that can't be used; the message is for the user."""


@dataclass(frozen=True)
class Host:
    """A machine and how many ranks it takes."""

    name: str
    slots: int


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
    """Reads `-H`: host:slots, separated by commas; an IPv6 address is put in brackets."""
    return _merged([_parse_host(item.strip()) for item in text.split(",") if item.strip()], text)


def parse_hostfile(path: str) -> list[Host]:
    """Reads a host file: a line `name slots=N` or `name:N` per host; # begins a comment."""
    try:
        with open(path, encoding="utf-8") as file:
            lines = [line.split("#", 1)[0].strip() for line in file]
    except (OSError, UnicodeDecodeError) as error:
        raise HostsError(f"can't read the host file {path}: {error}") from None
    hosts = []
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        match = re.fullmatch(r"(\S+)\s+(?:max_)?slots\s*=\s*(\S+)", line)
        try:
            hosts.append(_make_host(match[1], match[2]) if match else _parse_host(line))
        except HostsError as error:
            raise HostsError(f"{path}:{number}: {error}") from None
    return _merged(hosts, path)


def place_ranks(hosts: Sequence[Host], size: int) -> list[Place]:
    """Gives each rank a slot: hosts in their order, the ranks of one host consecutive."""
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
            # Those of all hosts that have a rank of this local rank, in order of hosts.
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
    """What this machine calls itself."""
    return socket.gethostname() or "localhost"


def is_local(name: str) -> bool:
    """Whether a host name or address means this machine."""
    if name in ("localhost", own_name()):
        return True
    try:
        addresses = socket.getaddrinfo(name, 0, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):
        return False
    return any(_is_own_address(family, address) for family, _, _, _, address in addresses)


def _is_own_address(family: int, address: tuple[object, ...]) -> bool:
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind(address)  # the kernel refuses addresses that aren't this machine's
            return True
    except OSError:
        return False


def _parse_host(text: str) -> Host:
    match = re.fullmatch(r"(\[[^\]\s]+\]|[^:\s\[\]]+)(?::(\S+))?", text)
    if match is None:
        raise HostsError(f"{text!r} is not host:slots (put an IPv6 address in brackets)")
    return _make_host(match[1], match[2] or "1")


def _make_host(name: str, slots: str) -> Host:
    name = name.strip("[]")
    if not re.fullmatch(r"[0-9]{1,6}", slots) or int(slots) == 0:
        raise HostsError(f"host {name!r}: slots must be a positive number, not {slots!r}")
    return Host(name, int(slots))


def _merged(hosts: Sequence[Host], source: str) -> list[Host]:
    if not hosts:
        raise HostsError(f"no host in {source!r}")
    slots: dict[str, int] = {}
    for host in hosts:
        slots[host.name] = slots.get(host.name, 0) + host.slots
    return [Host(name, count) for name, count in slots.items()]
