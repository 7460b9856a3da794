"""The examples of the TensorFlow binding under the wheels' mpirun."""

from __future__ import annotations

import importlib.util

import pytest
from conftest import Mpi
from support.examples import EXAMPLES, accuracy_of

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="needs tensorflow"),
    pytest.mark.timeout(200),
]


def test_digits(both: dict[str, Mpi]) -> None:
    ended = both["openmpi"].run(2, str(EXAMPLES / "tensorflow_digits.py"), seconds=150)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert accuracy_of(ended.stdout) >= 0.95


def test_partitioned_transformer(both: dict[str, Mpi]) -> None:
    """Two ranks per set. The example itself fails if the loss differs from that of one process."""
    script = str(EXAMPLES / "tensorflow_partitioned_transformer.py")
    ended = both["mpich"].run(6, script, "--check", "--epochs", "1", seconds=150)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "of one process" in ended.stdout
