"""The examples of the TensorFlow binding do what their first lines say."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest
from support.examples import EXAMPLES, ROOT, SECONDS, accuracy_of, launch, run

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="needs tensorflow"),
    pytest.mark.timeout(2 * SECONDS),
]


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_digits(num_ranks: int, tmp_path: Path) -> None:
    script = EXAMPLES / "tensorflow_digits.py"
    assert accuracy_of(launch(num_ranks, sys.executable, script, folder=tmp_path)) >= 0.95


def test_partitioned_transformer(tmp_path: Path) -> None:
    script = EXAMPLES / "tensorflow_partitioned_transformer.py"
    assert accuracy_of(launch(3, sys.executable, script, folder=tmp_path)) >= 0.95


def test_horovods_names(tmp_path: Path) -> None:
    program = """
import horovod.tensorflow as hvd
import horoscale.tensorflow
assert hvd is horoscale.tensorflow
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.functions import broadcast_object, broadcast_variables
from horovod.tensorflow.mpi_ops import allreduce, join, size_op
print(hvd.__name__)
"""
    output = launch(1, sys.executable, "-c", program, folder=tmp_path, flags=("--compat",))
    assert output.endswith("horoscale.tensorflow\n")


def test_benchmark_of_training_steps(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    quick = ("--np=1", "--rounds=1", "--steps=1", "--tasks=perceptron", "--modes=function")
    benchmark = ROOT / "benchmarks" / "tensorflow_step.py"
    output = run(sys.executable, benchmark, *quick, "--json", figures, folder=tmp_path)
    assert "mirrored / horoscale" in output
    measured = json.loads(figures.read_text())["seconds"]["perceptron function"]
    assert measured.keys() == {"one", "alone", "mirrored", "horoscale"}
