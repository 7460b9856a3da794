"""An attacker on the path between two hosts, who sees every packet of their link and can change it.

The link is a pair of tun devices, tun0, with the ends 10.79.0.1 and 10.79.0.2.
"""

from __future__ import annotations

import fcntl
import os
import select
import struct
import threading
from types import TracebackType

from support.namespaces import NetworkHosts, ip

DEVICE = "tun0"
_ADDRESSES = ("10.79.0.1", "10.79.0.2")
_TUNSETIFF = 0x400454CA
_IFF_TUN, _IFF_NO_PI = 1, 0x1000
_MTU = 9000
_TCP = 6


class Tap:
    """As a context it forwards packets between the first two hosts."""

    def __init__(self, hosts: NetworkHosts, flip: bytes = b"") -> None:
        """Flip a bit of the last byte of the first occurrence of `flip`."""
        self._flip = flip
        self.flipped = False
        self.seen = bytearray()  # all TCP payloads, in packet order
        self._ended, self._end = os.pipe()
        self._tuns = [hosts.call(end, _open_tun) for end in range(2)]
        for end, name in enumerate(hosts.names[:2]):
            peer = ("peer", _ADDRESSES[1 - end], "dev", DEVICE)
            ip("-n", name, "address", "add", _ADDRESSES[end], *peer)
            ip("-n", name, "link", "set", DEVICE, "mtu", str(_MTU), "up")
        self._thread = threading.Thread(target=self._relay)

    def _relay(self) -> None:
        while True:
            ready, _, _ = select.select([*self._tuns, self._ended], [], [])
            if self._ended in ready:
                return
            for tun in ready:
                packet = bytearray(os.read(tun, _MTU))
                if packet[0] >> 4 == 4 and packet[9] == _TCP:
                    self._look(packet)
                os.write(self._tuns[1 - self._tuns.index(tun)], packet)

    def _look(self, packet: bytearray) -> None:
        header = 4 * (packet[0] & 15)
        payload = header + 4 * (packet[header + 12] >> 4)
        self.seen += packet[payload:]
        at = packet.find(self._flip, payload) if self._flip and not self.flipped else -1
        if at < 0:
            return
        self.flipped = True
        packet[at + len(self._flip) - 1] ^= 1
        packet[header + 16 : header + 18] = bytes(2)
        struct.pack_into("!H", packet, header + 16, _checksum(packet, header))

    def __enter__(self) -> Tap:
        """Return the tap."""
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Remove the link."""
        os.write(self._end, b".")
        self._thread.join()
        for descriptor in (*self._tuns, self._ended, self._end):
            os.close(descriptor)


def _open_tun() -> int:
    """A device in this thread's network, whose packets the descriptor reads and writes."""
    tun = os.open("/dev/net/tun", os.O_RDWR)
    request = struct.pack("16sH22x", DEVICE.encode(), _IFF_TUN | _IFF_NO_PI)
    fcntl.ioctl(tun, _TUNSETIFF, request)
    return tun


def _checksum(packet: bytearray, header: int) -> int:
    """The TCP checksum, with 0 in its field."""
    segment = packet[header:]
    pseudo = packet[12:20] + struct.pack("!HH", _TCP, len(segment))
    total = sum(struct.unpack(f"!{(len(pseudo) + len(segment) + 1) // 2}H",
                              pseudo + segment + bytes(len(segment) % 2)))  # fmt: skip
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
