"""The server of a watched job of a thousand ranks, with many clients."""

from __future__ import annotations

import gzip
import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from http.server import ThreadingHTTPServer

import pytest
from support.watched_job import WatchedJob

from horoscale.watch.server import _MOST_CONNECTIONS, StatusServer, _Handler

TOKEN = "a token that is long enough"


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[WatchedJob, StatusServer]]:
    job = WatchedJob(1000)
    for _ in range(3):
        job.second()
    server = StatusServer(job.watch, 0, token=TOKEN)
    yield job, server
    server.close()


def get(server: StatusServer, path: str, **headers: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {TOKEN}", **headers})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_answers_about_a_thousand_ranks_are_small(served: tuple[WatchedJob, StatusServer]) -> None:
    code, body = get(served[1], "/api/v1/status")
    assert code == 200
    assert len(body) < 600 << 10
    assert len(json.loads(body)["ranks"]) == 1000
    _, compressed = get(served[1], "/api/v1/status", **{"Accept-Encoding": "gzip"})
    assert len(compressed) < 64 << 10
    assert json.loads(gzip.decompress(compressed)).keys() == json.loads(body).keys()


def test_many_who_ask_cost_no_more_than_one(
    served: tuple[WatchedJob, StatusServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    job, server = served
    made = []
    snapshot = job.watch.snapshot
    monkeypatch.setattr(job.watch, "snapshot", lambda: made.append(1) or snapshot())
    monkeypatch.setattr("horoscale.watch.server._FRESH_S", 1e9)
    answers: list[int] = []
    threads = [
        threading.Thread(target=lambda: answers.append(get(server, "/api/v1/job")[0]))
        for _ in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert answers == [200] * 20
    assert len(made) <= 1


def test_a_connection_for_which_there_is_no_thread_keeps_no_place(
    served: tuple[WatchedJob, StatusServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(ThreadingHTTPServer, "process_request", refuse)
    for _ in range(2 * _MOST_CONNECTIONS):
        with pytest.raises(RuntimeError, match="can't start new thread"):
            served[1]._server.process_request(None, None)


@pytest.mark.parametrize("begin", [b"", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: "])
def test_who_sends_byte_by_byte_gets_no_more_time(
    served: tuple[WatchedJob, StatusServer], monkeypatch: pytest.MonkeyPatch, begin: bytes
) -> None:
    monkeypatch.setattr(_Handler, "timeout", 1.0)
    with socket.create_connection(("127.0.0.1", served[1].port), timeout=0.1) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200")
        connection.sendall(begin)
        began = time.monotonic()
        while time.monotonic() - began < 15:
            try:
                connection.sendall(b"x")
                if connection.recv(1 << 16) == b"":
                    break
            except TimeoutError:
                pass
            except OSError:
                break
        assert 0.5 < time.monotonic() - began < 10


def test_ipv6_is_served(served: tuple[WatchedJob, StatusServer]) -> None:
    try:
        server = StatusServer(served[0].watch, 0, "::1", token=TOKEN)
    except OSError:
        pytest.skip("there is no IPv6 here")
    try:
        assert server.url() == f"http://[::1]:{server.port}/"
        connection = http.client.HTTPConnection("::1", server.port, timeout=60)
        connection.request("GET", "/healthz")
        assert connection.getresponse().read() == b"ok\n"
        connection.close()
    finally:
        server.close()


def test_names_of_this_machine_in_a_domain_are_its_own_where_others_reach_it(
    served: tuple[WatchedJob, StatusServer],
) -> None:
    job, local = served
    server = StatusServer(job.watch, 0, "0.0.0.0", token=TOKEN)
    try:
        assert not server.is_local
        name = local._server.name.partition(".")[0]
        for host, expected in ((f"{name}.example", 200), ("evil.example", 421)):
            assert get(server, "/healthz", Host=host)[0] == expected
        assert get(local, "/healthz", Host=f"{name}.example")[0] == 421
    finally:
        server.close()
