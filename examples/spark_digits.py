"""Trains a small network on scikit-learn's handwritten digits, as a stage of a Spark pipeline.

    python examples/spark_digits.py --master 'local-cluster[2,2,1024]' --num-proc 4

Spark assembles and scales the pixels, and a TorchEstimator trains on the executors. The predictions
are a regular column, and Spark's evaluator computes the accuracy on held-out digits.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile

import torch
from pyspark.ml import Pipeline
from pyspark.ml.evaluation import MulticlassClassificationEvaluator
from pyspark.ml.feature import MinMaxScaler
from pyspark.ml.functions import array_to_vector, vector_to_array
from pyspark.sql import DataFrame, SparkSession, functions
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from horoscale.spark import Store
from horoscale.spark.torch import TorchEstimator


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--master", default="local[2]", help="Spark master (default %(default)s)")
    parser.add_argument("--num-proc", type=int, default=2, help="number of ranks")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--store", help="folder that all machines can access")
    return parser.parse_args()


def load_frames(spark: SparkSession) -> tuple[DataFrame, DataFrame]:
    """Return training and held-out digits, with the columns pixels and label."""
    images, labels = load_digits(return_X_y=True)
    parts = train_test_split(images, labels, test_size=0.2, random_state=0, stratify=labels)
    train_images, test_images, train_labels, test_labels = (part.tolist() for part in parts)

    def frame(images: list[list[float]], labels: list[int]) -> DataFrame:
        rows = list(zip(images, labels, strict=True))
        plain = spark.createDataFrame(rows, "pixels array<double>, label long")
        return plain.withColumn("pixels", array_to_vector("pixels"))

    return frame(train_images, train_labels), frame(test_images, test_labels)


def make_model() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 32, kernel_size=3, padding=1),
        torch.nn.ReLU(),
        torch.nn.Conv2d(32, 64, kernel_size=3, padding=1),
        torch.nn.ReLU(),
        torch.nn.Conv2d(64, 64, kernel_size=3, padding=1),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(64 * 4 * 4, 128),
        torch.nn.ReLU(),
        torch.nn.Linear(128, 10),
    )


def main() -> None:
    arguments = parse_arguments()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = SparkSession.builder.master(arguments.master).getOrCreate()
    train, test = load_frames(spark)
    torch.manual_seed(1)
    model = make_model()
    with tempfile.TemporaryDirectory() as folder:
        estimator = TorchEstimator(
            store=Store.create(arguments.store or folder),
            model=model,
            optimizer=torch.optim.Adam(model.parameters(), lr=0.002),
            loss=torch.nn.CrossEntropyLoss(),
            feature_cols=["scaled"],
            label_cols=["label"],
            output_cols=["logits"],
            input_shapes=[[1, 8, 8]],
            num_proc=arguments.num_proc,
            batch_size=192 // arguments.num_proc,
            epochs=arguments.epochs,
        )
        scaler = MinMaxScaler(inputCol="pixels", outputCol="scaled")
        predicted = Pipeline(stages=[scaler, estimator]).fit(train).transform(test)
        best = functions.array_max(vector_to_array("logits"))
        predicted = predicted.withColumn(
            "prediction",
            functions.array_position(vector_to_array("logits"), best).cast("double") - 1,
        )
        evaluator = MulticlassClassificationEvaluator(metricName="accuracy")
        print(f"{arguments.num_proc} ranks: held-out accuracy {evaluator.evaluate(predicted):.4f}")
    spark.stop()


if __name__ == "__main__":
    main()
