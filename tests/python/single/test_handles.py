"""Handles that several threads wait for."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from horoscale.numpy.handles import Handle as ArrayHandle

HANDLES: list[Any] = [ArrayHandle]
try:
    from horoscale.torch.handles import Handle as TensorHandle
except ImportError:
    pass
else:
    HANDLES.append(TensorHandle)

THREADS = 3
SECONDS = 30


class Operation:
    """One that is done when all threads wait for it."""

    def __init__(self) -> None:
        self._all_wait = threading.Barrier(THREADS, timeout=SECONDS)

    def wait(self) -> None:
        self._all_wait.wait()


@pytest.mark.parametrize("kind", HANDLES, ids=lambda kind: kind.__module__)
def test_the_result_is_made_once(kind: Any) -> None:
    made: list[object] = []
    results: list[object] = []

    def finish(_: object) -> object:
        made.append(object())
        return made[-1]

    handle = kind(Operation(), finish)
    threads = [
        threading.Thread(target=lambda: results.append(handle.wait()), daemon=True)
        for _ in range(THREADS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    assert len(made) == 1
    assert results == made * THREADS
