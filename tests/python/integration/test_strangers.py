"""Strangers at the ports of a job on two hosts: rejected, logged, and harmless to the job."""

from __future__ import annotations

import hashlib
import hmac
import os
import pickle
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

import pytest
from faults.harness import build_shim
from launcher_process import PATIENCE_S, environment
from support import namespaces
from support.namespaces import NetworkHosts
from support.sockets import LISTEN, local_ports

from horoscale._core import StoreServer

pytestmark = pytest.mark.skipif(namespaces.why_not() is not None, reason=str(namespaces.why_not()))

PROGRAM = """
import numpy as np
import horoscale.numpy as hvd

hvd.init()
print(hvd.allreduce(np.arange(1000) + hvd.rank(), op=hvd.Sum).tolist() == list(range(1, 2001, 2)))
"""
FLOOD = 10_000
PREFIX = "init0/"  # of the keys in the store
HOW = b"\x01"  # the following bytes are authenticated
HELLO = b"HOROAUTH" + (2).to_bytes(4, "little") + HOW
HELLO_BYTES = len(HELLO) + 32

Stranger = Callable[[socket.socket], None]


class Bomb:
    """Unpickling it creates a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return os.mkdir, (str(self.path),)


def proof(secret: str, context: str, own: bytes, theirs: bytes) -> bytes:
    message = b"client" + HOW + own + theirs + context.encode()
    return hmac.new(secret.encode(), message, hashlib.sha256).digest()


def receive(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size and (piece := connection.recv(size - len(data))):
        data += piece
    return data


def with_secret(secret: str, context: str) -> Stranger:
    """A correct handshake."""

    def intrude(connection: socket.socket) -> None:
        own = secrets.token_bytes(32)
        connection.sendall(HELLO + own)
        theirs = receive(connection, HELLO_BYTES)[len(HELLO) :]
        connection.sendall(proof(secret, context, own, theirs))
        assert receive(connection, 1) == b"\0", "the verdict"

    return intrude


def replay(secret: str, context: str) -> Stranger:
    """A recorded message of a rank of this job with another nonce; everything else is correct."""

    def intrude(connection: socket.socket) -> None:
        own = secrets.token_bytes(32)
        recorded = HELLO + own + proof(secret, context, own, secrets.token_bytes(32))
        connection.sendall(recorded)
        answer = receive(connection, HELLO_BYTES + 1)
        assert answer[HELLO_BYTES:] == b"\0", "the verdict"

    return intrude


def saying(data: bytes) -> Stranger:
    return lambda connection: connection.sendall(data)


def strangers(secret: str, context: str, folder: Path) -> dict[str, Stranger]:
    return {
        "no secret": with_secret("", context),
        "wrong secret": with_secret("hunter2", context),
        "another job's secret": with_secret(secrets.token_hex(32), context),
        "another purpose": with_secret(secret, "link of another rank"),
        "replay": replay(secret, context),
        "4 GiB": saying(b"\xff" * HELLO_BYTES),
        "4 GiB after a greeting": saying(HELLO + b"\xff" * 300),
        "pickle": saying(pickle.dumps(Bomb(folder / "harm")).ljust(HELLO_BYTES, b".")),
        "half a greeting": saying(HELLO),
    }


class Job:
    """Two ranks on two hosts; the second makes its links when the strangers have gone."""

    def __init__(self, hosts: NetworkHosts, stack: ExitStack, folder: Path, shim: Path) -> None:
        self.hosts = hosts
        self.shim = shim
        self.stack = stack
        self.folder = folder
        self.secret = secrets.token_hex(32)
        self.address = hosts.addresses[0]
        self.store = hosts.call(0, lambda: StoreServer(self.address, 0, self.secret))
        stack.callback(self.store.close)
        self.ranks = [self.start(0)]

    def start(self, rank: int, **more: str) -> subprocess.Popen[str]:
        variables = more | {
            "HOROSCALE_RANK": str(rank),
            "HOROSCALE_SIZE": "2",
            "HOROSCALE_RENDEZVOUS": f"{self.address}:{self.store.port}",
            "HOROSCALE_RENDEZVOUS_SERVED": "1",
            "HOROSCALE_SECRET": self.secret,
            "HOROSCALE_HOSTNAME": self.hosts.names[rank],
        }
        process = self.stack.enter_context(
            subprocess.Popen(
                self.hosts.command(rank, sys.executable, "-c", PROGRAM),
                cwd=self.folder,
                env=environment(variables),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        self.stack.callback(process.kill)
        return process

    def data_port(self) -> int:
        """The port on which rank 0 listens for other hosts' links, while it waits for rank 1."""
        stopped = self.shim.with_name("stopped")  # before it connects its link
        variables = {"LD_PRELOAD": str(self.shim), "FAULT_FILE": str(stopped)}
        self.ranks.append(self.start(1, FAULT_CALL="link", FAULT_ACTION="stop", **variables))
        deadline = time.monotonic() + PATIENCE_S
        while not stopped.exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        (port,) = local_ports(self.ranks[0].pid, LISTEN) - {self.store.port}
        return port

    def finish(self) -> str:
        """Finish the job; return what its ranks logged."""
        self.ranks[1].send_signal(signal.SIGCONT)
        log = ""
        for rank in self.ranks:
            out, err = rank.communicate(timeout=PATIENCE_S)
            assert out == "True\n", err
            log += err
        return log


@pytest.fixture
def job(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    shim = build_shim(tmp_path_factory.mktemp("shim"))
    with NetworkHosts(3) as hosts, ExitStack() as stack:
        yield Job(hosts, stack, tmp_path, shim)


def visit(job: Job, port: int, context: str) -> dict[str, int]:
    """Run every stranger; return their names and ports."""
    ports = {}
    for name, intrude in strangers(job.secret, context, job.folder).items():
        with socket.create_connection((job.address, port), PATIENCE_S) as connection:
            ports[name] = connection.getsockname()[1]
            with suppress(ConnectionError):  # once the peer has recognized it
                intrude(connection)
    return ports


def flood(job: Job, port: int) -> None:
    """Connections that send nothing."""
    for _ in range(FLOOD):
        with socket.create_connection((job.address, port), PATIENCE_S):
            pass


@pytest.mark.parametrize("target", ["rendezvous", "data"])
def test_strangers(job: Job, target: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Strangers that send data are logged with their address; they learn nothing and do no harm."""
    data_port = job.data_port()
    port, context = {
        "rendezvous": (job.store.port, "store"),
        "data": (data_port, f"tcp link to rank 0 of {PREFIX}"),
    }[target]
    connect = partial(socket.create_connection, (job.address, port))
    with job.hosts.call(2, connect) as slow:
        slow.sendall(HELLO[:1])
        ports = job.hosts.call(2, partial(visit, job, port, context))
        slow.sendall(HELLO[1:2])
        job.hosts.call(1, partial(flood, job, port))  # from here on: no port is reused
        log = job.finish() + capfd.readouterr().err
    for name, number in ports.items():
        address = rf"\b{re.escape(job.hosts.addresses[2])}\]?:{number}\b"
        lines = [line for line in log.splitlines() if re.search(address, line)]
        assert len(lines) == 1, (name, number, log[-3000:])
    assert len(log.splitlines()) < FLOOD / 10
    assert job.secret not in log
    assert "hunter2" not in log
    assert os.listdir(job.folder) == []
