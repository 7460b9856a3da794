"""The launcher's side of an elastic job: the driver decides which hosts and processes it has.

Job provides what all jobs need (output, signals, termination). Each host gets a supervisor when its
first process starts. The supervisor stays until the host or the job has ended.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import time
from collections import deque
from collections.abc import Callable, Sequence

from horoscale._core import HorovodInternalError, StoreClient
from horoscale.common.views import View
from horoscale.driver import Driver, Finish, Start
from horoscale.driver.discovery import Hosts, ScriptDiscovery
from horoscale.driver.driver import MessageError, first_line, store_keys
from horoscale.runner import processes
from horoscale.runner.control import ControlServer
from horoscale.runner.elastic_spec import ElasticHost, ElasticSpec
from horoscale.runner.environment import rank_environment, rendezvous_environment
from horoscale.runner.host import HostSpec
from horoscale.runner.hosts import Place
from horoscale.runner.job import Job, JobSpec
from horoscale.runner.output import RankOutput, open_rank_files
from horoscale.runner.protocol import MAX_PAYLOAD_BYTES, VERSION, Header, ProtocolError
from horoscale.runner.pulse import Pulse
from horoscale.runner.reach import Beacon
from horoscale.runner.rendezvous import Rendezvous
from horoscale.runner.report import CANNOT_START, elastic_failure_report
from horoscale.runner.results import HeldResults, ResultsError

_OPEN_OUTPUTS = 32  # of ended processes, for the output of their children
_CALL_OFF_S = 5.0  # to reach the store in this very process
_TELLING_PAUSE = 9  # times the duration of the last report of all processes to the status page


class ElasticJob(Job):
    """Runs an elastic job once and reports its outcome."""

    elastic = True

    def __init__(self, spec: JobSpec, elastic: ElasticSpec) -> None:
        super().__init__(spec)
        self._elastic = elastic
        self._driver = Driver(elastic.rules, self)
        self._pulse = Pulse(elastic.network_timeout_s)
        self._known: dict[str, ElasticHost] = {}  # hosts with a supervisor, by name
        self._by_index: list[ElasticHost] = []
        self._commands: dict[str, Sequence[str]] = {}
        self._places: dict[int, ElasticHost] = {}  # of each running process
        self._owners: dict[
            int, ElasticHost
        ] = {}  # of each process ever started: its children may print
        self._gone: deque[int] = deque()  # ended processes whose outputs are open
        self._results = HeldResults()
        self._failed_results: list[tuple[int, int]] = []  # rank and process
        self._last_failure: RankOutput | None = None
        self._beacon: Beacon | None = None
        self._store: StoreClient | None = None
        self._discovery: ScriptDiscovery | None = None
        self._script_works = False  # it has succeeded once
        self._news: deque[Callable[[], None]] = deque()  # from the discovery thread
        self._finish: Finish | None = None
        self._control: ControlServer | None = None
        self._seen = -1  # driver revision that was reported to the status page
        self._tell_at = 0.0  # earliest time of the next report

    # ------------------------------------------------------------------ beginning

    def _open_outputs(self) -> None:
        """Do nothing: outputs are opened when processes start."""

    def _begin(self) -> None:
        try:
            self._rendezvous = Rendezvous(
                ",".join(self._spec.addresses), encrypt=self._spec.encrypt
            )
        except HorovodInternalError as error:
            self._finish = Finish(1, str(error))
            return
        receiver, self._news_sender = os.pipe()
        os.set_blocking(receiver, False)
        os.set_blocking(self._news_sender, False)
        self._selector.register(receiver, selectors.EVENT_READ, lambda: self._take_news(receiver))
        self._control = ControlServer(self._selector, self._on_request)
        if len(self._spec.addresses) > 1:
            self._beacon = Beacon(self._selector)
        if self._elastic.script is None:
            assert self._elastic.hosts is not None
            self._on_hosts(self._elastic.hosts)
        else:
            self._discovery = ScriptDiscovery(
                self._elastic.script,
                self._elastic.slots_per_host,
                self._on_hosts,
                lambda text: self._post(lambda: self._on_discovery_error(text)),
            )
            self._driver.check_deadlines(time.monotonic())  # starts --elastic-timeout

    def _over(self) -> bool:
        if self._finish is None and self._interrupted is None and not self._stopped:
            return False
        return self._fleet.ended

    def _post(self, news: Callable[[], None]) -> None:
        """Call a function from the event loop, on behalf of another thread."""
        self._news.append(news)
        with contextlib.suppress(BlockingIOError):
            os.write(self._news_sender, b".")

    def _take_news(self, receiver: int) -> None:
        os.read(receiver, 4096)
        while self._news:
            self._news.popleft()()

    def _on_hosts(self, hosts: Hosts) -> None:
        """Handle hosts from discovery. Looking up their names may take a while."""
        commands = {name: self._elastic.command_of(name) for name, _ in hosts}

        def take() -> None:
            self._script_works = True
            self._commands.update(commands)
            self._driver.discovered(hosts, time.monotonic())
            self._release_hosts({name for name, _ in hosts})

        self._post(take)

    def _on_discovery_error(self, text: str) -> None:
        """Continue with the known hosts; but a script that never succeeded ends the job."""
        if self._script_works:
            self._say(text)
        elif not self._stopped:
            self.finish(CANNOT_START, text)

    def _release_hosts(self, wanted: set[str]) -> None:
        for host in list(self._known.values()):
            if host.name not in wanted and not host.running and not host.waiting:
                self._forget(host)

    def _forget(self, host: ElasticHost) -> None:
        self._pulse.forget([host.index])
        if self._known.get(host.name) is host:
            del self._known[host.name]
        order = {"kind": "stop", "to": host.index, "signal": int(signal.SIGTERM), "grace": 0.0}
        if self._fleet.leads_to(host.index):
            self._fleet.send(order)

    # ------------------------------------------------------------------ the driver's requests

    def start(self, order: Start) -> None:
        """Start a process as soon as its host has a supervisor."""
        if self._stopped:
            return
        host = self._known.get(order.host)
        if host is None:
            host = ElasticHost(len(self._by_index), order.host, self._commands[order.host])
            self._by_index.append(host)
            self._known[host.name] = host
            host.waiting.append(order)
            spec = HostSpec(host.index, host.name, host.command)
            self._hosts.append(spec)
            # Deferred: the driver, which is running, must not be notified of a failure now.
            self._post(lambda: self._adopt(host, spec))
        elif host.address is None:
            host.waiting.append(order)
        else:
            self._start_on(host, order)

    def _adopt(self, host: ElasticHost, spec: HostSpec) -> None:
        if not self._stopped and self._known.get(host.name) is host:
            self._fleet.adopt([spec], self._spec.start_timeout_s)

    def stop(self, process: int, grace_s: float) -> None:
        """End a process."""
        host = self._places.get(process)
        if host is not None:
            order = {"kind": "end", "to": host.index, "rank": process, "grace": grace_s}
            self._fleet.send(order)
            return
        for host in self._known.values():
            if any(one.process == process for one in host.waiting):
                host.waiting = [one for one in host.waiting if one.process != process]
                self._post(lambda: self._ended(process, -9, "was not started"))

    def send(self, process: int, line: bytes) -> None:
        """Send a line to a process."""
        if (host := self._places.get(process)) is not None:
            self._fleet.send({"kind": "tell", "to": host.index, "rank": process}, line)

    def call_off(self, view: int, why: str) -> None:
        """Tell ranks that are starting in a view to give up."""
        assert self._rendezvous is not None
        value = why.encode(errors="replace")[:1000]
        try:
            if self._store is None:
                self._store = StoreClient(
                    self._spec.addresses[-1],
                    self._rendezvous.port,
                    self._rendezvous.secret,
                    _CALL_OFF_S,
                    encrypt=self._spec.encrypt,
                )
            for key in store_keys(view):
                with contextlib.suppress(ValueError):  # a rank has set the key
                    self._store.set(key, value)
        except (HorovodInternalError, ValueError) as error:  # their START_TIMEOUT ends the start
            self._log(f"cannot cancel the start of view {view}: {error}")
            self._store = None  # the next one gets another connection

    def say(self, text: str) -> None:
        """Print a message to the user."""
        self._say(text)

    def finish(self, status: int, why: str) -> None:
        """End the job."""
        self._finish = Finish(status, why)
        if not self._stopped:
            self._stop(signal.SIGTERM, self._spec.grace_s)

    # ------------------------------------------------------------------ hosts

    def _on_host(self, name: str, header: Header) -> None:
        host = self._by_index[header["host"]]
        kind = header["kind"]
        if kind == "hello":
            self._watching.host(name, "up")
            self._on_hello(host, header)
        elif kind == "reached":
            if host.address is None and header["address"] in self._spec.addresses:
                self._ready(host, header["address"])
        elif kind == "drain":
            self._driver.drain(host.name, time.monotonic())
        elif kind == "lost":
            self._lost(host, f"the supervisor {header['error']}")

    def _on_hello(self, host: ElasticHost, header: Header) -> None:
        if header["version"] != VERSION:
            raise ProtocolError(
                f"its supervisor uses protocol version {header['version']}, the launcher version "
                f"{VERSION}: install the same horoscale on all hosts"
            )
        self._log(f"{host.name}: supervisor is process {header['pid']} on {header['machine']}")
        if self._beacon is None:
            self._ready(host, self._spec.addresses[0])
            return
        host.reach_by = time.monotonic() + self._spec.start_timeout_s
        way = {"port": self._beacon.port, "token": self._beacon.token}
        addresses = list(self._spec.addresses)
        self._fleet.send({"kind": "probe", "to": host.index, "addresses": addresses, **way})

    def _ready(self, host: ElasticHost, address: str) -> None:
        assert self._rendezvous is not None
        host.address, host.reach_by = address, None
        self._pulse.watch(host.index, time.monotonic())
        bracketed = f"[{address}]" if ":" in address else address
        way = rendezvous_environment(
            f"{bracketed}:{self._rendezvous.port}", self._rendezvous.secret
        )
        task = self._spec.task or b""
        for begin in range(0, len(task), MAX_PAYLOAD_BYTES):
            piece = task[begin : begin + MAX_PAYLOAD_BYTES]
            self._fleet.send({"kind": "task", "to": host.index}, piece)
        self._fleet.send(
            {
                "kind": "job",
                "to": host.index,
                "command": list(self._spec.command),
                "directory": self._spec.directory,
                "environment": {**self._spec.environment, **way},
                "grace": self._spec.grace_s,
                "elastic": True,
                "watched": self._watching.wanted,
            }
        )
        waiting, host.waiting = host.waiting, []
        for order in waiting:
            self._start_on(host, order)

    def _start_on(self, host: ElasticHost, order: Start) -> None:
        process, role = order.process, order.role
        place = Place(
            rank=role.rank,
            size=role.size,
            local_rank=role.local_rank,
            local_size=role.local_size,
            cross_rank=role.cross_rank,
            cross_size=role.cross_size,
            hostname=host.name,
        )
        self._places[process] = self._owners[process] = host
        host.running.add(process)
        rank = role.rank if isinstance(role, View) else None
        self._watching.started(process, rank, host.name, order.slot)
        try:
            self._open_output(process, role.rank, role.size)
        except OSError as error:
            self._say(f"cannot write the output of a rank to a file: {error}")
        elastic = {"HOROVOD_ELASTIC": "1", "HOROSCALE_ELASTIC": "1"}
        environment = {**rank_environment(place), **elastic}
        self._fleet.send(
            {
                "kind": "start",
                "to": host.index,
                "ranks": [{"rank": process, "environment": environment}],
                "slots": role.local_size,
            }
        )
        self.send(process, first_line(order))
        what = f"rank {role.rank}" if isinstance(role, View) else "a standby"
        self._log(f"{host.name}: {what} in slot {order.slot}")

    def _open_output(self, process: int, rank: int, size: int) -> None:
        files = {}
        try:
            if self._spec.output_directory is not None:
                files = open_rank_files(self._spec.output_directory, process, process + 1)
        finally:
            for stream in ("stdout", "stderr"):
                self._outputs[process, stream] = RankOutput(
                    self._console,
                    rank,
                    stream,
                    timestamp=self._spec.timestamp,
                    file=files.get(stream),
                )

    def _lost(self, host: ElasticHost, why: str) -> None:
        if self._known.get(host.name) is not host or self._stopped:
            return
        del self._known[host.name]
        self._pulse.forget([host.index])
        self._say(f"{host.name}: {why}")
        self._watching.host(host.name, "lost")
        for process in host.running:
            self._watching.ended(process, -signal.SIGKILL, f"its host {why}", expected=False)
            self._places.pop(process, None)
            self._note_end(process)
        host.running.clear()
        self._driver.host_lost(host.name, why, time.monotonic())

    # ------------------------------------------------------------------ processes

    def _on_frame(self, header: Header, payload: bytes) -> None:
        kind = header["kind"]
        host = self._by_index[header["host"]]
        self._pulse.heard(host.index)
        if "rank" in header:
            process = header["rank"]
            if self._owners.get(process) is not host:
                raise ProtocolError(f"a {kind!r} about process {process}, which is elsewhere")
            if process not in self._places and kind != "output":
                return  # a late message from a host that was given up
        if kind == "output":
            self._on_process_output(header["rank"], header["stream"], payload)
        elif kind == "said":
            self._on_said(header["rank"], payload)
        elif kind == "report":
            self._watching.report(host.name, payload)
        elif kind == "exit":
            self._on_end(host, header["rank"], header["status"])
        elif kind == "refused":
            self._places.pop(header["rank"], None)
            host.running.discard(header["rank"])
            self._note_end(header["rank"])
            self._ended(header["rank"], 127, f"can't be started: {header['error']}")
        elif kind in ("stuck", "note"):
            super()._on_frame(header, payload)
        else:
            self._on_host(host.name, header)

    def _on_process_output(self, process: int, stream: str, data: bytes) -> None:
        if stream == "result":
            if process in self._places:
                try:
                    self._results.add(process, data)
                except ResultsError as error:
                    self._give_up(str(error))
            return
        self._watching.printed(process, stream, data)
        output = self._outputs[process, stream]
        rank = self._driver.rank_of(process)
        output.rank = output.rank if rank is None else rank
        self._feed(output, data)

    def _on_said(self, process: int, line: bytes) -> None:
        try:
            self._driver.said(process, line, time.monotonic())
        except MessageError as error:
            self._say(f"process {process}: {error}")
            self.stop(process, 0.0)

    def _note_end(self, process: int) -> None:
        """Close the outputs of processes that ended long ago: a job may start thousands."""
        self._gone.append(process)
        if len(self._gone) > _OPEN_OUTPUTS:
            old = self._gone.popleft()
            for stream in ("stdout", "stderr"):
                self._outputs[old, stream].finish()

    def _on_end(self, host: ElasticHost, process: int, status: int) -> None:
        del self._places[process]
        self._note_end(process)
        host.running.discard(process)
        rank = self._driver.rank_of(process)
        if rank is None:
            self._results.drop(process)
        elif status == 0:
            self._hand_in(rank, process)
        else:
            self._failed_results.append((rank, process))
        if status != 0 and not self._stopped:
            self._last_failure = self._outputs.get((process, "stderr"))
        hint = " (out of memory?)" if status == -signal.SIGKILL else ""
        told = self._stopped or self._driver.is_leaving(process)
        self._watching.ended(process, status, f"{_how(status)}{hint}", expected=told)
        self._ended(process, status, f"{_how(status)}{hint}")
        if host.name not in self._commands and not host.running:
            self._forget(host)

    def _ended(self, process: int, status: int, why: str) -> None:
        if not self._stopped:
            self._driver.ended(process, status, why, time.monotonic())

    def _hand_in(self, rank: int, process: int) -> None:
        for piece in self._results.take(process):
            self._on_result(rank, piece)

    def _on_request(self, request: dict[str, object]) -> dict[str, object]:
        """Answer `horoscalerun --status` and `--drain`."""
        if request.get("kind") == "status":
            return self._driver.status(time.monotonic())
        host = request.get("host")
        if request.get("kind") == "drain" and isinstance(host, str):
            if host not in self._commands:
                return {"error": f"the job has no host {host!r}: {', '.join(self._commands)}"}
            self._driver.drain(host, time.monotonic())
            return {}
        return {"error": "an unknown request"}

    # ------------------------------------------------------------------ time, and the end

    def _timeout(self) -> float | None:
        timeout = super()._timeout()
        if self._stopped:
            return timeout
        now = time.monotonic()
        times = [one.reach_by for one in self._known.values() if one.reach_by is not None]
        deadlines = [self._driver.deadline(now)]
        if self._hears_hosts():
            deadlines.append(self._pulse.deadline)
        times += [one for one in deadlines if one is not None]
        if self._has_news():
            times.append(self._tell_at)
        waits = [max(0.0, one - now) for one in times]
        return min([*waits, *([] if timeout is None else [timeout])], default=None)

    def _check_deadlines(self) -> None:
        super()._check_deadlines()
        if self._has_news():
            self._tell_membership()
        if self._stopped or self._finish is not None:
            return
        now = time.monotonic()
        for host in list(self._known.values()):
            if host.reach_by is not None and now >= host.reach_by:
                self._lost(host, "cannot reach any address of this machine: check for a firewall")
                self._forget(host)
        if self._hears_hosts():
            self._check_silence(now)
        self._driver.check_deadlines(now)

    def _has_news(self) -> bool:
        return self._watching.wanted and self._seen != self._driver.revision

    def _tell_membership(self) -> None:
        """Report all processes to the status page, using at most a tenth of the time."""
        began = time.monotonic()
        if began < self._tell_at:
            return
        self._seen = self._driver.revision
        self._watching.membership(*self._driver.parts())
        ended = time.monotonic()
        self._tell_at = ended + _TELLING_PAUSE * (ended - began)

    def _hears_hosts(self) -> bool:
        """Return whether hosts' answers are read: not while the ranks' output is blocked."""
        return not self._console.full or self._discarding

    def _check_silence(self, now: float) -> None:
        ask, silent = self._pulse.check(now)
        for index in ask:
            self._fleet.send({"kind": "ping", "to": index})
        for index in silent:
            seconds = self._elastic.network_timeout_s
            why = f"has not answered for {seconds:g} s (NETWORK_TIMEOUT_SECONDS)"
            self._lost(self._by_index[index], why)
            self._fleet.give_up(index)

    def _stop(self, signum: int, grace_s: float) -> None:
        if self._discovery is not None:
            self._discovery.close()
        super()._stop(signum, grace_s)

    def _conclude(self) -> int:
        for closed in (self._control, self._beacon, self._store):
            if closed is not None:
                closed.close()
        if self._interrupted is not None or self._finish is None:
            return super()._conclude()
        if self._finish.status == 0:
            if self._finish.why:
                self._say(self._finish.why)
            return 0
        for rank, process in self._failed_results:
            self._hand_in(rank, process)
        last = self._last_failure
        words = None if last is None else (last.rank, last.last_lines)
        self.report = elastic_failure_report(self._finish.why, words)
        return self._finish.status


def _how(status: int) -> str:
    return processes.status_text(status) if status else "ended"
