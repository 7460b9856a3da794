"""A job from the launcher's side: its hosts, their output, and how it ends.

One loop over everything that can happen: frames of the supervisors, signals, a console that takes
more output, and a deadline. Nothing in it blocks.
"""

from __future__ import annotations

import selectors
import signal
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from horoscale.runner import processes
from horoscale.runner.environment import rank_environment
from horoscale.runner.host import HostLink
from horoscale.runner.hosts import Place
from horoscale.runner.output import Console, RankOutput, open_rank_files
from horoscale.runner.protocol import VERSION, Header, ProtocolError
from horoscale.runner.report import LAUNCHER, Exit, failure_report

# After the first failure the others may raise and report it themselves for so long.
SURVIVORS_S = 2.0
# At the end of an interrupted job a slow reader may take the rest of the output for so long.
DRAIN_S = 2.0
CANNOT_START = 2
LAUNCHER_FAILED = 1


@dataclass(frozen=True)
class JobSpec:
    """Everything that a job needs to know before it starts."""

    command: Sequence[str]
    places: Sequence[Place]
    environment: dict[str, str]
    directory: str
    grace_s: float
    start_timeout_s: float
    output_directory: Path | None = None
    timestamp: bool = False
    verbose: bool = False
    task: bytes | None = None  # the pickled function of horoscale.run()
    on_result: Callable[[int, bytes], None] | None = None


class Job:
    """Runs a job once and tells how it went."""

    def __init__(self, spec: JobSpec) -> None:
        self._spec = spec
        self._selector = selectors.PollSelector()  # works with files, which epoll refuses
        self._console = Console(self._selector)
        self._links: list[HostLink] = []
        self._outputs: dict[tuple[int, str], RankOutput] = {}
        self._running = {place.rank for place in spec.places}
        self._failures: list[Exit] = []
        self._refusal: str | None = None
        self._trouble: str | None = None  # of the launcher or a supervisor, not of a rank
        self._interrupted: int | None = None  # the first signal that asked the job to end
        self._stop_at: float | None = None  # when the survivors of a failure are told to end
        self._stopped = False
        self._discarding = False  # the ranks' output: nobody takes it, or the user wants out
        self._discard_at: float | None = None
        self.report = b""  # the last words of a job that failed

    def run(self) -> int:
        """Blocks until no process of the job is left; returns the launcher's exit status."""
        try:
            self._open_outputs()
        except OSError as error:
            self.report = f"{LAUNCHER}: can't write the ranks' output: {error}\n".encode()
            return self._end(CANNOT_START)
        processes.become_subreaper()
        self._watch_signals()
        self._start()
        while not all(link.ended for link in self._links):
            for selected, _ in self._selector.select(self._timeout()):
                selected.data()
            self._check_deadlines()
            for link in self._links:
                link.set_reading(not self._console.full or self._discarding)
        # A supervisor that was killed left its ranks' children to this process.
        processes.kill_descendants(seconds=10.0)
        for output in self._outputs.values():
            output.finish()
        return self._end(self._conclude())

    # ------------------------------------------------------------------ starting

    def _open_outputs(self) -> None:
        for place in self._spec.places:
            files: dict[str, Any] = {}
            if self._spec.output_directory is not None:
                files = open_rank_files(self._spec.output_directory, place.rank, place.size)
            for stream in ("stdout", "stderr"):
                self._outputs[place.rank, stream] = RankOutput(
                    self._console,
                    place.rank,
                    stream,
                    timestamp=self._spec.timestamp,
                    file=files.get(stream),
                )

    def _watch_signals(self) -> None:
        receiver, sender = socket.socketpair()
        receiver.setblocking(False)
        sender.setblocking(False)
        self._wakeup = (receiver, sender)
        signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2):
            signal.signal(signum, lambda *_: None)
        self._selector.register(receiver, selectors.EVENT_READ, self._on_signal)

    def _start(self) -> None:
        by_host: dict[str, list[Place]] = {}
        for place in self._spec.places:
            by_host.setdefault(place.hostname, []).append(place)
        for hostname, places in by_host.items():
            link = HostLink(hostname, self._selector, self._on_host, self._spec.start_timeout_s)
            self._links.append(link)
            link.send_task(self._spec.task)
            link.send(
                {
                    "kind": "start",
                    "command": list(self._spec.command),
                    "directory": self._spec.directory,
                    "environment": self._spec.environment,
                    "grace": self._spec.grace_s,
                    "ranks": [
                        {"rank": place.rank, "environment": rank_environment(place)}
                        for place in places
                    ],
                }
            )
            self._log(f"{hostname}: ranks {places[0].rank} to {places[-1].rank}")

    # ------------------------------------------------------------------ events

    def _on_host(self, link: HostLink) -> None:
        try:
            for header, payload in link.receive():
                self._on_frame(link, header, payload)
        except ProtocolError as error:
            self._trouble = f"the supervisor on {link.hostname} can't be understood: {error}"
            link.abandon()
        if link.ended and link.status != 0:
            ended = Exit(-1, link.hostname, link.status).describe()
            self._trouble = self._trouble or f"the supervisor on {link.hostname} {ended}"
        if self._trouble is not None:
            self._stop(signal.SIGTERM, self._spec.grace_s)

    def _on_frame(self, link: HostLink, header: Header, payload: bytes) -> None:
        kind = header["kind"]
        if kind == "output":
            if header["stream"] == "result":
                assert self._spec.on_result is not None
                self._spec.on_result(header["rank"], payload)
            else:
                self._feed(self._outputs[header["rank"], header["stream"]], payload)
        elif kind == "exit":
            self._on_exit(Exit(header["rank"], link.hostname, header["status"]))
        elif kind == "refused":
            self._refusal = f"{self._spec.command[0]!r} on {link.hostname}: {header['error']}"
            self._stop(signal.SIGTERM, self._spec.grace_s)
        elif kind == "stuck":
            pids = ", ".join(map(str, header["pids"]))
            self._trouble = f"on {link.hostname} these processes do not end: {pids}"
        elif kind == "hello":
            if header["version"] != VERSION:
                raise ProtocolError(f"version {header['version']}, expected {VERSION}")
            link.greeted = True
            self._log(f"{link.hostname}: supervisor is process {header['pid']} on {header['host']}")
        else:
            raise ProtocolError(f"unknown message {kind!r}")

    def _feed(self, output: RankOutput, data: bytes) -> None:
        if self._discarding:
            return
        try:
            output.feed(data)
        except OSError as error:
            self._trouble = f"can't write the ranks' output: {error}"
        if self._console.broken and not self._stopped:
            # As any program whose reader has gone, such as before `| head`.
            self._interrupted = self._interrupted or signal.SIGPIPE
            self._stop(signal.SIGTERM, self._spec.grace_s)

    def _on_exit(self, ended: Exit) -> None:
        self._running.discard(ended.rank)
        self._log(f"rank {ended.rank} on {ended.hostname}: {ended.describe()}")
        if ended.status != 0 and not self._stopped:
            self._failures.append(ended)
            if self._stop_at is None:
                self._stop_at = time.monotonic() + SURVIVORS_S

    def _on_signal(self) -> None:
        for signum in self._wakeup[0].recv(4096):
            name = processes.signal_name(signum)
            if signum == signal.SIGUSR2:
                for link in self._links:
                    link.send({"kind": "state"})
            elif self._interrupted is None:
                self._interrupted = signum
                self._discard_at = time.monotonic() + self._spec.grace_s + DRAIN_S
                self._say(
                    f"{name}: the ranks have {self._spec.grace_s:g} s to end; again to kill them"
                )
                self._stop(signum, self._spec.grace_s)
            else:
                self._discard_output()
                self._say(f"{name} again: killing the ranks")
                self._stop(signal.SIGKILL, 0.0)

    # ------------------------------------------------------------------ ending

    def _stop(self, signum: int, grace_s: float) -> None:
        self._stopped = True
        self._stop_at = None
        for link in self._links:
            link.send({"kind": "stop", "signal": int(signum), "grace": grace_s})

    def _discard_output(self) -> None:
        self._discarding = True
        self._discard_at = None
        self._console.drop()

    def _timeout(self) -> float | None:
        deadlines = [self._stop_at, self._discard_at, *(x.start_deadline for x in self._links)]
        known = [deadline for deadline in deadlines if deadline is not None]
        return max(0.0, min(known) - time.monotonic()) if known else None

    def _check_deadlines(self) -> None:
        now = time.monotonic()
        if self._stop_at is not None and now >= self._stop_at:
            self._stop(signal.SIGTERM, self._spec.grace_s)
        if self._discard_at is not None and now >= self._discard_at:
            self._discard_output()
        for link in self._links:
            if link.start_deadline is not None and now >= link.start_deadline:
                self._trouble = (
                    f"the supervisor on {link.hostname} did not start within "
                    f"{self._spec.start_timeout_s:g} s (--start-timeout)"
                )
                link.abandon()
                self._stop(signal.SIGTERM, self._spec.grace_s)

    def _drain_console(self) -> None:
        """Writes what is queued: all of it, or what goes in DRAIN_S if the job was interrupted."""
        deadline: float | None = None
        while self._console.queued_bytes > 0:
            if deadline is None and self._interrupted is not None:
                deadline = time.monotonic() + DRAIN_S
            remaining = None if deadline is None else deadline - time.monotonic()
            if remaining is not None and remaining <= 0:
                return
            for selected, _ in self._selector.select(remaining):
                selected.data()

    def _end(self, status: int) -> int:
        if self._spec.task is None:  # otherwise it becomes the message of an exception
            self._console.put("stderr", self.report)
        self._drain_console()
        return status

    def _conclude(self) -> int:
        if self._interrupted is not None:
            name = processes.signal_name(self._interrupted)
            self.report = f"{LAUNCHER}: ended by {name}\n".encode()
            return 128 + self._interrupted
        if self._refusal is not None:
            self.report = f"{LAUNCHER}: can't start {self._refusal}\n".encode()
            return CANNOT_START
        if self._failures:
            first, self.report = failure_report(
                [
                    (failure, list(self._outputs[failure.rank, "stderr"].last_lines))
                    for failure in self._failures
                ]
            )
            return first.shell_status
        if self._trouble is not None:
            self.report = f"{LAUNCHER}: {self._trouble}\n".encode()
            return LAUNCHER_FAILED
        return 0

    # ------------------------------------------------------------------ telling

    def _say(self, text: str) -> None:
        self._console.put("stderr", f"{LAUNCHER}: {text}\n".encode())

    def _log(self, text: str) -> None:
        if self._spec.verbose:
            self._say(text)
