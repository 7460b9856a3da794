"""The chunked scan of examples/mamba_parallel.py equals the recurrence."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def example() -> ModuleType:
    path = Path(__file__).parents[3] / "examples" / "mamba_parallel.py"
    spec = importlib.util.spec_from_file_location("mamba_parallel", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("length", [1, 15, 16, 17, 40])
def test_scan_is_the_recurrence(length: int, example: ModuleType) -> None:
    generator = torch.Generator().manual_seed(length)
    batch, heads = 2, 3
    x, b, c = (
        torch.randn(batch, length, heads, size, generator=generator, dtype=torch.float64)
        for size in (example.HEAD, example.STATE, example.STATE)
    )
    a = -torch.rand(batch, length, heads, generator=generator, dtype=torch.float64)
    y, last = example.scan_of_chunks(x, a, b, c)
    state = torch.zeros(batch, heads, example.STATE, example.HEAD, dtype=torch.float64)
    for t in range(length):
        state = a[:, t, :, None, None].exp() * state + b[:, t, ..., None] * x[:, t, :, None]
        assert torch.allclose(y[:, t], (c[:, t, :, None] @ state).squeeze(2), atol=1e-12)
    assert torch.allclose(last, state, atol=1e-12)
