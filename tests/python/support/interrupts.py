"""Ctrl-C at a chosen moment."""

from __future__ import annotations

import _thread
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from horoscale.common import current_runtime


@contextmanager
def interrupted() -> Iterator[None]:
    """The main thread gets a Ctrl-C in the operation that it waits for within the context."""
    in_flight = current_runtime()._in_flight
    before = len(in_flight)

    def interrupt() -> None:  # after the call that has started the operation
        deadline = time.monotonic() + 60
        while len(in_flight) == before and time.monotonic() < deadline:
            time.sleep(0.001)
        _thread.interrupt_main()

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        yield
    thread.join()
