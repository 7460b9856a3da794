"""KerasEstimator: trains a Keras model as an estimator of pyspark.ml."""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np

from horoscale.spark import parquet
from horoscale.spark.estimator import Array, HoroscaleEstimator, Trained, Training

__all__ = ["KerasEstimator"]


class KerasEstimator(HoroscaleEstimator):
    """Trains a Keras 3 model on the rows of a data frame: `fit(frame)` returns a Transformer.

    Each rank calls the model's fit() on its part of the rows, which it keeps in memory. All ranks
    use equal numbers of rows; the remainder is omitted.

    Args:
        model: a built model with an input for each of `feature_cols`: float32, of shape
            (batch, *shape of the column's values), or as in `input_shapes`.
        optimizer: a Keras optimizer, or the name of one.
        loss: a Keras loss, its name, or another value that compile() accepts.
        metrics: the metrics for compile().
        store: a Store.
        feature_cols: names of columns of numbers, of arrays of numbers, or of vectors.
        label_cols: names of columns of labels, as many as the model has outputs.
        output_cols: names for the predictions; `<label>__output` by default.
        input_shapes: the shape of each input, without the batch dimension or with -1 for it.
        num_proc: the number of ranks; by default Spark's default parallelism.
        batch_size: rows per step and rank (32).
        epochs: passes over the data (1).
        validation: the fraction of the rows to hold out, or a column that is true for these.
        shuffle: whether Spark shuffles the rows, and each rank its own for each epoch (True).
        random_seed: the seed for shuffling (1).
        verbose: 0 hides the epochs' progress.
        run_id: the name of the run's folder in the store.
        run_options: further parameters of `horoscale.spark.run()`.
    """

    def _serialized(self) -> bytes:
        import keras

        optimizer, loss = self.get("optimizer"), self.get("loss")
        if optimizer is None or loss is None:
            raise TypeError("KerasEstimator needs optimizer and loss")
        recipe = _Recipe(
            keras.config.backend(),
            _saved(self.get("model")),
            keras.optimizers.serialize(keras.optimizers.get(optimizer)),
            loss,
            list(self.get("metrics") or []),
        )
        return bytes(cloudpickle.dumps(recipe))

    def _trainer(self) -> Callable[[Training], Trained]:
        return train

    def _predictor(self, model: bytes) -> Callable[[], _Predictor]:
        import keras

        return functools.partial(_Predictor, keras.config.backend(), model)


@dataclass(frozen=True)
class _Recipe:
    """The arguments of compile() and fit(), for another process."""

    backend: str  # Keras's backend with which the model was created
    model: bytes
    optimizer: dict[str, Any]
    loss: Any
    metrics: list[Any]


class _Predictor:
    """A model for predictions, loaded from its file."""

    def __init__(self, backend: str, saved: bytes) -> None:
        os.environ.setdefault("KERAS_BACKEND", backend)  # read when Keras is imported
        self.model = _loaded(saved)

    def __call__(self, inputs: list[Array]) -> list[Array]:
        outputs = self.model.predict(_one_or_all(inputs), verbose=0)
        return list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]


def train(training: Training) -> Trained:
    """Train on this rank, before hvd.init() was called."""
    recipe: _Recipe = cloudpickle.loads(training.model)
    os.environ.setdefault("KERAS_BACKEND", recipe.backend)
    import keras

    import horoscale.keras as hvd

    hvd.init()
    keras.utils.set_random_seed(training.seed + hvd.rank())
    model = _loaded(recipe.model)
    model.compile(
        optimizer=hvd.DistributedOptimizer(keras.optimizers.deserialize(recipe.optimizer)),
        loss=recipe.loss,
        metrics=recipe.metrics,
    )
    inputs, labels = training.read(training.train, _rows(training.train, hvd.rank(), hvd.size()))
    validation = None
    if training.validation is not None:
        rows = _rows(training.validation, hvd.rank(), hvd.size())
        held_out = training.read(training.validation, rows)
        validation = _one_or_all(held_out[0]), _one_or_all(held_out[1])
    fitted = model.fit(
        _one_or_all(inputs),
        _one_or_all(labels),
        batch_size=training.batch_size,
        epochs=training.epochs,
        shuffle=training.shuffle,
        validation_data=validation,
        verbose=2 if training.verbose and hvd.rank() == 0 else 0,
        callbacks=[
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),
            hvd.callbacks.MetricAverageCallback(),
            _checkpoints(training, hvd.rank()),
        ],
    )
    outputs = model.predict_on_batch(_one_or_all([one[:1] for one in inputs]))
    outputs = outputs if isinstance(outputs, (list, tuple)) else [outputs]
    widths = tuple(int(np.prod(np.asarray(one).shape[1:])) for one in outputs)
    saved = _saved(model, without_optimizer=True) if hvd.rank() == 0 else b""
    hvd.shutdown()
    history = {name: [float(one) for one in values] for name, values in fitted.history.items()}
    return Trained(saved, history, widths)


def _checkpoints(training: Training, rank: int) -> Any:
    """Return a callback with which rank 0 writes the model after each epoch."""
    import keras

    def write(model: Any) -> None:
        if rank == 0:
            content = _saved(model, without_optimizer=True)
            training.store.write(training.checkpoint, content)

    class Checkpoints(keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            write(self.model)

    return Checkpoints()


def _rows(data: parquet.DataFiles, rank: int, size: int) -> range:
    """Return a rank's rows; all ranks have equal numbers."""
    return parquet.part(rank, size, data.total - data.total % size)


def _one_or_all(arrays: list[Array]) -> Any:
    return arrays[0] if len(arrays) == 1 else arrays


def _saved(model: Any, *, without_optimizer: bool = False) -> bytes:
    """Return a model as the content of a .keras file. Our optimizer's state is not kept."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.keras"
        model.save(path, include_optimizer=not without_optimizer)
        return path.read_bytes()


def _loaded(saved: bytes) -> Any:
    import keras

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.keras")
        Path(path).write_bytes(saved)
        return keras.saving.load_model(path, compile=False)
