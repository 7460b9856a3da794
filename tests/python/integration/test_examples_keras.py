"""The example of the Keras binding does what its first lines say, on each backend."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest
from support.examples import EXAMPLES, SECONDS, accuracy_of, launch

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("keras") is None, reason="needs keras"),
    pytest.mark.timeout(2 * SECONDS),
]


@pytest.mark.parametrize(
    ("backend", "num_ranks"),
    [("tensorflow", 2), ("tensorflow", 4), ("torch", 2), ("jax", 2)],
)
def test_digits(backend: str, num_ranks: int, tmp_path: Path) -> None:
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"needs {backend}")
    script = EXAMPLES / "keras_digits.py"
    output = launch(num_ranks, sys.executable, script, "--backend", backend, folder=tmp_path)
    assert accuracy_of(output) >= 0.95
    assert (tmp_path / "digits.keras").exists()


@pytest.mark.parametrize("backend", ["torch", "tensorflow", "jax"])
def test_digits_while_a_rank_dies(backend: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"needs {backend}")
    arguments = ("--backend", backend, "--epochs", "5", "--kill-every", "20")
    script = EXAMPLES / "elastic_digits_keras.py"
    flags = ("--min-np", "1")
    output = launch(2, sys.executable, script, *arguments, folder=tmp_path, flags=flags)
    assert re.findall(r"epoch (\d) on", output) == list("12345"), output
    assert " on 1 ranks" in output  # while the replacement imports Keras
    assert accuracy_of(output) >= 0.9
