"""States and callbacks of Keras and TensorFlow on one rank."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from support.elastic_links import PreparedLink, view_of_one

os.environ.setdefault("KERAS_BACKEND", "torch")
keras = pytest.importorskip("keras")

import horoscale.keras as hvd  # noqa: E402
from horoscale.elastic import membership  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


@pytest.fixture
def link() -> Iterator[PreparedLink]:
    prepared = PreparedLink(*(view_of_one(number) for number in range(1, 4)))
    membership.use_link(prepared)
    hvd.init()
    yield prepared
    hvd.shutdown()
    membership.use_link(None)


def make_model() -> Any:
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.Adam(0.1)), loss="mse")
    return model


def test_an_unbuilt_model() -> None:
    with pytest.raises(ValueError, match=r"model\.build\(input_shape\)"):
        hvd.elastic.KerasState(keras.Sequential([keras.layers.Dense(1)]))


def test_fit_goes_on_after_a_failure(link: PreparedLink) -> None:
    x, y = np.ones((8, 3), np.float32), np.ones((8, 1), np.float32)
    model = make_model()
    state = hvd.elastic.KerasState(model, batch=0, epoch=0)
    trained: list[Any] = []
    batches: list[tuple[int, int]] = []

    class Watch(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            batches.append((state.epoch, state.batch))
            if batches == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1)]:
                trained.append([np.array(one) for one in self.model.get_weights()])
                raise hvd.HorovodInternalError("in the second epoch")

    @hvd.elastic.run
    def train(state: Any) -> None:
        if trained:
            trained.append(model.get_weights())
        callbacks = [
            hvd.elastic.UpdateBatchStateCallback(state),
            hvd.elastic.UpdateEpochStateCallback(state),
            hvd.elastic.CommitStateCallback(state, batches_per_commit=2),
            Watch(),
        ]
        left = 3 - state.epoch
        model.fit(x, y, batch_size=2, epochs=left, shuffle=False, verbose=0, callbacks=callbacks)

    train(state)
    committed, again = trained
    assert all(map(np.array_equal, committed, again))
    assert state.epoch == 3
    assert state.batch == 0
    assert link.reports[0][1] == "HorovodInternalError: in the second epoch"


@pytest.mark.parametrize("number", [0, -1])
def test_wrong_intervals(number: int) -> None:
    with pytest.raises(ValueError, match="batches_per_commit"):
        hvd.elastic.CommitStateCallback(None, number)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="needs TensorFlow")
def test_variables_of_tensorflow(link: PreparedLink) -> None:
    import tensorflow as tf

    import horoscale.tensorflow as hvd

    variable = tf.Variable([1.0, 2.0])
    state = hvd.elastic.TensorFlowState(variables=[variable], step=0)
    calls = []

    @hvd.elastic.run
    def train(state: Any) -> None:
        calls.append((state.step, variable.numpy().tolist()))
        if len(calls) == 1:
            variable.assign([3.0, 4.0])
            state.step = 1
            state.commit()
            variable.assign([5.0, 6.0])
            raise tf.errors.UnknownError(None, None, "horoscale: rank 1 failed")
        if len(calls) == 2:
            raise tf.errors.UnknownError(None, None, "a disk of somebody else's")

    with pytest.raises(tf.errors.UnknownError, match="somebody"):
        train(state)
    assert calls == [(0, [1.0, 2.0]), (1, [3.0, 4.0])]
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    assert hvd.elastic.TensorFlowKerasState(model, keras.optimizers.SGD(), epoch=1).epoch == 1
