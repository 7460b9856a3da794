"""The agent in a task of an engine: runs commands for the launcher on this host.

It holds one connection to the driver's Agents for requests, and one for each command, which carries
the command's input, output and exit status. If the driver ends, the agent ends the commands.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from horoscale._version import __version__
from horoscale.engines.agents.link import Link, LinkError, connect
from horoscale.runner import processes
from horoscale.runner.bootstrap import PACKAGE_ROOT, isolated_command
from horoscale.runner.remote import SUPERVISOR

CONNECT_S = 10.0
_END_S = 12.0  # for a supervisor without launcher, which ends its ranks first
_READ_BYTES = 1 << 16


class AgentError(RuntimeError):
    """The job that this agent took part in failed, or its driver is gone."""


class Unreachable(AgentError):  # noqa: N818 (it says what is)
    """The driver cannot be reached, or not yet."""


@dataclass(frozen=True)
class Invitation:
    """The data that an agent needs to find the driver. Sent to the engine's tasks as a pickle."""

    addresses: tuple[str, ...]
    port: int
    secret: str = field(repr=False)


@dataclass(frozen=True)
class Seat:
    """The location of an agent: its host name for the ranks, and the index of its task."""

    host: str
    index: int
    slots: int = 1
    devices: tuple[str, ...] = ()  # GPUs that the engine has assigned to this task

    def header(self) -> dict[str, Any]:
        """Return a frame's header with this data, and what must be equal everywhere."""
        return {
            "kind": "agent",
            "host": self.host,
            "index": self.index,
            "slots": self.slots,
            "devices": list(self.devices),
            "machine": socket.gethostname(),
            "version": __version__,
            "root": PACKAGE_ROOT,
        }


def serve(invitation: Invitation, seat: Seat, *, drain: bool = False) -> None:
    """Serve the driver until the job is over. Called in a task of the engine.

    With `drain`, in the main thread, SIGTERM means that this host is about to be taken away. The
    supervisors are notified, whose ranks leave an elastic job at their next commit, and the agent
    ends with them.

    Raises:
        Unreachable: the driver cannot be reached.
        AgentError: the job failed, or the driver is gone.
    """
    asyncio.run(_Agent(invitation, seat).run(drain))


class _Agent:
    def __init__(self, invitation: Invitation, seat: Seat) -> None:
        self._invitation = invitation
        self._seat = seat
        self._address = ""
        self._running: set[asyncio.Task[None]] = set()
        self._pids: set[int] = set()  # process ids of the commands

    async def run(self, drain: bool) -> None:
        control = await self._reach()
        try:
            await control.send(self._seat.header())
            serving = asyncio.ensure_future(self._serve(control))
            if drain:
                asyncio.get_running_loop().add_signal_handler(
                    signal.SIGTERM, lambda: self._drain(serving)
                )
            await serving
        except asyncio.CancelledError:
            return  # drained
        finally:
            control.close()
            for task in self._running:
                task.cancel()
            await asyncio.gather(*self._running, return_exceptions=True)

    async def _serve(self, control: Link) -> None:
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

    def _drain(self, serving: asyncio.Task[None]) -> None:
        """Pass SIGTERM on, and end after the last command."""
        for pid in self._pids:
            processes.send_signal(pid, signal.SIGTERM)
        if not self._running:
            serving.cancel()
        for task in self._running:
            task.add_done_callback(lambda _: self._running or serving.cancel())

    async def _reach(self) -> Link:
        """Connect to the first of the driver's addresses that is reachable."""
        said = []
        for address in self._invitation.addresses:
            try:
                link = await self._connect(address)
            except (OSError, LinkError) as error:
                said.append(f"{address}: {error}")
            else:
                self._address = address
                return link
        raise Unreachable(
            f"{socket.gethostname()} does not reach the driver at port {self._invitation.port}: "
            + "; ".join(said)
        )

    async def _connect(self, address: str) -> Link:
        return await connect(address, self._invitation.port, self._invitation.secret, CONNECT_S)

    async def _command(self, header: Mapping[str, Any]) -> None:
        try:
            link = await self._connect(self._address)
        except (OSError, LinkError):  # the driver does not wait longer than this either
            return
        try:
            await link.send({"kind": "channel", "id": header["id"]})
            await _run(link, header["words"], header["environment"], self._pids)
        finally:
            link.close()


async def _run(
    link: Link, words: list[str] | None, environment: Mapping[str, str], pids: set[int]
) -> None:
    """Run a command, or this installation's supervisor if `words` is None."""
    # A shell parses the joined words, as with ssh.
    shell = isolated_command(SUPERVISOR) if words is None else ["/bin/sh", "-c", " ".join(words)]
    parent = os.getpid()
    process = await asyncio.create_subprocess_exec(
        *shell,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **environment},
        start_new_session=True,
        preexec_fn=lambda: processes.die_with_parent(parent, signal.SIGTERM),
    )
    pids.add(process.pid)
    output = asyncio.gather(_pump(link, "out", process.stdout), _pump(link, "err", process.stderr))
    feed = asyncio.ensure_future(_feed(link, process))
    ends: list[asyncio.Future[Any]] = [output, feed]
    try:
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if output.done():
            await link.send({"kind": "exit", "status": await process.wait()})
    finally:
        feed.cancel()
        await _end(process)
        output.cancel()
        pids.discard(process.pid)


async def _pump(link: Link, kind: str, stream: asyncio.StreamReader | None) -> None:
    assert stream is not None
    while data := await stream.read(_READ_BYTES):
        await link.send({"kind": kind}, data)


async def _feed(link: Link, process: asyncio.subprocess.Process) -> None:
    """Forward input to the command until the connection closes."""
    assert process.stdin is not None
    while (frame := await link.receive()) is not None:
        with contextlib.suppress(OSError):  # it has closed its input
            if frame[0]["kind"] == "in":
                process.stdin.write(frame[1])
                await process.stdin.drain()
            else:
                process.stdin.close()


async def _end(process: asyncio.subprocess.Process) -> None:
    """End a command whose launcher has gone. A supervisor ends by itself, after its ranks."""
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
    """Return the supervisor's command as the launcher passes it to a remote shell."""
    return [shlex.quote(word) for word in isolated_command(SUPERVISOR)]
