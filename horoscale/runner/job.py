"""The launcher's side of a job: its hosts, their output, and its termination.

One event loop handles frames from the supervisors, signals, console output and deadlines. Nothing
in it blocks.
"""

from __future__ import annotations

import selectors
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from horoscale._core import HorovodInternalError
from horoscale.runner import processes
from horoscale.runner.assembly import Assembly
from horoscale.runner.environment import rank_environment, rendezvous_environment, torch_environment
from horoscale.runner.fleet import Fleet
from horoscale.runner.host import LOST_GRACE_S, HostSpec
from horoscale.runner.hosts import Place
from horoscale.runner.output import Console, RankOutput, open_rank_files
from horoscale.runner.protocol import Header, ProtocolError
from horoscale.runner.rendezvous import Rendezvous
from horoscale.runner.report import CANNOT_START, LAUNCHER, LAUNCHER_FAILED, Exit, failure_report
from horoscale.runner.results import ResultsError
from horoscale.runner.tracebacks import Tracebacks
from horoscale.runner.watching import StatusSpec, Watching

# Time for the other ranks to raise and report errors themselves after the first failure.
SURVIVORS_S = 2.0
# Time for a slow reader to consume the remaining output when an interrupted job ends.
DRAIN_S = 2.0
# Time for supervisors to end after the grace: more than they need to report stuck ranks.
SUPERVISORS_S = 15.0
# Characters of a host's own messages, from its supervisor and remote shell, that are shown.
MAX_NOTES = 1000
MAX_NOTE_CHARACTERS = 256 << 10


@dataclass(frozen=True)
class JobSpec:
    """Everything that is needed to start a job."""

    command: Sequence[str]
    places: Sequence[Place]
    commands: Mapping[str, Sequence[str]]  # commands that start supervisors, by host name
    addresses: Sequence[str]  # of this machine; all hosts must reach one of them
    environment: Mapping[str, str]
    directory: str
    grace_s: float
    start_timeout_s: float
    encrypt: bool = False  # traffic between the ranks and with the rendezvous
    output_directory: Path | None = None
    timestamp: bool = False
    verbose: bool = False
    full_tracebacks: bool = False  # print each rank's traceback unchanged
    torch_environment: bool = False  # set torchrun's variables for the ranks, too
    task: bytes | None = None  # the pickled function of horoscale.run()
    on_result: Callable[[int, bytes], None] | None = None
    status: StatusSpec | None = None  # how to serve the job's status


class Job:
    """Runs a job once and reports its outcome."""

    elastic = False

    def __init__(self, spec: JobSpec) -> None:
        self._spec = spec
        self._selector = selectors.PollSelector()  # unlike epoll, works with files
        self._console = Console(self._selector)
        names = dict.fromkeys(place.hostname for place in spec.places)
        self._hosts = [
            HostSpec(index, name, spec.commands[name]) for index, name in enumerate(names)
        ]
        self._fleet = Fleet(self._selector, self._on_frame)
        self._assembly = Assembly(
            self._hosts, spec.addresses, self._selector, self._start_ranks, self._on_no_start
        )
        self._rendezvous: Rendezvous | None = None
        self._watching = Watching(spec.status, spec.command, elastic=self.elastic)
        self._outputs: dict[tuple[int, str], RankOutput] = {}
        self._host_of = {place.rank: place.hostname for place in spec.places}
        self._running = set(self._host_of)
        self._tracebacks = Tracebacks(show_all=spec.full_tracebacks)
        self._failures: list[Exit] = []
        self._ended_well: dict[int, Exit] = {}
        self._unasked: list[int] = []  # ranks that were not told to end
        self._noted: dict[str, tuple[int, int]] = {}  # lines and characters by host
        self._reserving = False  # waiting for torch.distributed's port
        self._refusal: str | None = None
        self._trouble: str | None = None  # an error of the launcher or a supervisor
        self._interrupted: int | None = None  # the first signal that requested the end
        self._stop_at: float | None = None  # time to end the survivors of a failure
        self._stopped = False
        self._abandon_at: float | None = None  # time to abandon supervisors that have not ended
        self._discarding = (
            False  # drop the ranks' output: its reader is gone, or the user interrupted twice
        )
        self._discard_at: float | None = None
        self.report = b""  # the final message of a failed job

    def run(self) -> int:
        """Block until no process of the job is left; return the launcher's exit status."""
        try:
            self._open_outputs()
        except OSError as error:
            self.report = f"{LAUNCHER}: can't write the ranks' output: {error}\n".encode()
            return self._end(CANNOT_START)
        try:
            for line in self._watching.begin():  # not served: one has the token
                self._console.put("stderr", f"{LAUNCHER}: {line}\n".encode())
        except OSError as error:
            self.report = (
                f"{LAUNCHER}: can't serve --status-port: {error}; choose another port, or 0 for a "
                "free one\n"
            ).encode()
            return self._end(CANNOT_START)
        processes.become_subreaper()
        self._watch_signals()
        self._begin()
        while not self._over():
            for selected, _ in self._selector.select(self._timeout()):
                selected.data()
            self._check_deadlines()
            self._fleet.set_reading(not self._console.full or self._discarding)
        self._assembly.close()
        if self._rendezvous is not None:
            self._rendezvous.close()
        # A killed supervisor leaves its ranks' children to this process.
        processes.kill_descendants(seconds=10.0)
        for output in self._outputs.values():
            output.finish()
        self._tracebacks.flush()
        self._watching.close()
        return self._end(self._conclude())

    # ------------------------------------------------------------------ starting

    def _begin(self) -> None:
        self._assembly.begin(self._fleet, self._spec.start_timeout_s)

    def _over(self) -> bool:
        return self._fleet.ended

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
                    tracebacks=self._tracebacks if stream == "stderr" else None,
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

    def _start_ranks(self, address: str) -> None:
        """Start the ranks when all hosts are there and reach this one at `address`."""
        try:
            self._rendezvous = Rendezvous(address, encrypt=self._spec.encrypt)
        except HorovodInternalError as error:
            self._on_no_start(str(error))
            return
        self._log(f"the rendezvous is at {self._rendezvous.address}")
        if self._spec.torch_environment:
            self._reserving = True
            self._fleet.send({"kind": "reserve", "to": 0, "address": address})
        else:
            self._send_job({})

    def _send_job(self, own: Mapping[int, Mapping[str, str]]) -> None:
        """Start the ranks; `own` has additional variables of some of them."""
        assert self._rendezvous is not None
        way = rendezvous_environment(self._rendezvous.address, self._rendezvous.secret)
        if self._spec.task is not None:
            self._fleet.send_task(self._spec.task)
        self._fleet.send(
            {
                "kind": "job",
                "command": list(self._spec.command),
                "directory": self._spec.directory,
                "environment": {**self._spec.environment, **way},
                "grace": self._spec.grace_s,
                "watched": self._watching.wanted,
            }
        )
        for host in self._hosts:
            places = [place for place in self._spec.places if place.hostname == host.name]
            ranks = [
                {
                    "rank": place.rank,
                    "environment": {**rank_environment(place), **own.get(place.rank, {})},
                }
                for place in places
            ]
            for place in places:
                self._watching.started(place.rank, place.rank, host.name, place.local_rank)
            self._fleet.send({"kind": "start", "to": host.index, "ranks": ranks})
            self._log(f"{host.name}: ranks {places[0].rank} to {places[-1].rank}")

    def _on_no_start(self, why: str) -> None:
        self._trouble = why
        self._stop(signal.SIGTERM, 0.0)

    # ------------------------------------------------------------------ events

    def _on_frame(self, header: Header, payload: bytes) -> None:
        kind = header["kind"]
        host = self._hosts[header["host"]].name
        if "rank" in header and self._host_of.get(header["rank"]) != host:
            raise ProtocolError(f"a {kind!r} about rank {header['rank']}, which is elsewhere")
        if kind == "output":
            self._on_output(header["rank"], header["stream"], payload)
        elif kind == "report":
            self._watching.report(host, payload)
        elif kind == "reserved":
            self._on_reserved(host, header)
        elif kind == "exit":
            self._on_exit(Exit(header["rank"], host, header["status"]))
        elif kind == "refused":
            self._refusal = f"{self._spec.command[0]!r} on {host}: {header['error']}"
            self._stop(signal.SIGTERM, self._spec.grace_s)
        elif kind == "stuck":
            pids = ", ".join(map(str, header["pids"]))
            self._trouble = f"these processes on {host} do not end: {pids}"
        elif kind == "note":
            self._note(host, header["text"])
        else:
            self._on_host(host, header)

    def _on_output(self, rank: int, stream: str, data: bytes) -> None:
        if stream != "result":
            self._watching.printed(rank, stream, data)
            self._feed(self._outputs[rank, stream], data)
        elif self._spec.on_result is not None:
            self._on_result(rank, data)
        else:
            raise ProtocolError(f"a result of rank {rank}, which has no task")

    def _on_result(self, rank: int, piece: bytes) -> None:
        assert self._spec.on_result is not None
        try:
            self._spec.on_result(rank, piece)
        except ResultsError as error:
            self._give_up(str(error))

    def _give_up(self, trouble: str) -> None:
        self._trouble = trouble
        if not self._stopped:
            self._stop(signal.SIGTERM, self._spec.grace_s)

    def _on_reserved(self, host: str, header: Header) -> None:
        if not self._reserving or host != self._host_of[0]:
            raise ProtocolError("a port that was not asked for")
        self._reserving = False
        places, master = self._spec.places, (header["address"], header["port"])
        self._send_job({place.rank: torch_environment(place, *master) for place in places})

    def _on_host(self, host: str, header: Header) -> None:
        if header["kind"] == "hello":
            text = f"supervisor is process {header['pid']} on {header['machine']}"
            self._watching.host(host, "up")
        elif header["kind"] == "lost":
            text = f"the supervisor {header['error']}"
            self._watching.host(host, "lost")
        else:
            text = ""
        if text and self._spec.verbose:
            self._note(host, text)
        self._assembly.on_frame(header)
        running = self._rendezvous is not None and not self._stopped
        if header["kind"] == "lost" and running:
            self._trouble = f"the supervisor on {host} {header['error']}"
            self._stop(signal.SIGTERM, min(self._spec.grace_s, LOST_GRACE_S))

    def _feed(self, output: RankOutput, data: bytes) -> None:
        if self._discarding:
            return
        try:
            output.feed(data)
        except OSError as error:
            self._trouble = f"can't write the ranks' output: {error}"
            self._say(f"{self._trouble}; the job continues without the file")
        if self._console.broken and not self._stopped:
            # Like any program whose reader has gone, for example before `| head`.
            self._interrupted = self._interrupted or signal.SIGPIPE
            self._stop(signal.SIGTERM, self._spec.grace_s)

    def _on_exit(self, ended: Exit) -> None:
        if ended.rank not in self._running:
            raise ProtocolError(f"a second end of rank {ended.rank}")
        self._running.discard(ended.rank)
        self._log(f"rank {ended.rank} on {ended.hostname}: {ended.describe()}")
        expected = self._stopped
        self._watching.ended(ended.rank, ended.status, ended.describe(), expected=expected)
        if ended.status == 0:
            self._ended_well[ended.rank] = ended
            if not self._stopped:
                self._unasked.append(ended.rank)
        elif not self._stopped:
            self._failures.append(ended)
            if self._stop_at is None:
                self._stop_at = time.monotonic() + SURVIVORS_S

    def _on_signal(self) -> None:
        for signum in self._wakeup[0].recv(4096):
            name = processes.signal_name(signum)
            if signum == signal.SIGUSR2:
                self._fleet.send({"kind": "state"})
            elif self._interrupted is None:
                self._interrupted = signum
                self._discard_at = time.monotonic() + self._spec.grace_s + DRAIN_S
                self._say(
                    f"{name}: the ranks have {self._spec.grace_s:g} s to end; send it again to "
                    "kill them"
                )
                self._stop(signum, self._spec.grace_s)
            else:
                self._discard_output()
                self._say(f"{name} again: killing the ranks")
                self._stop(signal.SIGKILL, 0.0)

    # ------------------------------------------------------------------ ending

    def _stop(self, signum: int, grace_s: float) -> None:
        self._stopped = True
        self._watching.stopping()
        self._stop_at = None
        abandon_at = time.monotonic() + grace_s + SUPERVISORS_S
        self._abandon_at = min(abandon_at, self._abandon_at or abandon_at)
        if self._rendezvous is None:
            self._assembly.close()
            self._fleet.dismiss()
        else:
            self._fleet.send({"kind": "stop", "signal": int(signum), "grace": grace_s})

    def _discard_output(self) -> None:
        self._discarding = True
        self._discard_at = None
        self._console.drop()

    def _timeout(self) -> float | None:
        deadlines = [
            *(self._stop_at, self._discard_at, self._abandon_at),
            *(self._fleet.deadline, self._assembly.deadline, self._tracebacks.deadline),
        ]
        known = [deadline for deadline in deadlines if deadline is not None]
        return max(0.0, min(known) - time.monotonic()) if known else None

    def _check_deadlines(self) -> None:
        now = time.monotonic()
        if self._stop_at is not None and now >= self._stop_at:
            self._stop(signal.SIGTERM, self._spec.grace_s)
        if self._discard_at is not None and now >= self._discard_at:
            self._discard_output()
        self._tracebacks.check_deadline(now)
        self._fleet.check_deadlines(now)
        self._assembly.check_deadline(now)
        if self._abandon_at is not None and now >= self._abandon_at:
            self._abandon_at = None
            names = ", ".join(self._fleet.abandon())
            self._say(f"{names} did not confirm the end: processes may be left there")

    def _drain_console(self) -> None:
        """Write queued output: all of it, or for DRAIN_S if the job was interrupted."""
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
        if self._spec.task is None:  # otherwise it becomes an exception's message
            self._console.put("stderr", self.report)
        self._drain_console()
        return status

    def _conclude(self) -> int:
        if self._interrupted is not None:
            name = processes.signal_name(self._interrupted)
            self.report = f"{LAUNCHER}: ended by {name}\n".encode()
            return 128 + self._interrupted
        if self._refusal is not None:
            self.report = f"{LAUNCHER}: cannot start {self._refusal}\n".encode()
            return CANNOT_START
        if self._failures:
            first, self.report = failure_report(
                [
                    (failure, list(self._outputs[failure.rank, "stderr"].last_lines))
                    for failure in self._failures
                ],
                self._ended_well,
                self._unasked,
            )
            return first.shell_status
        if self._trouble is not None:
            self.report = f"{LAUNCHER}: {self._trouble}\n".encode()
            return LAUNCHER_FAILED
        return 0

    # ------------------------------------------------------------------ messages

    def _say(self, text: str) -> None:
        self._watching.said(text)
        self._console.put("stderr", f"{LAUNCHER}: {text}\n".encode(errors="backslashreplace"))

    def _note(self, host: str, text: str) -> None:
        """Print a host's message; a host that never stops must not fill the disk."""
        lines, characters = self._noted.get(host, (0, 0))
        if lines >= MAX_NOTES or characters >= MAX_NOTE_CHARACTERS:
            return
        self._say(f"{host}: {text}")
        self._noted[host] = lines, characters = lines + 1, characters + len(text)
        if lines >= MAX_NOTES or characters >= MAX_NOTE_CHARACTERS:
            self._say(f"{host}: further messages are omitted")

    def _log(self, text: str) -> None:
        if self._spec.verbose:
            self._say(text)
