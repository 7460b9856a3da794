"""The supervisor: the launcher's process on one host. It starts the host's ranks and ends them.

It reads orders from its standard input and writes events to its standard output (see protocol). The
end of its input, for any reason, means that the launcher is gone, and it ends everything. In large
jobs it relays between the launcher and supervisors of further hosts.

No process escapes. The supervisor is a subreaper, so all descendants of a rank stay below it in the
process tree, in any session or group. If the supervisor itself is killed, the kernel kills the
ranks, and the guard, its parent, kills what the ranks leave. If the guard is killed, the supervisor
ends its ranks.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from horoscale.runner import processes, protocol
from horoscale.runner.channel import Channel
from horoscale.runner.cores import available_cores
from horoscale.runner.environment import for_ranks
from horoscale.runner.fleet import Fleet
from horoscale.runner.host import LOST_GRACE_S, HostSpec
from horoscale.runner.host_reports import HostReports
from horoscale.runner.rank_link import RankLink
from horoscale.runner.reach import Probe, reserve_port

_READ_BYTES = 1 << 16
_MAX_PIPE_BYTES = 1 << 20  # maximum capacity of a pipe
_MAX_QUEUED_BYTES = 4 << 20  # if more is unsent, the ranks' output is not read
_MAX_UNREPORTED_BYTES = 1 << 20  # if more is unsent, no status reports are sent
_MAX_ERROR = 2000  # characters of a reported error
_STUCK_S = 10.0  # after SIGKILL; only a process stuck inside the kernel takes longer
_KILL_INTERVAL_S = 0.05
_LINKS_S = 2.0  # after SIGKILL here, for supervisors below to finish

# An additional stream of a rank, for a function's result for horoscale.run().
_RESULT = "result"


@dataclass
class _Rank:
    number: int
    process: subprocess.Popen[bytes]
    streams: dict[int, str] = field(default_factory=dict)  # descriptor: name
    link: RankLink | None = None  # with the driver of an elastic job
    reports: RankLink | None = None  # for status reports
    kill_at: float | None = None  # for a rank that was told to end individually


class Supervisor:
    """A host's part of a job, from `start` until none of its processes is left."""

    def __init__(self, inbound: int, outbound: int) -> None:
        self._guard = os.getppid()
        self._selector = selectors.DefaultSelector()
        self._launcher = Channel(inbound, outbound, self._selector, self._on_launcher)
        self._fleet = Fleet(self._selector, self._launcher.send)  # hosts for which this one relays
        self._probe: Probe | None = None
        self._job: dict[str, Any] = {}  # shared by all ranks
        self._ranks: dict[int, _Rank] = {}  # running ones, by process id
        self._streams: dict[int, _Rank] = {}  # by descriptor
        self._paused = False  # not reading the ranks' output, because it is not consumed
        self._started = False
        self._grace_s = 0.0
        self._task: int | None = None
        self._reserved: socket.socket | None = None  # holds torch.distributed's port
        self._reports = HostReports(
            lambda payload: self._launcher.send({"kind": "report"}, payload)
        )
        self._elastic = False  # ranks may start and end until the launcher ends the job
        self._leave_by: float | None = None  # deadline when this machine will be taken away
        self._stopping = False
        self._kill_at: float | None = None
        self._warned: set[int] = set()  # orphans that were sent SIGTERM

    def run(self) -> None:
        """Serve the launcher until no process is left."""
        wakeup, wakeup_sender = socket.socketpair()
        for end in (wakeup, wakeup_sender):
            end.setblocking(False)
        signal.set_wakeup_fd(wakeup_sender.fileno(), warn_on_full_buffer=False)
        for signum in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(signum, lambda *_: None)
        self._selector.register(wakeup, selectors.EVENT_READ, lambda: self._on_signals(wakeup))
        self._launcher.send(
            {
                "kind": "hello",
                "version": protocol.VERSION,
                "machine": socket.gethostname(),
                "pid": os.getpid(),
            }
        )
        while not self._finished():
            for selected, _ in self._selector.select(self._timeout()):
                selected.data()
            self._pause_or_resume()
            self._check_deadlines()
        self._flush()

    # ------------------------------------------------------------------ events

    def _on_launcher(self) -> None:
        self._launcher.write()
        frames = self._launcher.read()
        if frames is None:
            self._fleet.dismiss()
            self._stop(signal.SIGTERM, min(self._grace_s, LOST_GRACE_S))
            return
        for header, payload in frames:
            self._on_order(header, payload)

    def _on_order(self, header: protocol.Header, payload: bytes) -> None:
        kind = header["kind"]
        if kind == "adopt":
            self._adopt(header)
            return
        if "to" not in header or self._fleet.leads_to(header["to"]):
            self._fleet.send(header, payload)
        if "to" in header and self._fleet.leads_to(header["to"]):
            return
        if kind == "probe":
            self._start_probe(header)
        elif kind == "reserve":
            self._reserve(header["address"])
        elif kind == "task":
            self._add_to_task(payload)
        elif kind == "job":
            self._job = header
            self._grace_s = header["grace"]
            self._elastic = header.get("elastic", False)
        elif kind == "start":
            self._start(header)
        elif kind == "tell":
            self._tell(header["rank"], payload)
        elif kind == "end":
            self._end_rank(header["rank"], header["grace"])
        elif kind == "ping":
            self._launcher.send({"kind": "pong"})
        elif kind == "state":
            self._ask_for_state()
        elif kind == "stop":
            self._stop(header["signal"], header["grace"])
        else:
            raise protocol.ProtocolError(f"unknown order {kind!r}")

    def _on_signals(self, wakeup: socket.socket) -> None:
        for signum in set(wakeup.recv(4096)):
            if signum == signal.SIGCHLD:
                self._reap()
                continue
            if os.getppid() != self._guard:
                error = "was left by its guard process, which has been killed"
                self._launcher.send({"kind": "lost", "greeted": True, "error": error})
            elif self._elastic and signum == signal.SIGTERM and self._launcher.readable:
                # The machine will be taken away: the ranks leave at their next commit.
                self._launcher.send({"kind": "drain"})
                self._leave_by = time.monotonic() + self._grace_s
                continue
            self._stop(signum, self._grace_s)

    def _on_output(self, descriptor: int) -> bool:
        """Forward a piece of a rank's output; return False if there is none now."""
        rank = self._streams.get(descriptor)
        if rank is None:  # closed by an earlier event of the same batch
            return False
        try:
            data = os.read(descriptor, _READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self._close_stream(descriptor)
            return False
        stream = rank.streams[descriptor]
        self._launcher.send({"kind": "output", "rank": rank.number, "stream": stream}, data)
        return True

    # ------------------------------------------------------------------ starting

    def _adopt(self, order: dict[str, Any]) -> None:
        if not self._stopping:
            hosts = [
                HostSpec(host["index"], host["name"], host["command"]) for host in order["hosts"]
            ]
            self._fleet.adopt(hosts, order["timeout"])

    def _start_probe(self, order: dict[str, Any]) -> None:
        self._probe = Probe(
            self._selector,
            order["addresses"],
            order["port"],
            order["token"],
            lambda address: self._launcher.send({"kind": "reached", "address": address}),
        )

    def _reserve(self, launcher: str) -> None:
        try:
            address, self._reserved = reserve_port(launcher)
        except OSError as error:
            why = f"no port for torch.distributed: {error}"
            self._launcher.send({"kind": "refused", "rank": 0, "error": why})
            return
        port = self._reserved.getsockname()[1]
        self._launcher.send({"kind": "reserved", "address": address, "port": port})

    def _add_to_task(self, piece: bytes) -> None:
        if self._task is None:
            self._task = os.memfd_create("horoscale-task")
        os.write(self._task, piece)

    def _start(self, order: dict[str, Any]) -> None:
        if self._stopping:  # the order came before the start
            return
        self._started = True
        if self._probe is not None:
            self._probe.close()
        shared = for_ranks(os.environ, self._job["environment"])
        share = max(1, available_cores() // order.get("slots", len(order["ranks"])))
        shared.setdefault("OMP_NUM_THREADS", str(share))
        for rank in order["ranks"]:
            try:
                self._start_rank(rank["rank"], {**shared, **rank["environment"]})
            except (OSError, ValueError) as error:
                text = str(error)[:_MAX_ERROR]
                self._launcher.send({"kind": "refused", "rank": rank["rank"], "error": text})
                if self._elastic:
                    continue
                self._stop(signal.SIGTERM, self._grace_s)
                return

    def _start_rank(self, number: int, environment: dict[str, str]) -> None:
        names = ["stdout", "stderr"]
        inherited = []
        link = reports = None
        if self._job.get("watched"):
            reports = RankLink(self._selector, lambda line: self._reports.take(number, line))
            inherited.append(reports.descriptor)
            environment = {**environment, "HOROSCALE_STATUS_LINK": reports.variable()}
        if self._elastic:
            link = RankLink(self._selector, lambda line: self._forward(number, line))
            inherited.append(link.descriptor)
            environment = {**environment, "HOROSCALE_ELASTIC_LINK": link.variable()}
        if self._task is not None:
            names.append(_RESULT)
            inherited.append(self._task)
        pipes = {name: os.pipe() for name in names}
        try:
            if self._task is not None:
                inherited.append(pipes[_RESULT][1])
                environment = {
                    **environment,
                    "HOROSCALE_TASK_FD": str(self._task),
                    "HOROSCALE_RESULT_FD": str(pipes[_RESULT][1]),
                }
            supervisor = os.getpid()
            process = subprocess.Popen(
                self._job["command"],
                cwd=self._job["directory"],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=pipes["stdout"][1],
                stderr=pipes["stderr"][1],
                pass_fds=inherited,
                start_new_session=True,
                preexec_fn=lambda: processes.die_with_parent(supervisor),
            )
        except BaseException:
            for reader, _ in pipes.values():
                os.close(reader)
            for one in (link, reports):
                if one is not None:
                    one.close()
            raise
        finally:
            for _, writer in pipes.values():
                os.close(writer)
        streams = {reader: name for name, (reader, _) in pipes.items()}
        rank = _Rank(number, process, streams, link, reports)
        for one in (link, reports):
            if one is not None:
                one.started()
        self._ranks[process.pid] = rank
        for reader in rank.streams:
            os.set_blocking(reader, False)
            self._streams[reader] = rank
            if not self._paused:
                self._watch(reader)

    def _forward(self, number: int, line: bytes) -> None:
        self._launcher.send({"kind": "said", "rank": number}, line)

    def _numbered(self, number: int) -> _Rank | None:
        return next((one for one in self._ranks.values() if one.number == number), None)

    def _tell(self, number: int, line: bytes) -> None:
        if (rank := self._numbered(number)) is not None and rank.link is not None:
            rank.link.send(line)

    def _end_rank(self, number: int, grace_s: float) -> None:
        """Ask one rank to end, and kill it after the grace."""
        if (rank := self._numbered(number)) is not None:
            if grace_s > 0:
                processes.send_signal(rank.process.pid, signal.SIGTERM)
            rank.kill_at = time.monotonic() + grace_s

    def _ask_for_state(self) -> None:
        """Send SIGUSR2 to the ranks, or to their children, if they handle it.

        It would end a process without a handler, such as a shell or a rank before hvd.init().
        """
        for pid in [*self._ranks, *processes.descendants(self._ranks)]:
            if processes.catches(pid, signal.SIGUSR2):
                processes.send_signal(pid, signal.SIGUSR2)

    # ------------------------------------------------------------------ ending

    def _stop(self, signum: int, grace_s: float) -> None:
        """Ask the ranks to end, and kill the remaining ones after the grace.

        A later order may only shorten the time.
        """
        for pid in self._ranks:
            # A terminal's Ctrl-C goes to the whole group. Other signals go only to the rank, so
            # that its data loaders live on while it writes a checkpoint; they are signalled when
            # it has ended.
            processes.send_signal(pid, signum, group=signum == signal.SIGINT)
        deadline = time.monotonic() + grace_s
        self._kill_at = deadline if self._kill_at is None else min(self._kill_at, deadline)
        self._stopping = True
        self._reap()

    def _reap(self) -> None:
        """Report the ranks that have ended, and handle their orphans."""
        ended: list[tuple[_Rank, int]] = []
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, wait_status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                status = os.waitstatus_to_exitcode(wait_status)
                if rank := self._ranks.pop(pid, None):
                    rank.process.returncode = status
                    for one in (rank.link, rank.reports):
                        if one is not None:
                            one.close()
                    if self._elastic:  # its remaining children, such as data loaders
                        processes.send_signal(pid, signal.SIGTERM, group=True)
                        self._drain(list(rank.streams))  # its output precedes its end
                    ended.append((rank, status))
                elif link := self._fleet.pids.get(pid):
                    link.reaped(status)
        if ended:
            self._reports.flush()  # the last reports precede the ends
        # The kernel does not report the order of several ends. A crash is a cause; an exit with an
        # error may be its consequence.
        for rank, status in sorted(ended, key=lambda item: item[1] >= 0):
            self._launcher.send({"kind": "exit", "rank": rank.number, "status": status})
        idle = self._started and not self._ranks and not self._stopping
        if idle and (not self._elastic or self._leave_by is not None):
            self._stop(signal.SIGTERM, self._grace_s)
        elif self._stopping:
            self._warn_orphans()

    def _own_children(self) -> list[int]:
        """Return this process's children, without links to other hosts, which end by themselves."""
        links = self._fleet.pids
        return [pid for pid in processes.children_of(os.getpid()) if pid not in links]

    def _warn_orphans(self) -> None:
        orphans = [pid for pid in self._own_children() if pid not in self._ranks]
        for pid in [*orphans, *processes.descendants(orphans)]:
            if pid not in self._warned:
                self._warned.add(pid)
                processes.send_signal(pid, signal.SIGTERM)

    def _check_deadlines(self) -> None:
        now = time.monotonic()
        self._fleet.check_deadlines(now)
        self._reports.check(now, self._launcher.queued_bytes > _MAX_UNREPORTED_BYTES)
        for pid, rank in self._ranks.items():
            if rank.kill_at is not None and now >= rank.kill_at:
                rank.kill_at = None
                processes.send_signal(pid, signal.SIGKILL)
        if self._leave_by is not None and now >= self._leave_by and not self._stopping:
            self._stop(signal.SIGTERM, self._grace_s)
        if self._kill_at is None or now < self._kill_at:
            return
        if not self._launcher.readable and now >= self._kill_at + _LINKS_S:
            self._fleet.abandon()  # nothing else would end them
        self._kill(now)

    def _kill(self, now: float) -> None:
        """Send SIGKILL to all ranks and their descendants, repeatedly until none is left."""
        assert self._kill_at is not None
        children = self._own_children()
        remaining = [*children, *processes.descendants(children)]
        for pid in remaining:
            processes.send_signal(pid, signal.SIGKILL)
        if remaining and now > self._kill_at + _STUCK_S:
            self._launcher.send({"kind": "stuck", "pids": remaining[: protocol.MAX_PIDS]})
            self._flush()
            os._exit(1)
        if not remaining and self._launcher.readable:
            self._kill_at = None  # only hosts below are left; their supervisors do the same

    def _timeout(self) -> float | None:
        now = time.monotonic()
        known = (self._fleet.deadline, self._reports.deadline)
        deadlines = [one for one in known if one is not None]
        deadlines += [one.kill_at for one in self._ranks.values() if one.kill_at is not None]
        if self._leave_by is not None and not self._stopping:
            deadlines.append(self._leave_by)
        if self._kill_at is not None:
            deadlines.append(max(self._kill_at, now + _KILL_INTERVAL_S))
        return max(0.0, min(deadlines) - now) if deadlines else None

    def _finished(self) -> bool:
        if not self._stopping or self._ranks or not self._fleet.ended:
            return False
        self._reap()
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return True
        return False

    def _flush(self) -> None:
        """Forward the remaining contents of pipes, as long as the launcher accepts it."""
        self._drain(list(self._streams))
        self._launcher.close_inbound()
        while self._launcher.writable and self._launcher.queued_bytes > 0:
            self._selector.select()
            self._launcher.write()

    # ------------------------------------------------------------------ output

    def _drain(self, descriptors: Sequence[int]) -> None:
        """Forward the contents of pipes."""
        for descriptor in descriptors:
            for _ in range(_MAX_PIPE_BYTES // _READ_BYTES):  # another process may keep writing
                if not self._on_output(descriptor):
                    break

    def _pause_or_resume(self) -> None:
        pause = self._launcher.queued_bytes > _MAX_QUEUED_BYTES
        self._fleet.set_reading(not pause)
        if pause != self._paused:
            self._paused = pause
            for descriptor in self._streams:
                if pause:
                    self._selector.unregister(descriptor)
                else:
                    self._watch(descriptor)

    def _watch(self, descriptor: int) -> None:
        self._selector.register(
            descriptor, selectors.EVENT_READ, lambda: self._on_output(descriptor)
        )

    def _close_stream(self, descriptor: int) -> None:
        rank = self._streams.pop(descriptor)
        del rank.streams[descriptor]
        if not self._paused:
            self._selector.unregister(descriptor)
        os.close(descriptor)


def main(arguments: Sequence[str] = ()) -> int:
    """Run a supervisor on the standard streams, below a guard that outlives it."""
    del arguments
    guard = os.getpid()
    processes.become_subreaper()
    supervisor = os.fork()
    if supervisor != 0:
        return _guard(supervisor)
    processes.die_with_parent(guard, signal.SIGTERM)
    processes.become_subreaper()
    # Output of this process must not mix with frames: it goes to standard error.
    outbound = os.dup(1)
    os.dup2(2, 1)
    try:
        Supervisor(0, outbound).run()
    except protocol.ProtocolError as error:  # the guard ends the remaining processes
        sys.stderr.write(f"can't understand the launcher: {error}\n")
        return 1
    return 0


def _guard(supervisor: int) -> int:
    """Wait for the supervisor, end its remaining processes, and return its status as a shell."""
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, lambda number, _: processes.send_signal(supervisor, number))
    status = os.waitstatus_to_exitcode(os.waitpid(supervisor, 0)[1])
    processes.kill_descendants(seconds=_STUCK_S)
    return status if status >= 0 else 128 - status
