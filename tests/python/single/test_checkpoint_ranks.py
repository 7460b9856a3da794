"""The ranks that save a checkpoint together, with a fake job."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

from horoscale.torch.parallel.checkpoint import ranks


def test_a_save_ends_in_the_job_that_it_was_begun_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """An elastic job may have a new runtime by then, in which no other rank participates."""
    jobs = [SimpleNamespace(topology=SimpleNamespace(rank=0, size=2)) for _ in range(2)]
    used: list[Any] = []

    def allgather(runtime: Any, payload: bytes, size: int, name: str) -> list[bytes]:
        used.append((runtime, name))
        return [payload] * size

    monkeypatch.setattr(ranks, "allgather_bytes", allgather)
    monkeypatch.setattr(ranks.job, "is_initialized", lambda: True)
    monkeypatch.setattr(ranks.job, "current_runtime", lambda: jobs[0])
    of_first = ranks.Ranks.of(None)
    monkeypatch.setattr(ranks.job, "current_runtime", lambda: jobs[1])
    assert of_first.all_do("written", lambda: 5) == [5, 5]
    assert used == [(jobs[0], "horoscale.checkpoint.written")]
