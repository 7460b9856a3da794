"""The remote shell to agents: `SOCKET HOST command…`. `SOCKET` alone lists their hosts.

The launcher or mpirun runs the first form instead of ssh. An elastic launcher runs the second one
as its discovery script.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Iterator, Sequence

from horoscale.engines.agents.agent import quoted_supervisor
from horoscale.runner.protocol import Decoder, Header, encode

LOST = 255  # as ssh
_READ_BYTES = 1 << 16


def main(arguments: Sequence[str]) -> int:
    """Run a command or list the hosts; return the exit status."""
    path, *words = arguments
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(path)
        except OSError as error:
            sys.stderr.write(f"the job's driver is gone: {error}\n")
            return LOST
        if not words:
            return _list(connection)
        host, *command = words
        supervisor = command == quoted_supervisor()
        ask: Header = {"kind": "run", "host": host, "words": None if supervisor else command}
        connection.sendall(encode(ask))
        threading.Thread(target=_send_input, args=(connection,), daemon=True).start()
        return _relay(connection)


def _list(connection: socket.socket) -> int:
    connection.sendall(encode({"kind": "hosts"}))
    for header, _ in _frames(connection):
        for name, slots in header["hosts"]:
            print(f"{name}:{slots}")
        return 0
    return LOST


def _send_input(connection: socket.socket) -> None:
    try:
        while data := os.read(0, _READ_BYTES):
            connection.sendall(encode({"kind": "in"}, data))
        connection.sendall(encode({"kind": "eof"}))
    except OSError:  # the command has ended
        return


def _relay(connection: socket.socket) -> int:
    for header, payload in _frames(connection):
        kind = header["kind"]
        if kind == "exit":
            status = int(header["status"])
            return 128 - status if status < 0 else status
        if kind == "lost":
            sys.stderr.write(f"{header['error']}\n")
            return LOST
        _write(1 if kind == "out" else 2, payload)
    sys.stderr.write("the way to the host is lost: its task in the engine has ended\n")
    return LOST


def _frames(connection: socket.socket) -> Iterator[tuple[Header, bytes]]:
    decoder = Decoder()
    while data := connection.recv(_READ_BYTES):
        yield from decoder.feed(data)


def _write(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]
