"""TorchEstimator: trains a PyTorch model as an estimator of pyspark.ml."""

from __future__ import annotations

import functools
import io
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import cloudpickle
import numpy as np

from horoscale.spark import parquet
from horoscale.spark.estimator import Array, HoroscaleEstimator, Trained, Training

__all__ = ["TorchEstimator"]


class TorchEstimator(HoroscaleEstimator):
    """Trains a PyTorch model on the rows of a data frame: `fit(frame)` returns a Transformer.

    Each rank reads its part of the rows, which it keeps in memory. The gradients of a step are
    those of the mean over the rows of all ranks, even if ranks have different numbers of rows.

    Args:
        model: a module, called with one tensor for each of `feature_cols`: float32, of shape
            (batch, *shape of the column's values), or as in `input_shapes`.
        optimizer: a torch optimizer of the model's parameters.
        loss: a function of an output and its labels that returns the mean over the batch, or one
            for each output. Labels are int64 if the column has integers, float32 otherwise.
        metrics: functions, by name, of the outputs and the labels that return a mean, too.
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
        model, optimizer, loss = (self.get(name) for name in ("model", "optimizer", "loss"))
        if optimizer is None or loss is None:
            raise TypeError("TorchEstimator needs optimizer and loss")
        losses = tuple(loss) if isinstance(loss, (list, tuple)) else (loss,)
        # Pickled together, so that the optimizer still refers to the model's parameters.
        return bytes(cloudpickle.dumps((model, optimizer, losses, self.get("metrics") or {})))

    def _trainer(self) -> Callable[[Training], Trained]:
        return train

    def _predictor(self, model: bytes) -> Callable[[], _Predictor]:
        return functools.partial(_Predictor, cloudpickle.dumps(self.get("model")), model)


class _Predictor:
    """A model for predictions, loaded from its pickle and its weights."""

    def __init__(self, pickled: bytes, weights: bytes) -> None:
        import torch

        self.model = cloudpickle.loads(pickled)
        self.model.load_state_dict(torch.load(io.BytesIO(weights), weights_only=True))
        self.model.eval()

    def __call__(self, inputs: list[Array]) -> list[Array]:
        import torch

        with torch.no_grad():
            outputs = _as_tuple(self.model(*map(torch.from_numpy, inputs)))
        return [one.numpy() for one in outputs]


def train(training: Training) -> Trained:
    """Train on this rank, before hvd.init() was called."""
    import torch

    import horoscale.torch as hvd

    hvd.init()
    torch.manual_seed(training.seed)
    model, optimizer, losses, metrics = cloudpickle.loads(training.model)
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", hvd.local_rank() % torch.cuda.device_count())
        model.to(device)
    wrapped = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(wrapped, root_rank=0)
    measure = _Measure(losses, metrics)
    own = _Rows(training, training.train, device, hvd.rank(), hvd.size())
    held_out = None
    if training.validation is not None:
        held_out = _Rows(training, training.validation, device, hvd.rank(), hvd.size())

    history: dict[str, list[float]] = {}
    widths: tuple[int, ...] = ()
    for epoch in range(training.epochs):
        model.train()
        sums = torch.zeros(len(measure.names), dtype=torch.float64)
        for inputs, labels, weight in own.batches(epoch if training.shuffle else None):
            wrapped.zero_grad()
            outputs = _as_tuple(model(*inputs))
            widths = tuple(math.prod(one.shape[1:]) for one in outputs)
            loss = measure.loss(outputs, labels)
            # Makes the average over the ranks the mean over the step's rows.
            (loss * weight * hvd.size() if weight else loss * 0.0).backward()
            wrapped.step()
            if weight:
                sums += measure.sums(loss, outputs, labels)
        _note(history, "", measure.names, sums, training.train.total)
        if held_out is not None:
            model.eval()
            sums = torch.zeros(len(measure.names), dtype=torch.float64)
            with torch.no_grad():
                for inputs, labels, weight in held_out.batches(None):
                    if weight:
                        outputs = _as_tuple(model(*inputs))
                        sums += measure.sums(measure.loss(outputs, labels), outputs, labels)
            _note(history, "val_", measure.names, sums, held_out.total)
        if hvd.rank() == 0:
            training.store.write(training.checkpoint, _weights(model))
            if training.verbose:
                told = ", ".join(f"{name} {values[-1]:.4f}" for name, values in history.items())
                print(f"epoch {epoch + 1} of {training.epochs}: {told}", flush=True)
    weights = _weights(model) if hvd.rank() == 0 else b""
    hvd.shutdown()
    return Trained(weights, history, widths)


class _Measure:
    """The loss and the metrics of a batch, as sums over its rows."""

    def __init__(self, losses: Sequence[Callable[..., Any]], metrics: Any) -> None:
        self._losses = losses
        self._metrics = dict(metrics)
        self.names = ("loss", *self._metrics)

    def loss(self, outputs: Sequence[Any], labels: Sequence[Any]) -> Any:
        if not len(outputs) == len(labels) == len(self._losses):
            raise ValueError(
                f"the model has {len(outputs)} outputs, for {len(labels)} columns of labels and "
                f"{len(self._losses)} losses"
            )
        pairs = zip(self._losses, outputs, labels, strict=True)
        return sum(loss(output, label) for loss, output, label in pairs)

    def sums(self, loss: Any, outputs: Sequence[Any], labels: Sequence[Any]) -> Any:
        import torch

        rows = len(labels[0])
        with torch.no_grad():
            metrics = [metric(*outputs, *labels) for metric in self._metrics.values()]
            means = [torch.as_tensor(one).detach().double() for one in (loss, *metrics)]
            return torch.stack([mean.cpu() * rows for mean in means])


class _Rows:
    """A rank's part of the rows, in batches; all ranks have equal numbers of batches."""

    def __init__(
        self, training: Training, data: parquet.DataFiles, device: Any, rank: int, size: int
    ) -> None:
        import torch

        self.total = data.total
        self._batch_size, self._seed, self._rank = training.batch_size, training.seed, rank
        self._counts = [len(parquet.part(one, size, data.total)) for one in range(size)]
        inputs, labels = training.read(data, parquet.part(rank, size, data.total))
        self._inputs = [torch.from_numpy(one).to(device) for one in inputs]
        self._labels = [torch.from_numpy(_label(one)).to(device) for one in labels]

    def batches(self, epoch: int | None) -> Iterator[tuple[list[Any], list[Any], float]]:
        """Yield inputs, labels and the weight for this rank's rows of a step; shuffled per epoch.

        If this rank has no rows left, it gets one with weight 0, to take part in the step. With
        None as the epoch, rows are not shuffled.
        """
        import torch

        count = self._counts[self._rank]
        order = torch.arange(count)
        if epoch is not None:
            generator = torch.Generator().manual_seed(self._seed * 1_000_003 + epoch)
            order = torch.randperm(count, generator=generator)
        for begin in range(0, max(self._counts), self._batch_size):
            rows = order[begin : begin + self._batch_size]
            everybody = sum(min(max(0, one - begin), self._batch_size) for one in self._counts)
            weight = len(rows) / everybody
            if not len(rows):
                rows = order[:1]
            yield [one[rows] for one in self._inputs], [one[rows] for one in self._labels], weight


def _label(array: Array) -> Array:
    return array.astype(np.int64 if array.dtype.kind in "iub" else np.float32)


def _note(
    history: dict[str, list[float]], prefix: str, names: Sequence[str], sums: Any, total: int
) -> None:
    """Append the means over the rows of all ranks to the history."""
    import horoscale.torch as hvd

    means = hvd.allreduce(sums, op=hvd.Sum, name=f"{prefix}means") / total
    for name, mean in zip(names, means.tolist(), strict=True):
        history.setdefault(prefix + name, []).append(mean)


def _weights(model: Any) -> bytes:
    import torch

    buffer = io.BytesIO()
    torch.save({name: value.cpu() for name, value in model.state_dict().items()}, buffer)
    return buffer.getvalue()


def _as_tuple(outputs: Any) -> tuple[Any, ...]:
    return tuple(outputs) if isinstance(outputs, (tuple, list)) else (outputs,)
