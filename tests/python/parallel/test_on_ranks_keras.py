"""Starts the Keras tests on several numbers of ranks, on the installed backends."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
SECONDS = 240


@pytest.mark.skipif(importlib.util.find_spec("keras") is None, reason="needs keras")
@pytest.mark.timeout(SECONDS + 30)
@pytest.mark.parametrize(
    ("ranks", "subset"),
    [(1, "conformance"), (2, None), (3, "conformance")],
    ids=lambda value: f"np{value}" if isinstance(value, int) else value or "all",
)
@pytest.mark.parametrize("backend", ["tensorflow", "torch", "jax"])
def test_on_ranks(backend: str, ranks: int, subset: str | None) -> None:
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"needs {backend}")
    files = ["test_keras.py", *(["test_keras_jax.py"] if backend == "jax" else [])]
    run(ranks, files, ["-m", subset] if subset else [], KERAS_BACKEND=backend)


@pytest.mark.skipif(importlib.util.find_spec("tf_keras") is None, reason="needs tf_keras")
@pytest.mark.timeout(SECONDS + 30)
def test_legacy_tensorflow_on_ranks() -> None:
    run(2, ["test_keras_legacy.py"], [], KERAS_BACKEND="tensorflow", TF_USE_LEGACY_KERAS="1")


@pytest.mark.timeout(SECONDS + 30)
@pytest.mark.parametrize(
    ("kind", "ranks"), [("tensorflow", 3), ("tensorflow-legacy", 2), ("torch", 3), ("jax", 2)]
)
def test_adasum_on_ranks(kind: str, ranks: int) -> None:
    backend, _, legacy = kind.partition("-")
    for package in ("keras", backend, *(["tf_keras"] if legacy else [])):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"needs {package}")
    environment = {"KERAS_BACKEND": backend} | ({"TF_USE_LEGACY_KERAS": "1"} if legacy else {})
    run(ranks, ["test_keras_adasum.py"], [], **environment)


def run(ranks: int, files: list[str], options: list[str], **environment: str) -> None:
    pytest_command = [
        *(sys.executable, "-m", "pytest", "-q", "--timeout=60", "-W", "default"),
        *("--maxfail=3", "--tb=short", *(str(FOLDER / file) for file in files), *options),
    ]
    result = subprocess.run(
        [sys.executable, "-m", "horoscale.runner", "-np", str(ranks), *pytest_command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
        env=os.environ | {"OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "2"} | environment,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-20_000:]
