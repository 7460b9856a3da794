"""Measures the time to the first training step on Ray, compared with Ray Train's TorchTrainer.

    python benchmarks/ray_start.py --rounds 5 --ranks 2

The implementations alternate in every round, on one cluster on this machine, with
horoscalerun beside it. Each trains the same small network for a few steps; TorchTrainer uses
Gloo. It prints the median and the range of the seconds until all ranks have finished their first
step, and of a later step.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

# Several seconds: Ray starts further processes during the first steps.
WARM, STEPS = 50, 2000


def loop(average: Callable, model, optimizer) -> tuple[float, float]:
    """The time at which the first step ended, and the seconds of a later one."""
    import torch

    data, target = torch.randn(32, 256), torch.randint(0, 10, (32,))

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(data), target).backward()
        optimizer.step()

    step()
    average()
    first = time.time()
    for _ in range(WARM):
        step()
    began = time.perf_counter()
    for _ in range(STEPS):
        step()
    return first, (time.perf_counter() - began) / STEPS


def network():
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(1)
    layers = [torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512)]
    return torch.nn.Sequential(*layers, torch.nn.ReLU(), torch.nn.Linear(512, 10))


def by_horoscale() -> tuple[float, float]:
    import torch

    import horoscale.torch as hvd

    hvd.init()
    model = network()
    plain = torch.optim.SGD(model.parameters(), 0.01)
    optimizer = hvd.DistributedOptimizer(plain, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    found = loop(hvd.barrier, model, optimizer)
    hvd.shutdown()
    return found


def by_torch() -> tuple[float, float]:
    import torch

    model = torch.nn.parallel.DistributedDataParallel(network())
    return loop(torch.distributed.barrier, model, torch.optim.SGD(model.parameters(), 0.01))


def with_trainer(trainer_class, train: Callable, ranks: int, **arguments) -> tuple[float, float]:
    import ray.train

    def reporting() -> None:
        found = json.dumps(train())
        # Ray Train keeps metrics only together with checkpoints.
        Path(storage, f"rank{ray.train.get_context().get_world_rank()}").write_text(found)

    with tempfile.TemporaryDirectory() as storage:
        began = time.time()
        trainer_class(
            reporting,
            scaling_config=ray.train.ScalingConfig(num_workers=ranks),
            run_config=ray.train.RunConfig(storage_path=storage),
            **arguments,
        ).fit()
        found = [json.loads(file.read_text()) for file in Path(storage).glob("rank*")]
    return max(first for first, _ in found) - began, statistics.median(step for _, step in found)


def with_executor(ranks: int) -> tuple[float, float]:
    from horoscale.ray import RayExecutor

    began = time.time()
    executor = RayExecutor(num_workers=ranks)
    executor.start(extra_env_vars={"OMP_NUM_THREADS": "1"})
    found = executor.run(by_horoscale)
    executor.shutdown()
    return max(first for first, _ in found) - began, statistics.median(step for _, step in found)


def with_launcher(ranks: int) -> tuple[float, float]:
    import horoscale

    began = time.time()
    found = horoscale.run(by_horoscale, np=ranks)
    return max(first for first, _ in found) - began, statistics.median(step for _, step in found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=2)
    arguments = parser.parse_args()
    import ray
    from ray.train.torch import TorchConfig, TorchTrainer

    from horoscale.ray.train import HoroscaleTrainer

    os.environ.setdefault("OMP_NUM_THREADS", "1")
    ray.init(num_cpus=arguments.ranks + 1, include_dashboard=False, log_to_driver=False)
    ranks = arguments.ranks
    ways: dict[str, Callable[[], tuple[float, float]]] = {
        "RayExecutor": lambda: with_executor(ranks),
        "Ray Train, HoroscaleTrainer": lambda: with_trainer(HoroscaleTrainer, by_horoscale, ranks),
        "Ray Train, TorchTrainer (Gloo)": lambda: with_trainer(
            TorchTrainer, by_torch, ranks, torch_config=TorchConfig(backend="gloo")
        ),
        "horoscalerun": lambda: with_launcher(ranks),
    }
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for _ in range(arguments.rounds):
        for name, way in ways.items():
            found[name].append(way())
    for name, pairs in found.items():
        firsts, steps = zip(*pairs, strict=True)
        print(
            f"{name:32} first step after {statistics.median(firsts):6.2f} s "
            f"({min(firsts):.2f} to {max(firsts):.2f}), then {1e3 * statistics.median(steps):6.2f} "
            f"ms a step ({1e3 * min(steps):.2f} to {1e3 * max(steps):.2f})",
            flush=True,
        )
    ray.shutdown()


if __name__ == "__main__":
    main()
