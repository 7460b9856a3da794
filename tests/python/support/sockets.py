"""TCP sockets of a process' network, as its kernel tells."""

from __future__ import annotations

import time
from pathlib import Path

LISTEN = "0A"
ESTABLISHED = "01"


def local_ports(pid: int, state: str) -> set[int]:
    """Ports of sockets in this state, anybody's in the network of the process."""
    ports = set()
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]:
            _, local, _, its_state, *_ = line.split()
            if its_state == state:
                ports.add(int(local.rpartition(":")[2], 16))
    return ports


def await_connection(pid: int, port: int, seconds: float) -> None:
    """Wait until somebody has connected to the port."""
    deadline = time.monotonic() + seconds
    while port not in local_ports(pid, ESTABLISHED):
        assert time.monotonic() < deadline, f"nobody connected to port {port}"
        time.sleep(0.01)
