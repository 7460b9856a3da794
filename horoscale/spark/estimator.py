"""Shared parts of the estimators: parameters, data, and predictions."""

from __future__ import annotations

import uuid
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from horoscale.spark import job, parquet
from horoscale.spark.context import active_context, check_barrier
from horoscale.spark.store import Store

try:
    from pyspark.ml import Estimator, Model
    from pyspark.ml.param import Param, Params
    from pyspark.sql import DataFrame, functions
except ImportError as error:
    raise ImportError(
        f"horoscale's estimators need pyspark, which is not there ({error}): "
        "pip install 'horoscale[spark]'"
    ) from error

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Training:
    """The arguments of the ranks of a fit(). `model` is specific to the framework."""

    model: bytes
    train: parquet.DataFiles
    validation: parquet.DataFiles | None
    feature_cols: tuple[str, ...]
    label_cols: tuple[str, ...]
    input_shapes: tuple[tuple[int, ...], ...] | None
    batch_size: int
    epochs: int
    shuffle: bool
    seed: int
    verbose: int
    checkpoint: str

    @property
    def store(self) -> Store:
        """The store for the checkpoint."""
        return self.train.store

    def read(self, data: parquet.DataFiles, rows: range) -> tuple[list[Array], list[Array]]:
        """Read some rows: the inputs as the model takes them, and the unconverted labels."""
        arrays = parquet.read(data, rows, [*self.feature_cols, *self.label_cols])
        inputs = as_inputs([arrays[name] for name in self.feature_cols], self.input_shapes)
        return inputs, [arrays[name] for name in self.label_cols]


@dataclass(frozen=True)
class Trained:
    """A rank's result: the model, the losses and metrics of each epoch, and output widths."""

    model: bytes
    history: dict[str, list[float]]
    widths: tuple[int, ...]


class Predictor(Protocol):
    """A function from inputs to outputs of the framework's model."""

    model: Any

    def __call__(self, inputs: list[Array]) -> list[Array]:
        """Return the outputs of some rows."""


def as_inputs(columns: Sequence[Array], shapes: Sequence[Sequence[int]] | None) -> list[Array]:
    """Convert inputs to float32 in the model's shapes; a number becomes a row of one."""
    if shapes is None:
        shapes = [column.shape[1:] or (1,) for column in columns]
    return [
        column.astype(np.float32).reshape((len(column), *shape))
        for column, shape in zip(columns, shapes, strict=True)
    ]


class _Parameters(Params):  # type: ignore[misc]
    """The parameters of all estimators."""

    model = Param(Params._dummy(), "model", "the model to train")
    optimizer = Param(Params._dummy(), "optimizer", "its optimizer")
    loss = Param(Params._dummy(), "loss", "its loss")
    metrics = Param(Params._dummy(), "metrics", "what else is told of each epoch")
    store = Param(Params._dummy(), "store", "where data and models are kept")
    feature_cols = Param(Params._dummy(), "feature_cols", "the columns of the model's inputs")
    label_cols = Param(Params._dummy(), "label_cols", "the columns of the labels")
    output_cols = Param(Params._dummy(), "output_cols", "the columns that predictions become")
    input_shapes = Param(Params._dummy(), "input_shapes", "of each input, without the batch")
    num_proc = Param(Params._dummy(), "num_proc", "how many ranks")
    batch_size = Param(Params._dummy(), "batch_size", "rows of a rank's step")
    epochs = Param(Params._dummy(), "epochs", "passes over the data")
    validation = Param(Params._dummy(), "validation", "which rows are held out")
    shuffle = Param(Params._dummy(), "shuffle", "whether rows are shuffled")
    random_seed = Param(Params._dummy(), "random_seed", "of the shuffling")
    verbose = Param(Params._dummy(), "verbose", "1: show the epochs")
    run_id = Param(Params._dummy(), "run_id", "names the run's folder in the store")
    run_options = Param(Params._dummy(), "run_options", "more parameters of horoscale.spark.run()")


class HoroscaleEstimator(Estimator, _Parameters):  # type: ignore[misc]
    """An estimator of pyspark.ml that trains a model on ranks.

    Subclasses define the serialized model, the ranks' function, and the model's predictions.
    """

    def __init__(self, **parameters: Any) -> None:
        super().__init__()
        known = {one.name for one in self.params}
        unknown = [name for name in parameters if name not in known]
        if unknown:
            raise TypeError(
                f"{type(self).__name__} has no parameter {', '.join(unknown)}; it has "
                f"{', '.join(sorted(known))}"
            )
        self._setDefault(batch_size=32, epochs=1, shuffle=True, random_seed=1, verbose=1)
        given = {name: value for name, value in parameters.items() if value is not None}
        self._set(**given)
        for name in ("model", "store", "feature_cols", "label_cols"):
            if name not in given:
                raise TypeError(f"{type(self).__name__} needs {name}")
        if not isinstance(given["store"], Store):
            raise TypeError("store: expected a Store, such as Store.create('/shared/runs')")

    def get(self, name: str) -> Any:
        """Return the value of a parameter, or None."""
        param = self.getParam(name)
        return self.getOrDefault(param) if self.isDefined(param) else None

    @abstractmethod
    def _serialized(self) -> bytes:
        """Return the serialized model and training setup for the ranks."""

    @abstractmethod
    def _trainer(self) -> Callable[[Training], Trained]:
        """Return the function that each rank calls."""

    @abstractmethod
    def _predictor(self, model: bytes) -> Callable[[], Predictor]:
        """Return a function that loads a model, also in a task of Spark."""

    def _fit(self, dataset: DataFrame) -> HoroscaleModel:
        context = active_context()
        store, size = self.get("store"), self.get("num_proc") or context.defaultParallelism
        check_barrier(context, size)  # before data is written
        run_id = self.get("run_id") or uuid.uuid4().hex[:12]
        train, validation = self._split(dataset)
        try:
            training = Training(
                model=self._serialized(),
                train=self._write(train, store.get_train_data_path(run_id), size),
                validation=None
                if validation is None
                else self._write(validation, store.get_val_data_path(run_id), size),
                feature_cols=tuple(self.get("feature_cols")),
                label_cols=tuple(self.get("label_cols")),
                input_shapes=_shapes(self.get("input_shapes")),
                batch_size=self.get("batch_size"),
                epochs=self.get("epochs"),
                shuffle=self.get("shuffle"),
                seed=self.get("random_seed"),
                verbose=self.get("verbose"),
                checkpoint=store.get_checkpoint_path(run_id),
            )
            results = job.run(
                self._trainer(), (training,), num_proc=size, **(self.get("run_options") or {})
            )
        finally:
            store.delete(store.get_train_data_path(run_id))
            store.delete(store.get_val_data_path(run_id))
        trained: Trained = results[0]
        outputs = self.get("output_cols") or [f"{name}__output" for name in self.get("label_cols")]
        if len(outputs) != len(trained.widths):
            raise ValueError(
                f"the model has {len(trained.widths)} outputs, and {len(outputs)} columns for "
                f"them: {', '.join(outputs)}"
            )
        return HoroscaleModel(self, trained, run_id, tuple(outputs))

    def _split(self, frame: DataFrame) -> tuple[DataFrame, DataFrame | None]:
        """Return the training rows, and the validation rows."""
        chosen = self.get("validation")
        if chosen is None:
            return frame, None
        if isinstance(chosen, str):
            held_out = functions.col(f"`{chosen}`").cast("boolean")
            return frame.filter(~held_out), frame.filter(held_out)
        if not 0.0 < chosen < 1.0:
            raise ValueError(f"validation: expected a part between 0 and 1, not {chosen}")
        train, validation = frame.randomSplit([1.0 - chosen, chosen], self.get("random_seed"))
        return train, validation

    def _write(self, frame: DataFrame, path: str, size: int) -> parquet.DataFiles:
        columns = [*self.get("feature_cols"), *self.get("label_cols")]
        parquet.check_columns(frame, columns)
        if self.get("shuffle"):
            order = functions.rand(self.get("random_seed"))
            frame = frame.select(*columns, order.alias("_order"))
            frame = frame.repartitionByRange(size, "_order").sortWithinPartitions("_order")
        data = parquet.write(frame, columns, self.get("store"), path)
        if data.total < size:
            raise parquet.DataError(f"{data.total} rows are too few for {size} ranks")
        return data


class HoroscaleModel(Model):  # type: ignore[misc]
    """A trained model as a Transformer: transform() adds columns with its predictions.

    An output with one number per row becomes a column of doubles, a wider one a column of vectors.

    Attributes:
        history: losses and metrics: lists of epochs by name. Those of validation begin with val_.
        run_id: the name of the run's folder in the store, which contains its last checkpoint.
    """

    def __init__(
        self, estimator: HoroscaleEstimator, trained: Trained, run_id: str, outputs: tuple[str, ...]
    ) -> None:
        super().__init__()
        self.history = trained.history
        self.run_id = run_id
        self._trained = trained
        self._outputs = outputs
        self._features = tuple(estimator.get("feature_cols"))
        self._shapes = _shapes(estimator.get("input_shapes"))
        self._predictor = estimator._predictor(trained.model)

    def getModel(self) -> Any:  # noqa: N802 (pyspark.ml's style)
        """Return the framework's model."""
        return self._predictor().model

    def _transform(self, dataset: DataFrame) -> DataFrame:
        from pyspark.ml.functions import array_to_vector

        parquet.check_columns(dataset, self._features)
        columns = [parquet.plain_column(dataset, name) for name in self._features]
        predictions = _prediction(self._predictor, self._shapes)(*columns)
        begin = 1  # offset of the first output
        for name, width in zip(self._outputs, self._trained.widths, strict=True):
            own = functions.slice(predictions, begin, width)
            column = own.getItem(0) if width == 1 else array_to_vector(own)
            dataset = dataset.withColumn(name, column)
            begin += width
        return dataset


def _prediction(predictor: Callable[[], Predictor], shapes: Sequence[Sequence[int]] | None) -> Any:
    """Return a Spark function from the inputs to the concatenated outputs, as an array."""
    import pandas as pd

    def predict(batches: Any) -> Iterator[Any]:
        predict_rows = predictor()
        for batch in batches:
            series = batch if isinstance(batch, tuple) else (batch,)
            arrays = [_rows(one) for one in series]
            outputs = predict_rows(as_inputs(arrays, shapes))
            flat = [np.asarray(one, np.float64).reshape(len(one), -1) for one in outputs]
            yield pd.Series(list(np.concatenate(flat, axis=1)))

    # Spark determines the kind of function from the annotations, which must not be strings here.
    predict.__annotations__ = {
        "batches": Iterator[tuple[pd.Series, ...]],
        "return": Iterator[pd.Series],
    }
    return functions.pandas_udf(predict, "array<double>")


def _rows(series: Any) -> Array:
    values = series.to_numpy()
    return np.stack([np.asarray(one) for one in values]) if values.dtype == object else values


def _shapes(given: Any) -> tuple[tuple[int, ...], ...] | None:
    """Return shapes without the batch dimension; Horovod's have a leading -1 for it."""
    if given is None:
        return None
    return tuple(tuple(one[1:] if one and one[0] == -1 else one) for one in given)
