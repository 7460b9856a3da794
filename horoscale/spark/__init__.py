"""Jobs on Spark: runs functions on executors, and provides estimators for pyspark.ml's pipelines.

    from pyspark.sql import SparkSession
    import horoscale.spark

    spark = SparkSession.builder.getOrCreate()
    accuracies = horoscale.spark.run(train, num_proc=4)

TorchEstimator and KerasEstimator are in horoscale.spark.torch and horoscale.spark.keras.
"""

from __future__ import annotations

from horoscale.spark.job import run, run_elastic
from horoscale.spark.store import Store, StoreError

__all__ = ["Store", "StoreError", "run", "run_elastic"]
