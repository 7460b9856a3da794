"""The key-value store in Python."""

from __future__ import annotations

import threading

import pytest

from horoscale._core import HorovodInternalError, StoreClient, StoreServer

HOST = "127.0.0.1"


def test_values_of_any_bytes_are_set_once() -> None:
    server = StoreServer(HOST, 0, "secret")
    one, two = (StoreClient(HOST, server.port, "secret") for _ in range(2))
    for key, value in (("a", b"\0\xff"), ("ä/b", b""), ("large", b"x" * 100_000)):
        one.set(key, value)
        one.set(key, value)
        assert two.get(key, timeout=10) == value
    with pytest.raises(ValueError, match="already has another value"):
        two.set("a", b"another")
    server.close()


def test_get_waits_for_the_key() -> None:
    server = StoreServer(HOST, 0, "secret")
    reader, writer = (StoreClient(HOST, server.port, "secret") for _ in range(2))
    got = []
    thread = threading.Thread(target=lambda: got.append(reader.get("key", timeout=20)))
    thread.start()
    writer.set("key", b"value")
    thread.join(20)
    assert got == [b"value"]
    with pytest.raises(HorovodInternalError, match="timeout"):
        reader.get("never", timeout=0.05)
    server.close()


def test_a_wrong_secret_is_refused() -> None:
    server = StoreServer(HOST, 0, "secret")
    with pytest.raises(HorovodInternalError, match="unauthenticated"):
        StoreClient(HOST, server.port, "another", timeout=10)
    StoreClient(HOST, server.port, "secret").set("still", b"there")
    server.close()


def test_nobody_listens() -> None:
    server = StoreServer(HOST, 0, "secret")
    port = server.port
    server.close()
    with pytest.raises(HorovodInternalError):
        StoreClient(HOST, port, "secret", timeout=0.2)


def test_one_store_at_several_addresses() -> None:
    # The last one is not on this machine, like one that is not ready yet.
    strong = "0123456789abcdef" * 4
    StoreServer("127.0.0.1,192.0.2.1", 0, strong).close()
    with pytest.raises(HorovodInternalError):
        StoreServer("192.0.2.1", 0, strong)
    server = StoreServer("127.0.0.1,127.0.0.2", 0, "secret")
    StoreClient("127.0.0.1", server.port, "secret").set("key", b"value")
    assert StoreClient("127.0.0.2", server.port, "secret").get("key", timeout=10) == b"value"
    with pytest.raises(HorovodInternalError):
        StoreClient("127.0.0.3", server.port, "secret", timeout=0.2)
    server.close()


@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1,::"])
def test_off_loopback_a_secret_has_to_be_strong(host: str) -> None:
    with pytest.raises(ValueError, match="is too weak"):
        StoreServer(host, 0, "secret")
    with pytest.raises(ValueError, match="is too weak"):
        StoreClient("192.0.2.1", 1, "secret")
