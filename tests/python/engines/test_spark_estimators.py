"""Estimators in pipelines of real Spark, and their example."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import test_spark
from support.examples import EXAMPLES

pytestmark = test_spark.pytestmark_longer
spark = test_spark.spark


@pytest.fixture
def frame(spark: Any) -> Any:
    """y = 3 a - 2 b + 0.5 with (a, b) as a vector, and a column that marks validation rows."""
    from pyspark.ml.functions import array_to_vector

    numbers = np.random.default_rng(1).uniform(-1, 1, (203, 2))
    rows = [
        ([float(a), float(b)], float(3 * a - 2 * b + 0.5), i % 5 == 0)
        for i, (a, b) in enumerate(numbers)
    ]
    plain = spark.createDataFrame(rows, "x array<double>, y double, held boolean")
    return plain.withColumn("x", array_to_vector("x")).repartition(3)


def linear() -> dict[str, Any]:
    import torch

    torch.manual_seed(1)
    model = torch.nn.Linear(2, 1)
    return {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.2),
        "loss": lambda output, label: torch.nn.functional.mse_loss(output[:, 0], label),
    }


def test_a_model_is_a_stage_of_a_pipeline(spark: Any, frame: Any, tmp_path: Path) -> None:
    from pyspark.ml import Pipeline
    from pyspark.ml.evaluation import RegressionEvaluator
    from pyspark.ml.feature import StandardScaler

    from horoscale.spark import Store
    from horoscale.spark.torch import TorchEstimator

    store = Store.create(tmp_path / "store")
    estimator = TorchEstimator(
        **linear(),
        metrics={"error": lambda output, label: (output[:, 0] - label).abs().mean()},
        store=store,
        feature_cols=["scaled"],
        label_cols=["y"],
        output_cols=["prediction"],
        validation="held",
        num_proc=2,
        batch_size=16,
        epochs=5,
        run_id="linear",
    )
    scaler = StandardScaler(inputCol="x", outputCol="scaled", withMean=True)
    fitted = Pipeline(stages=[scaler, estimator]).fit(frame)
    predicted = fitted.transform(frame)
    assert predicted.columns == ["x", "y", "held", "scaled", "prediction"]
    assert RegressionEvaluator(labelCol="y").evaluate(predicted) < 0.1
    history = fitted.stages[1].history
    assert set(history) == {"loss", "error", "val_loss", "val_error"}
    assert all(len(values) == 5 for values in history.values())
    assert history["val_loss"][-1] < history["val_loss"][0]
    # The data has been deleted; the last checkpoint remains.
    assert [path.name for path in (tmp_path / "store/runs/linear").iterdir()] == ["checkpoint"]


def test_a_keras_model_too(spark: Any, frame: Any, tmp_path: Path) -> None:
    os.environ.setdefault("KERAS_BACKEND", "torch")
    import keras

    from horoscale.spark import Store
    from horoscale.spark.keras import KerasEstimator

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    fitted = KerasEstimator(
        model=model,
        optimizer=keras.optimizers.SGD(0.2),
        loss="mse",
        store=Store.create(tmp_path),
        feature_cols=["x"],
        label_cols=["y"],
        num_proc=2,
        batch_size=16,
        epochs=6,
        verbose=0,
    ).fit(frame)
    assert fitted.history["loss"][-1] < 0.05
    rows = fitted.transform(frame).select("y", "y__output").collect()
    assert np.mean([abs(row["y"] - row["y__output"]) for row in rows]) < 0.3


def test_mistakes_are_told_before_anything_runs(spark: Any, frame: Any, tmp_path: Path) -> None:
    from horoscale.spark import Store, StoreError
    from horoscale.spark.context import SparkError
    from horoscale.spark.estimator import HoroscaleEstimator
    from horoscale.spark.parquet import DataError
    from horoscale.spark.torch import TorchEstimator

    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="can't be written"):
        Store.create(tmp_path / "file" / "store")
    with pytest.raises(StoreError, match="nosuch"):
        Store.create("nosuch://bucket")
    given = {**linear(), "store": Store.create(tmp_path), "label_cols": ["y"]}
    with pytest.raises(DataError, match="has no column 'z'; it has x, y, held"):
        TorchEstimator(**given, feature_cols=["z"]).fit(frame)
    with pytest.raises(TypeError, match="has no parameter epoch;"):
        TorchEstimator(**given, feature_cols=["x"], epoch=1)
    with pytest.raises(TypeError, match="abstract"):
        HoroscaleEstimator(**given, feature_cols=["x"])
    with pytest.raises(DataError, match="3 rows are too few for 4 ranks"):
        TorchEstimator(**given, feature_cols=["x"], num_proc=4).fit(frame.limit(3))
    (tmp_path / "empty").mkdir()
    given["store"] = Store.create(tmp_path / "empty")
    with pytest.raises(SparkError, match="5 ranks need 5 slots"):
        TorchEstimator(**given, feature_cols=["x"], num_proc=5).fit(frame)
    assert list((tmp_path / "empty").iterdir()) == []


def test_the_example_reaches_its_accuracy(spark: Any) -> None:
    spark.stop()  # the example needs its resources
    example = EXAMPLES / "spark_digits.py"
    master = "local-cluster[2,2,1024]"
    ended = subprocess.run(
        [sys.executable, example, "--master", master, "--num-proc", "4", "--epochs", "8"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    accuracy = re.search(r"4 ranks: held-out accuracy ([\d.]+)", ended.stdout)
    assert accuracy is not None
    assert float(accuracy[1]) > 0.93
