"""The agent in a task of an engine: runs what the launcher wants to have run on this host.

It holds one connection to the driver's Agents, over which it is asked, and one for each command it
runs, over which that command's input, output and exit status go. Where the driver is gone, so are
the commands.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from horoscale._version import __version__
from horoscale.engines.agents.link import Link, LinkError, connect
from horoscale.runner import processes
from horoscale.runner.bootstrap import PACKAGE_ROOT, isolated_command
from horoscale.runner.remote import SUPERVISOR

CONNECT_S = 10.0
_END_S = 12.0  # for a supervisor whose launcher has gone: it ends its ranks first
_READ_BYTES = 1 << 16


class AgentError(RuntimeError):
    """The job that this agent took part in failed, or its driver is gone."""


@dataclass(frozen=True)
class Invitation:
    """What an agent needs to find the driver; it goes to the engine's tasks as a pickle."""

    addresses: tuple[str, ...]
    port: int
    secret: str = field(repr=False)


@dataclass(frozen=True)
class Seat:
    """Where an agent is: its host, as ranks are to be told apart, and its place among the tasks."""

    host: str
    index: int
    devices: tuple[str, ...] = ()  # the GPUs that the engine has given this task

    def header(self) -> dict[str, Any]:
        """This, and what must be the same everywhere, as a frame's header."""
        return {
            "kind": "agent",
            "host": self.host,
            "index": self.index,
            "devices": list(self.devices),
            "machine": socket.gethostname(),
            "version": __version__,
            "root": PACKAGE_ROOT,
            "executable": sys.executable,
        }


def serve(invitation: Invitation, seat: Seat) -> None:
    """Serve the driver until it says that the job is over. To be called in a task of the engine.

    Raises:
        AgentError: the job failed, the driver is not reached, or it is gone.
    """
    asyncio.run(_Agent(invitation, seat).run())


class _Agent:
    def __init__(self, invitation: Invitation, seat: Seat) -> None:
        self._invitation = invitation
        self._seat = seat
        self._address = ""
        self._running: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        control = await self._reach()
        try:
            await control.send(self._seat.header())
            while (frame := await control.receive()) is not None:
                header, _ = frame
                if header["kind"] == "leave":
                    if header["error"] is not None:
                        raise AgentError(header["error"])
                    return
                if header["kind"] == "run":
                    task = asyncio.ensure_future(self._command(header))
                    self._running.add(task)
                    task.add_done_callback(self._running.discard)
            raise AgentError("the driver of the job is gone")
        finally:
            control.close()
            for task in self._running:
                task.cancel()
            await asyncio.gather(*self._running, return_exceptions=True)

    async def _reach(self) -> Link:
        """A connection by the first of the driver's addresses that leads there."""
        said = []
        for address in self._invitation.addresses:
            try:
                link = await self._connect(address)
            except (OSError, LinkError) as error:
                said.append(f"{address}: {error}")
            else:
                self._address = address
                return link
        raise AgentError(
            f"{socket.gethostname()} does not reach the driver at port {self._invitation.port}: "
            + "; ".join(said)
        )

    async def _connect(self, address: str) -> Link:
        return await connect(address, self._invitation.port, self._invitation.secret, CONNECT_S)

    async def _command(self, header: Mapping[str, Any]) -> None:
        try:
            link = await self._connect(self._address)
        except (OSError, LinkError):  # the driver's side waits for it no longer than this
            return
        try:
            await link.send({"kind": "channel", "id": header["id"]})
            await _run(link, header["words"], header["environment"])
        finally:
            link.close()


async def _run(link: Link, words: list[str] | None, environment: Mapping[str, str]) -> None:
    """Run a command, or a supervisor of this installation where `words` is None."""
    if words is None:
        words = isolated_command(SUPERVISOR)
    else:  # as ssh does: a shell parses what was put together
        words = ["/bin/sh", "-c", " ".join(words)]
    parent = os.getpid()
    process = await asyncio.create_subprocess_exec(
        *words,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **environment},
        start_new_session=True,
        preexec_fn=lambda: processes.die_with_parent(parent, signal.SIGTERM),
    )
    pumps = [
        asyncio.ensure_future(_pump(link, kind, stream))
        for kind, stream in (("out", process.stdout), ("err", process.stderr))
    ]
    feed = asyncio.ensure_future(_feed(link, process))
    try:
        await asyncio.gather(*pumps)
        await link.send({"kind": "exit", "status": await process.wait()})
    finally:
        feed.cancel()
        await _end(process)


async def _pump(link: Link, kind: str, stream: asyncio.StreamReader | None) -> None:
    assert stream is not None
    while data := await stream.read(_READ_BYTES):
        await link.send({"kind": kind}, data)


async def _feed(link: Link, process: asyncio.subprocess.Process) -> None:
    """What comes for the command; its input ends with the connection."""
    assert process.stdin is not None
    with contextlib.suppress(OSError):
        while (frame := await link.receive()) is not None and frame[0]["kind"] == "in":
            process.stdin.write(frame[1])
            await process.stdin.drain()
    process.stdin.close()


async def _end(process: asyncio.subprocess.Process) -> None:
    """End a command whose launcher has gone. A supervisor does so by itself, ranks first."""
    if process.returncode is not None:
        return
    assert process.stdin is not None
    process.stdin.close()
    try:
        await asyncio.wait_for(process.wait(), _END_S)
    except asyncio.TimeoutError:
        processes.send_signal(process.pid, signal.SIGKILL, group=True)
        await process.wait()


def quoted_supervisor() -> list[str]:
    """A supervisor's command as the launcher gives it to a remote shell."""
    return [shlex.quote(word) for word in isolated_command(SUPERVISOR)]
