"""A launcher that serves the status of its job, and its clients."""

from __future__ import annotations

import json
import os
import re
import select
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from launcher_process import PATIENCE_S, Launcher

TOKEN = "a token that is long enough"
_PAUSE_S = 0.05


def played_hosts(folder: Path, hosts: str) -> list[object]:
    """Flags for hosts that this machine plays: the remote shell runs its command here."""
    shell = folder / "shell"
    shell.write_text('#!/bin/sh\nshift\nexec "$@"\n')
    shell.chmod(0o755)
    return ["--remote-shell", shell, "-H", hosts]


class WatchedLauncher(Launcher):
    """A job with --status-port 0, whose URL it has printed."""

    def __init__(self, *arguments: object, env: Mapping[str, str | None] | None = None) -> None:
        super().__init__("--status-port", 0, *arguments, env=env)
        self.errors = b""
        self.url = self._read_url()

    def _read_url(self) -> str:
        assert self.process.stderr is not None
        stderr = self.process.stderr.fileno()
        deadline = time.monotonic() + PATIENCE_S
        while not (found := re.search(rb"status: (http://\S+)", self.errors)):
            assert select.select([stderr], [], [], max(0.0, deadline - time.monotonic()))[0]
            piece = os.read(stderr, 65536)
            assert piece, self.errors
            self.errors += piece
        return found[1].decode()

    def get(
        self, path: str, *, token: str | None = "", headers: Mapping[str, str] | None = None
    ) -> tuple[int, bytes, Mapping[str, str]]:
        """Send a request; `token`: "" for the right one, None for none."""
        base, _, right = self.url.partition("?token=")
        given = right if token == "" else token
        own = {} if given is None else {"Authorization": f"Bearer {given}"}
        request = urllib.request.Request(base + path, headers={**own, **(headers or {})})
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
                return answer.status, answer.read(), answer.headers
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read(), error.headers

    def status(self, part: str = "status") -> Any:
        code, body, _ = self.get(f"api/v1/{part}")
        assert code == 200, body
        return json.loads(body)

    def wait_until(self, is_so: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        """Repeat the request until the condition holds; return that response."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            told = self.status()
            if is_so(told):
                return told
            assert time.monotonic() < deadline, json.dumps(told, indent=1)
            time.sleep(_PAUSE_S)


def states(told: dict[str, Any]) -> dict[int, str]:
    """The program of each rank."""
    return {one["rank"]: one["state"] for one in told["ranks"] if one["rank"] is not None}
