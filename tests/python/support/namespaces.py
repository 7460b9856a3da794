"""Hosts with separate network stacks: network namespaces on a bridge, which is in one as well.

The network of this machine is not changed, and every test has free addresses and ports. The names
of the namespaces are the names of the hosts, for horoscalerun --remote-shell "ip netns exec".
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import TypeVar

T = TypeVar("T")

_CLONE_NEWNET = 0x40000000
REMOTE_SHELL = "ip netns exec"
CONGESTION_CONTROL = Path("/proc/sys/net/ipv4/tcp_congestion_control")  # of the thread's network


def why_not() -> str | None:
    """Why such hosts can't be created here; None if they can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None or shutil.which("tc") is None:
        return "network namespaces need ip and tc, of iproute2"
    try:
        with NetworkHosts(1):
            return None
    except subprocess.CalledProcessError as error:
        reason = error.stderr.decode().strip()
    except OSError as error:  # a container's /proc/sys may be read-only
        reason = str(error)
    return f"network namespaces can't be made: {reason}"


class NetworkHosts:
    """Some hosts, each with a link, eth0. As a context it leaves no hosts or processes."""

    def __init__(self, count: int, *, version: int = 4, links: int = 1) -> None:
        """Create them, with addresses of one version of IP; each extra link is another network."""
        marker = uuid.uuid4().hex[:8]
        self._switch = f"hs-{marker}-switch"
        self.names = [f"hs-{marker}-{index}" for index in range(count)]
        network = "10.{}.0." if version == 4 else "fd{}::"
        self.addresses_of = [  # each link, by host
            [f"{network.format(77 + link)}{index + 1}" for index in range(count)]
            for link in range(links)
        ]
        self.addresses = self.addresses_of[0]
        try:
            ip("netns", "add", self._switch)
            for index, name in enumerate(self.names):
                ip("netns", "add", name)
                ip("-n", name, "link", "set", "lo", "up")
                # Available and permitted on every machine. The default may be BBR, which stops for
                # 0.2 s every 10 s to probe the path.
                self._set_congestion_control(index, "reno")
            for link in range(links):
                self._add_network(link)
        except BaseException:
            self.remove()
            raise

    def _add_network(self, link: int) -> None:
        bridge, device = f"bridge{link}", f"eth{link}"
        ip("-n", self._switch, "link", "add", bridge, "type", "bridge")
        ip("-n", self._switch, "link", "set", bridge, "up")
        for index, (name, address) in enumerate(
            zip(self.names, self.addresses_of[link], strict=True)
        ):
            port = f"port{index}-{link}"
            peer = ("peer", "name", port, "netns", self._switch)
            ip("-n", name, "link", "add", device, "type", "veth", *peer)
            ip("-n", self._switch, "link", "set", port, "master", bridge, "up")
            # Without nodad, an IPv6 address could be used only after duplicate address detection.
            rest = ("/64", "dev", device, "nodad") if ":" in address else ("/24", "dev", device)
            ip("-n", name, "address", "add", address + rest[0], *rest[1:])
            ip("-n", name, "link", "set", device, "up")

    def command(self, host: int, *command: object) -> list[str]:
        """A command that runs on a host."""
        return ["ip", "netns", "exec", self.names[host], *map(str, command)]

    def call(self, host: int, function: Callable[[], T]) -> T:
        """Call a function whose sockets and threads are on a host; they stay there."""

        def enter_and_call() -> T:
            with open(f"/run/netns/{self.names[host]}") as namespace:
                if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), _CLONE_NEWNET) != 0:
                    raise OSError(ctypes.get_errno(), "setns")
            return function()

        with ThreadPoolExecutor(1) as pool:  # its thread enters the namespace, and then ends
            return pool.submit(enter_and_call).result()

    def set_congestion_control(self, name: str) -> None:
        """Choose the congestion control of later connections, for example bbr."""
        for index in range(len(self.names)):
            self._set_congestion_control(index, name)

    def _set_congestion_control(self, host: int, name: str) -> None:
        self.call(host, lambda: CONGESTION_CONTROL.write_text(name))

    def limit_rate(self, rate: str) -> None:
        """Limit the rate of every link, for example to 100mbit."""
        for name in self.names:
            bucket = ("rate", rate, "burst", "128kb", "latency", "50ms")
            _run("tc", "-n", name, "qdisc", "replace", "dev", "eth0", "root", "tbf", *bucket)

    def pull_cable(self, host: int) -> None:
        """Cut off a host: packets are lost, and nobody is notified."""
        ip("-n", self._switch, "link", "set", f"port{host}-0", "down")

    def plug_in(self, host: int) -> None:
        """Undo pull_cable()."""
        ip("-n", self._switch, "link", "set", f"port{host}-0", "up")

    def drop_towards(self, host: int) -> None:
        """Drop packets to a host; those from it arrive."""
        # A bucket smaller than any packet.
        bucket = ("rate", "8bit", "burst", "1b", "limit", "1b")
        _run(*("tc", "-n", self._switch, "qdisc", "replace", "dev", f"port{host}-0", "root", "tbf"),
             *bucket)  # fmt: skip

    def processes(self, host: int) -> list[int]:
        """The processes on a host."""
        return list(map(int, ip("netns", "pids", self.names[host]).split()))

    def wait_until_idle(self, seconds: float) -> None:
        """Wait until no host has a process."""
        deadline = time.monotonic() + seconds
        while any(self.processes(host) for host in range(len(self.names))):
            assert time.monotonic() < deadline, "there are still processes on the hosts"
            time.sleep(0.05)  # processes that are not children can only be polled

    def remove(self) -> None:
        """Kill the processes on the hosts, and remove them."""
        for name in [*self.names, self._switch]:
            listed = subprocess.run(["ip", "netns", "pids", name], capture_output=True, check=False)
            for pid in map(int, listed.stdout.split()):
                with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
                    os.kill(pid, signal.SIGKILL)
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)

    def __enter__(self) -> NetworkHosts:
        """Return the hosts."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Remove them."""
        self.remove()


def ip(*arguments: str) -> str:
    """Run iproute2's ip and return what it prints."""
    return _run("ip", *arguments)


def _run(*command: str) -> str:
    return subprocess.run(command, capture_output=True, check=True).stdout.decode()
