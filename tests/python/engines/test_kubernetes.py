"""An elastic job on pods: processes stand in for the pods, and a test server for the API.

It needs no cluster. docs/kubernetes.md describes what a real API adds.
"""

from __future__ import annotations

import importlib.util
import json
import re
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from textwrap import dedent
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml
from support.ranks import clean_environment

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("kubernetes") is None, reason="needs Kubernetes' client"
    ),
    pytest.mark.timeout(150),
]
SELECTOR = "app=digits"
WAIT_S = 60.0


class FakeApi:
    """Answers the launcher's only request, as the API server does."""

    def __init__(self) -> None:
        self.pods: dict[str, dict[str, Any]] = {}
        self.asked: list[tuple[str, dict[str, list[str]]]] = []
        self.forbidden = False
        api = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                address = urlsplit(self.path)
                api.asked.append((address.path, parse_qs(address.query)))
                items = [] if api.forbidden else list(api.pods.values())
                answer: dict[str, Any] = {"apiVersion": "v1", "kind": "PodList", "items": items}
                if api.forbidden:
                    answer = {"apiVersion": "v1", "kind": "Status", "reason": "Forbidden"}
                body = json.dumps(answer | {"metadata": {}}).encode()
                self.send_response(403 if api.forbidden else 200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def set(self, name: str, *, ready: bool = True, going: bool = False) -> None:
        """A pod as the API describes it."""
        metadata = {"name": name, "labels": {"app": "digits"}}
        if going:
            metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
        self.pods[name] = {
            "metadata": metadata,
            "spec": {"containers": [{"name": "worker"}]},
            "status": {"phase": "Running", "conditions": conditions},
        }

    def kubeconfig(self, folder: Path) -> Path:
        url = f"http://127.0.0.1:{self.server.server_address[1]}"
        path = folder / "kubeconfig"
        path.write_text(
            yaml.safe_dump(
                {
                    "current-context": "fake",
                    "contexts": [
                        {
                            "name": "fake",
                            "context": {"cluster": "fake", "user": "me", "namespace": "team"},
                        }
                    ],
                    "clusters": [{"name": "fake", "cluster": {"server": url}}],
                    "users": [{"name": "me", "user": {}}],
                }
            )
        )
        return path


@pytest.fixture
def api() -> Iterator[FakeApi]:
    api = FakeApi()
    yield api
    api.server.shutdown()
    api.server.server_close()


class Job:
    """A launcher and workers, each of which is a process."""

    def __init__(self, api: FakeApi, folder: Path) -> None:
        self.folder = folder
        secret = folder / "secret"
        secret.touch(0o600)
        secret.write_text(secrets.token_hex(32))
        self.environment = clean_environment() | {
            "HOROSCALE_SECRET_FILE": str(secret),
            "KUBECONFIG": str(api.kubeconfig(folder)),
            "PYTHONUNBUFFERED": "1",
        }
        self.processes: list[subprocess.Popen[str]] = []
        self.output = folder / "output"

    def command(
        self, *words: str, host: str = "", log: Path | None = None
    ) -> subprocess.Popen[str]:
        with open(log or self.folder / f"log-{len(self.processes)}", "w") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "horoscale.kubernetes", *words],
                env=self.environment | {"HOSTNAME": host},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                text=True,
            )
        self.processes.append(process)
        return process

    def launch(self, port: int, script: Path, *options: str) -> subprocess.Popen[str]:
        words = ["launch", "--selector", SELECTOR, "--port", str(port), "--", *options]
        return self.command(*words, sys.executable, str(script), log=self.output)

    def work(self, name: str, port: int) -> subprocess.Popen[str]:
        return self.command("work", f"127.0.0.1:{port}", host=name)

    def wait_for(self, what: str, check: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not check():
            logs = "\n".join(f"{p.name}: {p.read_text()}" for p in self.folder.glob("log-*"))
            assert time.monotonic() < deadline, f"no {what}: {self.output.read_text()}\n{logs}"
            time.sleep(0.05)

    def end(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait(10)


@pytest.fixture
def job(api: FakeApi, tmp_path: Path) -> Iterator[Job]:
    job = Job(api, tmp_path)
    yield job
    job.end()


def free_port() -> int:
    import socket

    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        return int(holder.getsockname()[1])


SCRIPT = dedent(
    """
    import os, pathlib, sys
    import numpy as np
    import horoscale.elastic as elastic
    import horoscale.numpy as hvd

    host = os.environ["HOROSCALE_HOSTNAME"]
    folder = pathlib.Path(sys.argv[0]).parent
    hvd.init()
    state = elastic.ObjectState(steps=0)

    @elastic.run
    def train(state):
        while not (folder / "enough").exists():
            hvd.allreduce(np.ones(1), name="loss")
            state.steps += 1
            state.commit()
            hosts = sorted(set(hvd.allgather_object(host, name="hosts")))
            if hvd.rank() == 0:
                (folder / "new").write_text(f"{hvd.size()} on {','.join(hosts)}")
                os.replace(folder / "new", folder / "where")
            enough = hvd.allgather_object((folder / "enough").exists(), name="enough")
            if any(enough):
                return

    train(state)
    """
)


def test_ranks_follow_the_pods(api: FakeApi, job: Job) -> None:
    script = job.folder / "train.py"
    script.write_text(SCRIPT)
    where = job.folder / "where"
    port = free_port()
    for name in ("one", "two"):
        api.set(name)
        job.work(name, port)  # before the launcher has started
    launcher = job.launch(port, script, "-np", "2", "--min-np", "1", "--elastic-timeout", "60")
    job.wait_for("start", lambda: where.exists() and where.read_text() == "2 on one,two")

    third = job.work("three", port)
    api.set("three", ready=False)
    asked = len(api.asked)
    job.wait_for("answers", lambda: len(api.asked) > asked + 2)
    assert where.read_text() == "2 on one,two"  # it is not ready yet
    api.set("three")
    job.wait_for("growth", lambda: where.read_text() == "3 on one,three,two")

    api.set("three", going=True)  # like kubectl drain: the API knows first, then SIGTERM follows
    third.send_signal(signal.SIGTERM)
    job.wait_for("drain", lambda: where.read_text() == "2 on one,two")
    assert third.wait(30) == 0

    (job.folder / "enough").touch()
    assert launcher.wait(WAIT_S) == 0, job.output.read_text()
    assert [process.wait(30) for process in job.processes[:2]] == [0, 0]
    path, query = api.asked[0]
    assert path == "/api/v1/namespaces/team/pods"
    assert query["labelSelector"] == [SELECTOR]


def test_what_the_api_refuses_is_told_at_once(api: FakeApi, job: Job) -> None:
    api.forbidden = True
    launcher = job.launch(free_port(), job.folder / "train.py", "-np", "1")
    assert launcher.wait(WAIT_S) == 1
    said = job.output.read_text()
    assert "pods of app=digits in team: 403 Forbidden; the service account needs the right" in said


def test_a_worker_without_a_launcher_gives_up(job: Job) -> None:
    worker = job.command("work", f"127.0.0.1:{free_port()}", "--wait", "0", host="one")
    assert worker.wait(WAIT_S) == 1
    assert "does not reach the driver at port" in (job.folder / "log-0").read_text()


def test_a_worker_that_waits_for_its_launcher_ends_with_its_pod(job: Job) -> None:
    job.output.touch()
    worker = job.command("work", f"127.0.0.1:{free_port()}", host="one")

    def handles_sigterm() -> bool:
        """As the first process of a container must do."""
        status = Path(f"/proc/{worker.pid}/status").read_text()
        return bool(int(re.search(r"SigCgt:\s+(\w+)", status)[1], 16) >> (signal.SIGTERM - 1) & 1)

    job.wait_for("handler of SIGTERM", handles_sigterm)
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(30) == 128 + signal.SIGTERM


def test_a_worker_with_another_secret_is_not_let_in(api: FakeApi, job: Job) -> None:
    port = free_port()
    launcher = job.launch(port, job.folder / "train.py", "-np", "1", "--elastic-timeout", "60")
    job.wait_for("answers", lambda: len(api.asked) > 1)
    other = job.folder / "other"
    other.touch(0o600)
    other.write_text(secrets.token_hex(32))
    job.environment["HOROSCALE_SECRET_FILE"] = str(other)
    worker = job.command("work", f"127.0.0.1:{port}", "--wait", "0", host="stranger")
    assert worker.wait(WAIT_S) == 1
    assert "has not proved that it belongs to the job" in (job.folder / "log-1").read_text()
    assert launcher.poll() is None
