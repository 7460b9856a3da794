"""TCP sockets in a process's network, according to the kernel."""

from __future__ import annotations

import time
from pathlib import Path

LISTEN = "0A"
ESTABLISHED = "01"


def local_ports(pid: int, state: str) -> set[int]:
    """Ports of sockets in this state, of any process in the network of this one."""
    ports = set()
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]:
            _, local, _, its_state, *_ = line.split()
            if its_state == state:
                ports.add(int(local.rpartition(":")[2], 16))
    return ports


def await_connection(pid: int, port: int, seconds: float) -> None:
    """Wait until a client has connected to the port."""
    deadline = time.monotonic() + seconds
    while port not in local_ports(pid, ESTABLISHED):
        assert time.monotonic() < deadline, f"nobody connected to port {port}"
        time.sleep(0.01)
