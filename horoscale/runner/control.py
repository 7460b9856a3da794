"""Control of an elastic job from another terminal: `horoscalerun --status` and `--drain HOST`.

The launcher listens on a socket in a folder that only its user may enter, and checks the peer's
user: the same user or root. Requests and answers are one line of JSON each.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import stat
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

MAX_REQUEST_BYTES = 4096
MAX_ANSWER_BYTES = 64 << 20
_ANSWER_S = 10.0

Answer = Callable[[dict[str, Any]], dict[str, Any]]


class ControlError(RuntimeError):
    """The job cannot be reached. The message is for the user."""


def control_folder() -> Path:
    """Return the folder of the sockets of this user's jobs.

    Raises ControlError if it cannot be created, or if other users can write to it.
    """
    base = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    folder = Path(base) / f"horoscale-{os.geteuid()}"
    try:
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        state = folder.lstat()
    except OSError as error:
        raise ControlError(f"cannot create the folder of the jobs' sockets: {error}") from None
    if not stat.S_ISDIR(state.st_mode) or state.st_uid != os.geteuid() or state.st_mode & 0o077:
        raise ControlError(f"{folder} is not a folder that only this user may enter")
    return folder


class ControlServer:
    """Answers requests in the launcher's loop. Does nothing if it cannot create its socket."""

    def __init__(self, selector: selectors.BaseSelector, answer: Answer) -> None:
        self._selector = selector
        self._answer = answer
        self._listener: socket.socket | None = None
        with contextlib.suppress(OSError, ControlError):
            path = control_folder() / f"{os.getpid()}.sock"
            path.unlink(missing_ok=True)
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(str(path))
            listener.listen(8)
            listener.setblocking(False)
            self._path, self._listener = path, listener
            selector.register(listener, selectors.EVENT_READ, self._accept)

    def close(self) -> None:
        """Stop answering."""
        if self._listener is not None:
            self._selector.unregister(self._listener)
            self._listener.close()
            self._listener = None
            with contextlib.suppress(OSError):
                self._path.unlink()

    def _accept(self) -> None:
        assert self._listener is not None
        with contextlib.suppress(OSError, ValueError):
            client, _ = self._listener.accept()
            credentials = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            if struct.unpack("3i", credentials)[1] not in (0, os.geteuid()):
                client.close()
                return
            client.setblocking(False)
            self._selector.register(client, selectors.EVENT_READ, lambda: self._serve(client))

    def _serve(self, client: socket.socket) -> None:
        """Answer a request, which arrives in one piece: it is shorter than a socket's buffer."""
        self._selector.unregister(client)
        with client, contextlib.suppress(OSError, ValueError, RecursionError):
            request = json.loads(client.recv(MAX_REQUEST_BYTES))
            answer = self._answer(request) if isinstance(request, dict) else {"error": "no request"}
            client.settimeout(1.0)
            client.sendall(json.dumps(answer).encode() + b"\n")


def jobs() -> list[int]:
    """Return the process ids of this user's reachable launchers."""
    found = []
    for path in control_folder().glob("*.sock"):
        with contextlib.suppress(ValueError):
            pid = int(path.stem)
            if os.path.exists(f"/proc/{pid}"):
                found.append(pid)
            else:
                path.unlink(missing_ok=True)
    return sorted(found)


def ask(request: dict[str, Any], job: int | None) -> dict[str, Any]:
    """Query a job by its launcher's process id, or the only job. Raises ControlError."""
    known = jobs()
    if not known:
        raise ControlError("no elastic job of this user is running on this machine")
    running = f"running launchers: {', '.join(map(str, known))}"
    if job is None:
        if len(known) != 1:
            raise ControlError(
                f"there are several jobs: choose one by its launcher with --job PID; {running}"
            )
        job = known[0]
    if job not in known:
        raise ControlError(f"no elastic job has process {job} as its launcher; {running}")
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_ANSWER_S)
            connection.connect(str(control_folder() / f"{job}.sock"))
            connection.sendall(json.dumps(request).encode())
            with connection.makefile("rb") as answers:
                answer = json.loads(answers.readline(MAX_ANSWER_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        raise ControlError(f"job {job} does not answer: {error}") from None
    if not isinstance(answer, dict):
        raise ControlError(f"job {job} gave no answer")
    if "error" in answer:
        raise ControlError(str(answer["error"]))
    return answer
