"""Starts Keras' tests on several numbers of ranks, on the backends that are installed."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

FILES = [str(Path(__file__).with_name(name)) for name in ("test_keras.py", "test_keras_jax.py")]
SECONDS = 240


@pytest.mark.skipif(importlib.util.find_spec("keras") is None, reason="needs keras")
@pytest.mark.timeout(SECONDS + 30)
@pytest.mark.parametrize(
    ("ranks", "subset"),
    [(1, "conformance"), (2, None), (3, "conformance"), (4, "conformance")],
    ids=lambda value: f"np{value}" if isinstance(value, int) else value or "all",
)
@pytest.mark.parametrize("backend", ["tensorflow", "torch", "jax"])
def test_on_ranks(backend: str, ranks: int, subset: str | None) -> None:
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"needs {backend}")
    pytest_command = [
        *(sys.executable, "-m", "pytest", "-q", "--timeout=60", "-W", "default"),
        *("--maxfail=3", "--tb=short", *(FILES if backend == "jax" else FILES[:1])),
        *(("-m", subset) if subset else ()),
    ]
    result = subprocess.run(
        [sys.executable, "-m", "horoscale.runner", "-np", str(ranks), *pytest_command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
        env=os.environ
        | {"OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "2", "KERAS_BACKEND": backend},
        check=False,
    )
    assert result.returncode == 0, result.stdout[-20_000:]
