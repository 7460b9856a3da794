"""A TensorFlowKerasState and a TensorFlowState survive a rank that dies within a graph."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest
from support.examples import SECONDS, launch

PROGRAM = """
import hashlib, json, os, pathlib, signal, sys
import numpy as np
import tensorflow as tf
import horoscale.tensorflow as hvd

STATE, MARK = sys.argv[1], pathlib.Path(sys.argv[2])
hvd.init()
tf.keras.utils.set_random_seed(hvd.rank())  # each rank begins elsewhere
layers = [tf.keras.layers.Dense(8), tf.keras.layers.Dense(1)]
model = tf.keras.Sequential([tf.keras.Input((4,)), *layers])
optimizer = tf.keras.optimizers.Adam(0.01)
optimizer.build(model.trainable_variables)
if STATE == "keras":
    state = hvd.elastic.TensorFlowKerasState(model, optimizer, step=0, seen=[])
else:
    variables = [*model.variables, *optimizer.variables]
    state = hvd.elastic.TensorFlowState(variables, step=0, seen=[])
x = tf.constant(np.random.default_rng(1).standard_normal((8, 4)), tf.float32)


@tf.function
def train_step():
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(x) - 1.0))
    tape = hvd.DistributedGradientTape(tape)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss


@hvd.elastic.run
def train(state):
    state.seen = [*state.seen, [state.step, hvd.size()]]
    while state.step < 12:
        if state.step == 5 and hvd.rank() == 1 and not MARK.exists():
            MARK.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        train_step()
        state.step += 1
        state.commit()


train(state)
values = b"".join(one.numpy().tobytes() for one in [*model.variables, *optimizer.variables])
bits = hashlib.sha256(values).hexdigest()
steps = int(optimizer.iterations)
print(json.dumps({"seen": state.seen, "bits": bits, "steps": steps}))
"""


@pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="needs tensorflow")
@pytest.mark.timeout(SECONDS)
@pytest.mark.parametrize("state", ["keras", "variables"])
def test_training_goes_on_after_a_death(state: str, tmp_path: Path) -> None:
    program = (sys.executable, "-c", PROGRAM, state, tmp_path / "dead")
    output = launch(2, *program, folder=tmp_path, flags=("--min-np", "1"))
    ranks = [json.loads(line.partition(":")[2]) for line in output.splitlines()]
    assert ranks  # the replacement may have arrived before the end
    assert ranks[0]["seen"][:2] == [[0, 2], [5, 1]]
    assert {one["steps"] for one in ranks} == {12}  # of the optimizer: no step is lost or repeated
    assert len({one["bits"] for one in ranks}) == 1
