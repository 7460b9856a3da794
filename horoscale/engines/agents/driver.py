"""The driver's side of a job on an engine: tracks its agents and connects the launcher to them."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import shlex
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from horoscale._version import __version__
from horoscale.engines.agents.agent import CONNECT_S, Invitation
from horoscale.engines.agents.link import Link, LinkError, tls, within
from horoscale.runner import reach
from horoscale.runner.bootstrap import PACKAGE_ROOT, isolated_command
from horoscale.runner.protocol import Header

_POLL_S = 0.2
_CLOSE_S = 5.0  # for the commands of closed connections to end
_SHELL = "horoscale.engines.agents.shell"


class AgentsError(RuntimeError):
    """Agents are missing or unusable. The message is for the user."""


@dataclass(frozen=True)
class Agent:
    """A connected agent."""

    host: str
    index: int
    slots: int
    devices: tuple[str, ...]
    link: Link


class Agents:
    """Accepts agents and connects the launcher to their hosts, until close().

    Its event loop runs in a separate thread. Any process with the invitation's secret may join.
    """

    def __init__(
        self, addresses: tuple[str, ...] = (), *, secret: str | None = None, port: int = 0
    ) -> None:
        """Listen at `addresses`, where agents find this process; if empty, at all of its own.

        Raises AgentsError if that is impossible.
        """
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="horoscale-agents", daemon=True
        )
        self._folder = Path(tempfile.mkdtemp(prefix="horoscale-"))  # accessible only to this user
        self._agents: list[Agent] = []
        self._admitted: frozenset[str] | None = None  # None: all
        self._refused: list[str] = []
        self._changed = threading.Event()
        self._channels: dict[int, asyncio.Future[Link]] = {}
        self._ids = count()
        self._servers: list[asyncio.base_events.Server] = []
        self._links: set[Link] = set()
        secret = secret or secrets.token_hex(32)
        self._secret = secret
        self._thread.start()
        try:
            listening = self._call(self._listen(port))
        except (OSError, LinkError) as error:
            self.close()
            raise AgentsError(f"can't listen for the engine's tasks: {error}") from error
        self.invitation = Invitation(addresses or tuple(reach.own_addresses()), listening, secret)

    # ------------------------------------------------------------------ for the engine's module

    def wait(self, wanted: int, seconds: float, check: Callable[[], None]) -> list[Agent]:
        """Wait for `wanted` agents and return them in the order of their tasks.

        `check` is called repeatedly and may raise, for example if the engine's job has failed.

        Raises:
            AgentsError: an agent is unusable, or some have not connected within `seconds`.
        """
        deadline = time.monotonic() + seconds
        while True:
            self._changed.clear()
            if self._refused:
                raise AgentsError(self._refused[0])
            agents = sorted(self._agents, key=lambda agent: agent.index)
            if len(agents) >= wanted:
                return agents
            check()
            if time.monotonic() > deadline:
                raise AgentsError(
                    f"{len(agents)} of {wanted} tasks have started within {seconds:g} s"
                )
            self._changed.wait(_POLL_S)

    def hosts(self) -> list[tuple[str, int]]:
        """Return the hosts of connected and admitted agents, and the slots of each."""
        slots: dict[str, int] = {}
        for agent in sorted(self._agents, key=lambda agent: agent.index):
            if self._admitted is None or agent.host in self._admitted:
                slots[agent.host] = slots.get(agent.host, 0) + agent.slots
        return list(slots.items())

    def admit(self, hosts: set[str]) -> None:
        """List only these hosts from now on, so that an elastic job leaves the others."""
        self._admitted = frozenset(hosts)

    @property
    def discovery(self) -> str:
        """Return the discovery script for an elastic launcher."""
        return shlex.join([*isolated_command(_SHELL), str(self._folder / "shell")])

    @property
    def shell(self) -> str:
        """Return the remote shell for a launcher: run as `CMD host program arguments`."""
        return self.discovery

    def shell_file(self) -> str:
        """Return the same as one executable file, for an mpirun that takes no arguments there."""
        path = self._folder / "agent"
        path.write_text(f'#!/bin/sh\nexec {self.discovery} "$@"\n')
        path.chmod(0o700)
        return str(path)

    def close(self, error: str | None = None) -> None:
        """End the agents, with an error if `error` is given, and stop listening."""
        if self._thread.is_alive():
            self._call(self._close(error))
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    # ------------------------------------------------------------------ in the loop

    def _call(self, what: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(what, self._loop).result()

    async def _listen(self, port: int) -> int:
        family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
        listener = socket.create_server(
            ("", port), family=family, dualstack_ipv6=family == socket.AF_INET6, backlog=1024
        )
        self._servers.append(
            await asyncio.start_server(self._on_stranger, sock=listener, ssl=tls(server=True))
        )
        path = str(self._folder / "shell")
        self._servers.append(await asyncio.start_unix_server(self._on_shell, path))
        return int(listener.getsockname()[1])

    async def _close(self, error: str | None) -> None:
        for server in self._servers:
            server.close()
        for agent in list(self._agents):
            await agent.link.send({"kind": "leave", "error": error})
        for link in list(self._links):
            link.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if others:
            await asyncio.wait(others, timeout=_CLOSE_S)

    async def _on_stranger(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        link = self._adopt(reader, writer)
        taken = False
        try:
            await link.prove(self._secret, server=True)
            frame = await within(link.receive(), CONNECT_S)
            header: Header = frame[0] if frame is not None else {"kind": ""}
            if header["kind"] == "agent":
                await self._on_agent(link, header)
            elif header["kind"] == "channel":
                arrival = self._channels.pop(header["id"], None)
                if arrival is not None and not arrival.done():  # done: it came too late
                    arrival.set_result(link)
                    taken = True
        except LinkError:
            return
        finally:
            if not taken:
                self._drop(link)

    def _adopt(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Link:
        link = Link(reader, writer)
        self._links.add(link)
        return link

    def _drop(self, link: Link) -> None:
        self._links.discard(link)
        link.close()

    async def _on_agent(self, link: Link, header: Header) -> None:
        agent = Agent(
            header["host"],
            header["index"],
            header["slots"],
            tuple(header["devices"]),
            link,
        )
        if problem := _problem(header):
            self._refused.append(problem)
            await link.send({"kind": "leave", "error": problem})
        else:
            self._agents.append(agent)
        self._changed.set()
        try:
            while await link.receive() is not None:
                pass
        finally:
            with contextlib.suppress(ValueError):
                self._agents.remove(agent)

    async def _on_shell(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        shell = self._adopt(reader, writer)
        try:
            frame = await shell.receive()
            if frame is not None and frame[0]["kind"] == "hosts":
                await shell.send({"kind": "hosts", "hosts": self.hosts()})
            elif frame is not None:
                await self._run(shell, frame[0])
        finally:
            self._drop(shell)

    async def _run(self, shell: Link, header: Header) -> None:
        agents = [agent for agent in self._agents if agent.host == header["host"]]
        if not agents:
            await shell.send({"kind": "lost", "error": "no task of the engine is there any more"})
            return
        first = min(agents, key=lambda agent: agent.index)
        devices = sorted({device for agent in agents for device in agent.devices})
        environment = {"CUDA_VISIBLE_DEVICES": ",".join(devices)} if devices else {}
        number = next(self._ids)
        arrival = self._channels[number] = self._loop.create_future()
        ask = {"kind": "run", "id": number, "words": header["words"], "environment": environment}
        await first.link.send(ask)
        try:
            channel = await within(arrival, 2 * CONNECT_S)
        except LinkError as error:
            await shell.send({"kind": "lost", "error": f"its task of the engine: {error}"})
            return
        finally:
            self._channels.pop(number, None)
        try:
            await _bridge(shell, channel)
        finally:
            self._drop(channel)


async def _bridge(one: Link, other: Link) -> None:
    """Forward frames both ways, until the command's side has ended or the shell is gone."""
    ways = [asyncio.ensure_future(_pass(one, other)), asyncio.ensure_future(_pass(other, one))]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()


async def _pass(origin: Link, target: Link) -> None:
    while (frame := await origin.receive()) is not None:
        await target.send(*frame)


def _problem(header: Header) -> str:
    """Return why an agent can't take part, or an empty string."""
    machine = header["machine"]
    if header["version"] != __version__:
        return (
            f"{machine} has horoscale {header['version']}, this process {__version__}: "
            "install the same on all machines"
        )
    if header["root"] != PACKAGE_ROOT:
        return (
            f"{machine} has horoscale in {header['root']}, this process in {PACKAGE_ROOT}: "
            "install it at the same place on all machines"
        )
    return ""
