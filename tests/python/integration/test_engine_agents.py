"""Jobs through agents, which are processes of the test here."""

from __future__ import annotations

import asyncio
import io
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from support.ranks import clean_environment

from horoscale.engines.agents import job
from horoscale.engines.agents.agent import Seat
from horoscale.engines.agents.driver import Agents, AgentsError
from horoscale.engines.agents.link import connect, tls
from horoscale.runner.api import RankError
from horoscale.runner.protocol import Header, encode

AGENT = """
import pickle, sys
from horoscale.engines.agents.agent import AgentError, serve
invitation, seat = pickle.load(sys.stdin.buffer)
try:
    serve(invitation, seat)
except AgentError as error:
    sys.exit(str(error))
"""
WAIT_S = 30.0


class Cluster:
    """Agents on two hosts, and the driver."""

    def __init__(self) -> None:
        self.agents = Agents(("127.0.0.1",))
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, *seats: Seat) -> None:
        for seat in seats:
            process = subprocess.Popen(
                [sys.executable, "-c", AGENT],
                env=clean_environment(),
                stdin=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            assert process.stdin is not None
            with process.stdin as pipe:
                pickle.dump((self.agents.invitation, seat), pipe)
            self.processes.append(process)
        self.agents.wait(len(self.processes), WAIT_S, lambda: None)

    def ends(self) -> list[int]:
        return [process.wait(WAIT_S) for process in self.processes]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    cluster = Cluster()
    yield cluster
    cluster.agents.close()
    for process in cluster.processes:
        process.kill()
        process.wait(WAIT_S)
        assert process.stderr is not None
        process.stderr.close()


def four() -> list[Seat]:
    return [Seat(host, index) for index, host in enumerate(("one", "one", "two", "two"))]


def where() -> tuple[int, int, int, str]:
    import horoscale.numpy as hvd

    hvd.init()
    print(f"I am {hvd.rank()}")
    return hvd.rank(), hvd.local_rank(), hvd.size(), os.environ["HOROSCALE_HOSTNAME"]


def test_a_job_on_the_hosts_of_agents(cluster: Cluster) -> None:
    cluster.start(*four())
    assert cluster.agents.hosts() == [("one", 2), ("two", 2)]
    said = io.StringIO()
    results = job.run(cluster.agents, 4, job.Call(where, stdout=said))
    assert results == [(0, 0, 4, "one"), (1, 1, 4, "one"), (2, 0, 4, "two"), (3, 1, 4, "two")]
    assert sorted(said.getvalue().split("\n")[:-1]) == [f"[{i}]<stdout>:I am {i}" for i in range(4)]
    # Another job runs on the same agents.
    assert len(job.run(cluster.agents, 2, job.Call(where, stdout=io.StringIO()))) == 2
    cluster.agents.close()
    assert cluster.ends() == [0, 0, 0, 0]


def test_ranks_get_what_the_call_says(cluster: Cluster) -> None:
    cluster.start(Seat("one", 0, devices=("3",)), Seat("one", 1, devices=("1",)))

    def variables() -> list[str]:
        return [os.environ[name] for name in ("CUDA_VISIBLE_DEVICES", "OF_THE_CALL")]

    call = job.Call(variables, env={"OF_THE_CALL": "a value", "CUDA_VISIBLE_DEVICES": "1,3"})
    assert job.run(cluster.agents, 2, call) == [["1,3", "a value"]] * 2
    call = job.Call(variables, env={"OF_THE_CALL": "another"})
    assert job.run(cluster.agents, 2, call) == [["1,3", "another"]] * 2


def test_the_launcher_gets_the_networks_of_the_call(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[str] = []

    def run(*call: object, options: list[str], **more: object) -> list[object]:
        given.extend(options)
        return []

    monkeypatch.setattr(job.horoscale, "run", run)
    job.run(cluster.agents, 1, job.Call(where, nics=["eth1", "eth2"], options=["--verbose"]))
    assert given[given.index("--network-interface") + 1] == "eth1,eth2"
    assert given[-1] == "--verbose"
    given.clear()
    job.run(cluster.agents, 1, job.Call(where))
    assert "--network-interface" not in given


def test_what_a_rank_raises_is_raised(cluster: Cluster) -> None:
    cluster.start(*four())

    def fail() -> None:
        import horoscale.numpy as hvd

        hvd.init()
        if hvd.rank() == 3:
            raise KeyError("train.csv")
        hvd.barrier()

    with pytest.raises(KeyError, match=r"train\.csv") as raised:
        job.run(cluster.agents, 4, job.Call(fail, stderr=io.StringIO()))
    assert isinstance(raised.value.__cause__, RankError)
    cluster.agents.close("rank 3 failed")
    assert cluster.ends() == [1, 1, 1, 1]


def test_an_agent_that_is_killed_takes_its_host_along(cluster: Cluster) -> None:
    cluster.start(*four())
    victim = cluster.processes[2].pid  # the first agent of host two: its child is the supervisor

    def kill_the_agent() -> None:
        import horoscale.numpy as hvd

        hvd.init()
        hvd.barrier()
        if hvd.rank() == 0:
            os.kill(victim, signal.SIGKILL)
        for _ in range(10_000):
            hvd.barrier()
            time.sleep(0.001)

    with pytest.raises(Exception, match=r"two|ranks? [23]"):
        job.run(cluster.agents, 4, job.Call(kill_the_agent, stderr=io.StringIO()))


def test_whoever_has_no_secret_is_turned_away(cluster: Cluster) -> None:
    stranger = replace(cluster.agents.invitation, secret="0" * 64)
    process = subprocess.run(
        [sys.executable, "-c", AGENT],
        env=clean_environment(),
        input=pickle.dumps((stranger, Seat("one", 0))),
        capture_output=True,
        timeout=WAIT_S,
        check=False,
    )
    assert process.returncode == 1
    assert b"has not proved that it belongs to the job" in process.stderr
    with pytest.raises(AgentsError, match="0 of 1 tasks have started within 0 s"):
        cluster.agents.wait(1, 0, lambda: None)


def test_a_proof_that_has_no_bytes_is_refused_as_any_other(cluster: Cluster) -> None:
    async def show() -> bytes:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", cluster.agents.invitation.port, ssl=tls(server=False)
        )
        try:
            writer.write(encode({"kind": "proof", "proof": "\ud800"}))
            return await asyncio.wait_for(reader.read(), WAIT_S)
        finally:
            writer.close()

    assert asyncio.run(show()) == b""
    assert not cluster.agents._links


@pytest.mark.parametrize(
    "header",
    [{"kind": "channel", "id": 7}, {"kind": "channel"}, {"kind": "agent"}, {"kind": "other"}],
    ids=["too late", "no id", "no host", "unknown"],
)
def test_a_link_that_nobody_takes_is_closed(cluster: Cluster, header: Header) -> None:
    late = cluster.agents._loop.create_future()
    late.cancel()  # all waiters have given up
    cluster.agents._channels[7] = late

    async def send() -> object:
        invitation = cluster.agents.invitation
        link = await connect("127.0.0.1", invitation.port, invitation.secret, WAIT_S)
        try:
            await link.send(header)
            return await asyncio.wait_for(link.receive(), WAIT_S)
        finally:
            link.close()

    assert asyncio.run(send()) is None
    assert not cluster.agents._links


def test_a_machine_that_is_gone_without_a_word_is_noticed(cluster: Cluster) -> None:
    cluster.start(Seat("one", 0))
    [agent] = cluster.agents.wait(1, WAIT_S, lambda: None)
    connection = agent.link._writer.get_extra_info("socket")
    assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    idle = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)
    between = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL)
    assert idle + between * connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT) <= 40


def test_agents_that_differ_are_refused(cluster: Cluster) -> None:
    script = "import horoscale.engines.agents.agent as agent; agent.PACKAGE_ROOT = '/elsewhere'\n"
    process = subprocess.run(
        [sys.executable, "-c", script + AGENT],
        env=clean_environment(),
        input=pickle.dumps((cluster.agents.invitation, Seat("one", 0))),
        capture_output=True,
        timeout=WAIT_S,
        check=False,
    )
    assert b"has horoscale in /elsewhere, this process in" in process.stderr
    with pytest.raises(AgentsError, match="install it at the same place on all machines"):
        cluster.agents.wait(1, WAIT_S, lambda: None)


def test_a_shell_gives_the_commands_output_and_status(cluster: Cluster) -> None:
    """Like ssh, because mpirun starts its daemons this way."""
    cluster.start(Seat("one", 0))
    shell = cluster.agents.shell_file()
    ended = subprocess.run(
        [shell, "one", "cat;", "echo", "'a  b'", ">&2;", "exit", "3"],
        input=b"some input",
        capture_output=True,
        timeout=WAIT_S,
        check=False,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (3, b"some input", b"a  b\n")
    ended = subprocess.run(
        [shell, "nowhere", "true"], capture_output=True, timeout=WAIT_S, check=False
    )
    assert (ended.returncode, ended.stderr) == (255, b"no task of the engine is there any more\n")
    listed = subprocess.run([shell], capture_output=True, timeout=WAIT_S, check=True)
    assert listed.stdout == b"one:1\n"
