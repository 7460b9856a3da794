"""The JSON that horoscalerun --status-port serves."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from launcher_process import PATIENCE_S, run_launcher
from support.watched_launcher import TOKEN, WatchedLauncher, played_hosts, states

import horoscale.watch

RANK = Path(__file__).with_name("watched_rank.py")


def program(*arguments: object) -> list[object]:
    return [sys.executable, RANK, *arguments]


def test_a_stalled_rank_is_late_and_the_others_wait_for_it(tmp_path: Path) -> None:
    soon = {"HOROSCALE_STALL_CHECK_TIME_SECONDS": "2"}
    with WatchedLauncher("-np", 3, *program(tmp_path), env=soon) as job:
        assert job.url.startswith("http://127.0.0.1:")
        told = job.wait_until(lambda told: told["job"]["steps_per_second"] > 0)
        assert told["job"]["command"] == f"{os.path.basename(sys.executable)} {RANK.name}"
        assert (told["job"]["size"], told["job"]["elastic"]) == (3, False)
        (tmp_path / "stall").touch()
        told = job.wait_until(lambda told: states(told) == {0: "waiting", 1: "waiting", 2: "late"})
        (one,) = told["sets"]
        assert (one["waits_for"], one["waiting"], one["missing"]) == ("gradient.1", "0-1", "2")
        told = job.wait_until(
            lambda told: any(event["kind"] == "stall" for event in told["events"])
        )
        stall = next(event for event in told["events"] if event["kind"] == "stall")
        assert "waited for" in stall["text"]
        assert "for rank 2" in stall["text"]
        (tmp_path / "stall").unlink()
        told = job.wait_until(lambda told: set(states(told).values()) == {"running"})
        step = told["ranks"][0]["step"]
        assert 0 < step["computing_seconds"] <= step["seconds"]
        assert job.status("ranks")[1]["counters"]["step"] > 0
        (tmp_path / "end").touch()
        assert job.finish()[0] == 0


def test_a_rank_that_dies_is_replaced_and_the_recovery_is_told(tmp_path: Path) -> None:
    with WatchedLauncher("-np", 3, "--min-np", 2, *program(tmp_path)) as job:
        job.wait_until(lambda told: told["job"]["steps_per_second"] > 0)
        os.kill(int((tmp_path / "pid.1").read_text()), signal.SIGKILL)
        told = job.wait_until(
            lambda told: any(one["over"] for one in told["recoveries"]) and told["job"]["size"] == 3
        )
        lost = told["recoveries"][0]
        assert [one["rank"] for one in lost["lost"]] == [1]
        assert "SIGKILL" in lost["lost"][0]["how"]
        phases = [one["what"] for one in lost["phases"]]
        assert phases[0] == "ranks were lost"
        assert phases[-3:] == [
            "they have a new view",
            "all ranks of the view have met",
            "the first step",
        ]
        times = [one["seconds"] for one in lost["phases"]]
        assert times == sorted(times)
        assert told["job"]["view"] >= 2
        kinds = {one["kind"] for one in told["events"]}
        assert {"lost", "view", "recovery"} <= kinds
        (tmp_path / "end").touch()
        assert job.finish()[0] == 0


def test_ranks_of_several_hosts_and_the_links_between_them(tmp_path: Path) -> None:
    flags = played_hosts(tmp_path, "node1:2,node2:1")
    with WatchedLauncher("-np", 3, *flags, *program(tmp_path)) as job:
        told = job.wait_until(
            lambda told: (
                {("node1", "node2"), ("node2", "node1"), ("node1", "node1")}
                <= {
                    (one["from"], one["to"]) for one in told["links"] if one["bytes_per_second"] > 0
                }
            )
        )
        assert [one["host"] for one in told["ranks"]] == ["node1", "node1", "node2"]
        assert told["job"]["hosts"] == {"node1": "up", "node2": "up"}
        (tmp_path / "end").touch()
        assert job.finish()[0] == 0


MISMATCH = """
import time, numpy as np, horoscale.numpy as hvd
hvd.init()
try:
    hvd.allreduce(np.ones(2 + hvd.rank()), name="unequal")
except hvd.MismatchError:
    pass
print("caught", flush=True)
open({pipe!r}).read()
"""


def test_a_mismatch_that_the_script_survives_is_told(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    command = [sys.executable, "-c", MISMATCH.format(pipe=str(pipe))]
    with WatchedLauncher("-np", 2, *command) as job:
        told = job.wait_until(
            lambda told: any(
                one["kind"] == "mismatch" and one["ranks"] == "0-1" for one in told["events"]
            )
        )
        (one,) = (one for one in told["events"] if one["kind"] == "mismatch")
        assert "unequal" in one["text"]
        assert one["severity"] == "error"


COMPRESSED = """
import numpy as np, horoscale.numpy as hvd
hvd.init()
values = np.linspace(-1, 1, 10_000, dtype=np.float32)
for compression in (hvd.Compression.int8, hvd.Compression.adaptive(0.1)):
    hvd.allreduce(values, name=str(compression), compression=compression)
open({pipe!r}).read()
"""


def test_what_is_compressed_between_hosts_is_told(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    hosts = played_hosts(tmp_path, "node1:1,node2:1")
    command = [sys.executable, "-c", COMPRESSED.format(pipe=str(pipe))]
    with WatchedLauncher("-np", 2, *hosts, *command) as job:
        told = job.wait_until(
            lambda told: sum(one["kind"] == "compression" for one in told["events"]) >= 2
        )
        texts = [one["text"] for one in told["events"] if one["kind"] == "compression"]
        assert "tensors are sent as int8 between hosts" in texts
        assert any("adaptive compression in process set 0, tensors by" in one for one in texts)
        used = told["job"]["encodings"]["int8"]
        assert 3 < used["bytes_before"] / used["bytes_after"] < 4
        assert 0 < used["relative_error"] < 0.02


# ---------------------------------------------------------------- the server


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("served")
    with WatchedLauncher("-np", 1, *program(folder, "--password", "geheim")) as job:
        job.wait_until(lambda told: told["job"]["steps"] > 0)
        yield job


def test_who_has_no_token_gets_nothing_of_the_job(served: WatchedLauncher) -> None:
    for path in ("", "metrics", "api/v1/status", "api/v1/ranks", "anything"):
        for token in (None, "wrong", "ä"):
            if token == "ä":
                code, body, _ = served.get(f"{path}?token=%C3%A4", token=None)
            else:
                code, body, _ = served.get(path, token=token)
            assert code == 401, (path, token)
            assert b"rank" not in body
    assert served.get("healthz", token=None)[:2] == (200, b"ok\n")
    assert served.get("page.js", token=None)[0] == 200


def test_the_token_may_be_in_the_url(served: WatchedLauncher) -> None:
    token = served.url.partition("?token=")[2]
    assert served.get(f"?token={token}", token=None)[0] == 200
    assert served.get(f"api/v1/job?token={token}", token=None)[0] == 200


def test_nothing_secret_is_served(served: WatchedLauncher) -> None:
    token = served.url.partition("?token=")[2]
    body = served.get("api/v1/status")[1].decode()
    for secret in (token, "geheim", "HOROSCALE_SECRET"):
        assert secret not in body


def test_other_hosts_names_are_refused(served: WatchedLauncher) -> None:
    for host in ("evil.example", "127.0.0.1.evil.example", "", "localhost.evil:80", "[::1"):
        assert served.get("api/v1/job", headers={"Host": host})[0] == 421, host
    for host in ("localhost", "localhost:1", "127.0.0.1:5", "[::1]:99", socket.gethostname()):
        assert served.get("api/v1/job", headers={"Host": host})[0] == 200, host


def test_browsers_are_told_to_be_strict(served: WatchedLauncher) -> None:
    _, _, headers = served.get("")
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Cache-Control"] == "no-store"


def test_the_page_is_served_as_it_is_written(served: WatchedLauncher) -> None:
    folder = Path(horoscale.watch.__file__).parent / "page"
    names = {file.name for file in folder.iterdir()}
    assert names == {"index.html", "page.css", "page.js", "icon.svg"}
    for name in names - {"index.html"}:
        assert served.get(name)[1] == (folder / name).read_bytes()
    assert served.get("")[1] == (folder / "index.html").read_bytes()


def test_the_page_asks_for_nothing_from_elsewhere(served: WatchedLauncher) -> None:
    for name in ("", "page.css", "page.js"):
        body = served.get(name)[1].decode()
        assert "http://" not in body.replace("http://www.w3.org/2000/svg", "")
        assert "https://" not in body


def test_wrong_requests_are_refused(served: WatchedLauncher) -> None:
    assert served.get("api/v1/secrets")[0] == 404
    assert served.get("page.py")[0] == 404
    assert served.get("../server.py")[0] == 404
    assert served.get("api/v1/events?since=x")[0] == 400
    place = urlsplit(served.url)
    connection = http.client.HTTPConnection(place.hostname, place.port, timeout=PATIENCE_S)
    connection.request("POST", "/api/v1/job", body="{}")
    assert connection.getresponse().status == 501
    connection.close()


def test_strangers_hold_nobody_up(served: WatchedLauncher) -> None:
    """More silent connections than the server accepts, which then close."""
    place = urlsplit(served.url)
    strangers = [socket.create_connection((place.hostname, place.port)) for _ in range(100)]
    for one in strangers:
        one.close()
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            assert served.get("healthz")[0] == 200
            return
        except (OSError, http.client.HTTPException):  # their slots are not free yet
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_long_answers_are_compressed(served: WatchedLauncher) -> None:
    import gzip

    _, body, headers = served.get("page.js", headers={"Accept-Encoding": "gzip"})
    assert headers["Content-Encoding"] == "gzip"
    assert b"api/v1/status" in gzip.decompress(body)


def test_prometheus_gets_metrics_or_is_told_what_is_missing(served: WatchedLauncher) -> None:
    code, body, headers = served.get("metrics")
    try:
        import prometheus_client  # noqa: F401
    except ImportError:
        assert code == 501
        assert b"pip install 'horoscale[status]'" in body
        return
    assert code == 200
    assert headers["Content-Type"].startswith("text/plain")
    from prometheus_client.parser import text_string_to_metric_families

    found = {one.name: one for one in text_string_to_metric_families(body.decode())}
    (steps,) = found["horoscale_steps"].samples
    assert steps.labels["rank"] == "0"
    assert steps.value > 0
    assert sum(one.value for one in found["horoscale_ranks"].samples) == 1
    assert {one.labels["part"] for one in found["horoscale_step_seconds"].samples} == {
        *("computing", "exposed", "waiting")
    }


# ---------------------------------------------------------------- flags


def test_the_users_own_token_is_not_printed(tmp_path: Path) -> None:
    with WatchedLauncher(
        "-np", 1, *program(tmp_path), env={"HOROSCALE_STATUS_TOKEN": TOKEN}
    ) as job:
        assert TOKEN.encode() not in job.errors
        assert job.get("api/v1/job", token=TOKEN)[0] == 200
        environment = Path(f"/proc/{_pid_of_rank(tmp_path)}/environ").read_bytes()
        assert b"STATUS_TOKEN" not in environment
        assert b"STATUS_LINK" in environment


def _pid_of_rank(folder: Path) -> int:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        text = (folder / "pid.0").read_text() if (folder / "pid.0").exists() else ""
        if text:
            return int(text)
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("flags", "env", "words"),
    [
        (["--status-port", "x"], {}, b"--status-port: expected a port, or 0, not 'x'"),
        (["--status-port", "65536"], {}, b"expected a port"),
        (["--status-address", "::1"], {}, b"--status-address needs --status-port"),
        (["--status-port", "0", "--status-address", "node"], {}, b"expected an address of this"),
        (
            ["--status-port", "0"],
            {"HOROSCALE_STATUS_TOKEN": "short"},
            b"must have at least 16 ASCII characters",
        ),
        (["--status-port", "0", "--mpi"], {}, b"--status-port and --mpi cannot be combined"),
    ],
)
def test_flags_that_can_not_be_are_refused(
    flags: list[str], env: dict[str, str], words: bytes
) -> None:
    job = run_launcher("-np", 1, *flags, "true", env=env)
    assert job.returncode == 2
    assert words in job.stderr


def test_a_port_that_is_taken_is_an_error() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        job = run_launcher("-np", 1, "--status-port", taken.getsockname()[1], "true")
    assert job.returncode == 2
    assert b"can't serve --status-port: " in job.stderr
    assert b"choose another port" in job.stderr


def test_elsewhere_than_on_loopback_there_is_a_warning() -> None:
    job = run_launcher("-np", 1, "--status-port", 0, "--status-address", "0.0.0.0", "true")
    assert job.returncode == 0
    assert b"warning: the status is served at 0.0.0.0 without encryption" in job.stderr
    assert f"http://{socket.gethostname()}:".encode() in job.stderr


def test_a_job_that_nobody_watches_has_no_link() -> None:
    job = run_launcher("-np", 1, "sh", "-c", "env | grep -c STATUS_LINK")
    assert job.stdout == b"[0]<stdout>:0\n"


def test_json_is_the_same_in_its_parts(served: WatchedLauncher) -> None:
    told = served.status()
    for part in told:
        assert type(served.status(part)) is type(told[part])
    assert json.dumps(told, allow_nan=False)
