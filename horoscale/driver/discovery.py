"""Discovers the hosts of an elastic job by running a script repeatedly.

The script prints a line for each host: `host:slots`, or `host` if the slots are specified
elsewhere.
"""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable

INTERVAL_S = 1.0
TIME_LIMIT_S = 60.0  # for one run of the script
MAX_OUTPUT_BYTES = 1 << 20
_LINE = re.compile(r"(\[[^\]\s]+\]|[^:\s\[\]]+)(?::([0-9]{1,6}))?")

Hosts = tuple[tuple[str, int], ...]


class DiscoveryError(RuntimeError):
    """The script failed, or printed an invalid line. The message is for the user."""


def parse_discovered(text: str, slots_per_host: int | None) -> Hosts:
    """Return the hosts that a script printed, in order. A repeated name adds slots.

    Raises DiscoveryError, which names the line.
    """
    found: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        word = line.split("#", 1)[0].strip()
        if not word:
            continue
        match = _LINE.fullmatch(word)
        if match is None or word.startswith("-"):
            raise DiscoveryError(f"line {number} is not host:slots: {word[:100]!r}")
        slots = slots_per_host if match[2] is None else int(match[2])
        if slots is None:
            raise DiscoveryError(
                f"line {number} gives no slots, and --slots-per-host was not given: {word[:100]!r}"
            )
        name = match[1].strip("[]")
        found[name] = found.get(name, 0) + slots
    return tuple((name, slots) for name, slots in found.items() if slots > 0)


def run_script(script: str, time_limit_s: float = TIME_LIMIT_S) -> str:
    """Return a script's output. Raises DiscoveryError if it fails or takes too long."""
    try:
        process = subprocess.Popen(
            script,
            shell=True,  # as Horovod: a path, or a command with arguments
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        raise DiscoveryError(f"can't be started: {error}") from None
    try:
        output = _read_output(process, time.monotonic() + time_limit_s, time_limit_s)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # including its children
        process.wait()
        for pipe in (process.stdout, process.stderr):
            assert pipe is not None
            pipe.close()
    return output.decode(errors="replace")


def _read_output(process: subprocess.Popen[bytes], deadline: float, time_limit_s: float) -> bytes:
    assert process.stdout is not None
    assert process.stderr is not None
    streams = {process.stdout.fileno(): bytearray(), process.stderr.fileno(): bytearray()}
    with selectors.DefaultSelector() as selector:
        for descriptor in streams:
            selector.register(descriptor, selectors.EVENT_READ)
        while selector.get_map():
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise DiscoveryError(f"took longer than {time_limit_s:g} s")
            for key, _ in selector.select(remaining):
                data = os.read(key.fd, 1 << 16)
                if not data:
                    selector.unregister(key.fd)
                streams[key.fd] += data
                if len(streams[key.fd]) > MAX_OUTPUT_BYTES:
                    raise DiscoveryError(f"prints more than {MAX_OUTPUT_BYTES} bytes")
    output, errors = (bytes(data) for data in streams.values())
    try:
        status = process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        raise DiscoveryError(f"took longer than {time_limit_s:g} s") from None
    if status != 0:
        last = errors.decode(errors="replace").strip().splitlines()[-1:]
        raise DiscoveryError(": ".join([f"ended with status {status}", *last]))
    return output


class ScriptDiscovery:
    """Runs a script once a second, in a thread, and reports changes."""

    def __init__(
        self,
        script: str,
        slots_per_host: int | None,
        on_hosts: Callable[[Hosts], None],
        on_error: Callable[[str], None],
    ) -> None:
        """Start. Both functions are called in the thread; a persistent error is reported once.

        `on_hosts` may raise ValueError or OSError if it can't use the hosts.
        """
        self._script = script
        self._slots_per_host = slots_per_host
        self._on_hosts = on_hosts
        self._on_error = on_error
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="horoscale-discovery", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop, without waiting for a running script."""
        self._ended.set()

    def _run(self) -> None:
        known: Hosts | None = None
        told: str | None = None
        while not self._ended.is_set():
            try:
                found = parse_discovered(run_script(self._script), self._slots_per_host)
                if found != known and not self._ended.is_set():
                    self._on_hosts(found)
                    known = found
                told = None
            except (DiscoveryError, OSError, ValueError) as error:
                if str(error) != told:
                    told = str(error)
                    self._on_error(f"--host-discovery-script {self._script}: {error}")
            self._ended.wait(INTERVAL_S)
