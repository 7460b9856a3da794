"""Measures the time to the first step: horoscale.spark.run and pyspark's TorchDistributor.

    python benchmarks/spark_start.py --master 'local-cluster[2,2,1024]' --ranks 4 --rounds 5

Both run the same function alternately, in one Spark session: a step of a small model, whose
gradients are averaged by the respective library. It prints the seconds from the call to the end of
that step on the last rank, by the clock of this machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time


def horoscale_step() -> float:
    import torch

    import horoscale.torch as hvd

    hvd.init()
    model = torch.nn.Linear(64, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    model(torch.ones(8, 64)).sum().backward()
    optimizer.step()
    return time.time()


def torch_step() -> float:
    import torch
    import torch.distributed

    torch.distributed.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(8, 64)).sum().backward()
    optimizer.step()
    ended = torch.tensor([time.time()], dtype=torch.float64)
    torch.distributed.all_reduce(ended, op=torch.distributed.ReduceOp.MAX)
    torch.distributed.destroy_process_group()
    return ended.item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--master", default="local-cluster[2,2,1024]")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from pyspark.ml.torch.distributor import TorchDistributor
    from pyspark.sql import SparkSession

    import horoscale.spark

    spark = (
        SparkSession.builder.master(arguments.master)
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.executorEnv.OMP_NUM_THREADS", "1")
        .getOrCreate()
    )
    spark.sparkContext.parallelize(range(64), 8).count()  # wait for its executors
    distributor = TorchDistributor(num_processes=arguments.ranks, local_mode=False, use_gpu=False)
    calls = {
        "horoscale.spark.run": lambda: max(
            horoscale.spark.run(horoscale_step, num_proc=arguments.ranks)
        ),
        "TorchDistributor": lambda: distributor.run(torch_step),
    }
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(arguments.rounds):  # alternately, so that both run under the same load
        for name, call in calls.items():
            began = time.time()
            seconds[name].append(call() - began)
            print(f"{name}: {seconds[name][-1]:.2f} s", flush=True)
    for name, values in seconds.items():
        low, high = min(values), max(values)
        print(f"{name}: median {statistics.median(values):.2f} s ({low:.2f} to {high:.2f})")
    print(json.dumps(seconds))
    spark.stop()


if __name__ == "__main__":
    main()
