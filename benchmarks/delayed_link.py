"""Connects two hosts by a network with a delay and limited bandwidth.

    python benchmarks/delayed_link.py NAMESPACE NAMESPACE --delay-us 500 [--rate 1e9]
        [--connection-rate 250e6]

Connects two network namespaces by tun devices named tun0, with 10.78.0.1 and 10.78.0.2, until its
standard input ends. Every packet is delayed. `--rate` limits the bits per second of each direction,
and `--connection-rate` those of each TCP connection, as clouds and bonded links do. Packets that
would wait longer than 50 ms are dropped, as by a router. (Linux has netem and fq for this, but not
every system provides them.)
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import heapq
import os
import select
import struct
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "tests" / "python"))
from support.namespaces import ip

TUNSETIFF = 0x400454CA
IFF_TUN, IFF_NO_PI = 1, 0x1000
MTU = 9000
LONGEST_QUEUE_S = 0.05


def open_tun(namespace: str, address: str, peer: str) -> int:
    """Create a device in the namespace; return a descriptor for its packets."""
    own = os.open("/proc/self/ns/net", os.O_RDONLY)
    other = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(other, 0) != 0:
        raise OSError(ctypes.get_errno(), f"entering the network namespace {namespace}")
    tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tun, TUNSETIFF, struct.pack("16sH22x", b"tun0", IFF_TUN | IFF_NO_PI))
    libc.setns(own, 0)
    os.close(own)
    os.close(other)
    ip("-n", namespace, "address", "add", address, "peer", peer, "dev", "tun0")
    ip("-n", namespace, "link", "set", "tun0", "mtu", str(MTU), "up")
    return tun


class Direction:
    """Packets in transit from one device to the other."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._delay = arguments.delay_us * 1e-6
        self._rate: float = arguments.rate
        self._connection_rate: float = arguments.connection_rate
        self._free_at = 0.0  # the link
        self._connection_free_at: dict[bytes, float] = {}

    def due(self, packet: bytes, now: float) -> float | None:
        """Return when a packet sent now arrives; None if it is dropped."""
        bits = 8 * len(packet)
        ports = packet[20:24]  # IPv4 without options
        link = max(now, self._free_at) + bits / self._rate
        connection = max(now, self._connection_free_at.get(ports, 0)) + bits / self._connection_rate
        if max(link, connection) > now + LONGEST_QUEUE_S:
            return None
        self._free_at, self._connection_free_at[ports] = link, connection
        return max(link, connection) + self._delay


def relay(tuns: list[int], arguments: argparse.Namespace) -> None:
    """Move packets until standard input ends."""
    directions = [Direction(arguments), Direction(arguments)]
    waiting: list[tuple[float, int, int, bytes]] = []
    number = 0
    while True:
        now = time.monotonic()
        while waiting and waiting[0][0] <= now:
            _, _, to, packet = heapq.heappop(waiting)
            os.write(tuns[to], packet)
        timeout = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        ready, _, _ = select.select([*tuns, sys.stdin], [], [], timeout)
        if sys.stdin in ready:
            return
        for tun in ready:
            origin = tuns.index(tun)
            try:
                while True:
                    packet = os.read(tun, MTU)
                    due = directions[origin].due(packet, time.monotonic())
                    if due is not None:
                        number += 1
                        heapq.heappush(waiting, (due, number, 1 - origin, packet))
            except BlockingIOError:
                pass


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("namespaces", nargs=2)
    parser.add_argument("--delay-us", type=float, default=0, help="of each direction")
    parser.add_argument("--rate", type=float, default=1e12)
    parser.add_argument("--connection-rate", type=float, default=1e12)
    arguments = parser.parse_args()
    addresses = ["10.78.0.1", "10.78.0.2"]
    tuns = [
        open_tun(namespace, addresses[i], addresses[1 - i])
        for i, namespace in enumerate(arguments.namespaces)
    ]
    print("ready", flush=True)
    relay(tuns, arguments)


if __name__ == "__main__":
    main()
