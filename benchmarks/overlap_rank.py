"""One rank of one way of training over a slow network, for benchmarks/overlap.py.

The benchmark starts it and sends it measurement orders.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import training_rank
from orders import serve, times
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn import functional
from training_rank import Make, Task, Trained, alone, ddp, horoscale, plain_step

RECORDED = 5  # steps in a timeline
WARM_UP = 6  # steps, until the size of buckets fits the network
ADAPTS_IN = 30  # steps, until the encodings fit the network as well


def vgg() -> nn.Module:
    """Most of the work is in the first layers and most of the 11 MB of gradients in the last."""
    channels = [3, 32, 32, 64, 64, 128, 128]
    layers: list[nn.Module] = []
    for index, (before, after) in enumerate(pairwise(channels)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU()]
        if index % 2:
            layers.append(nn.MaxPool2d(2))
    dense = [nn.Flatten(), nn.Linear(8192, 256), nn.ReLU(), nn.Linear(256, 512), nn.ReLU()]
    return nn.Sequential(*layers, *dense, nn.Linear(512, 10))


TASKS = {
    "transformer": training_rank.TASKS["transformer"],
    "vgg": Task(vgg, lambda: torch.randn(40, 3, 64, 64)),
}


ADAPTIVE = ("adaptive", "adaptive-6")


class Trainer:
    """One task, trained in one way."""

    def __init__(self, make: Make, task: Task, warm_up: int) -> None:
        self._warm_up = warm_up
        self._model, self._optimizer = make(task)
        self._inputs = task.inputs()
        self._targets = torch.randint(0, 10, (len(self._inputs),))
        self._step = plain_step(self._model, self._optimizer, task)
        self._buffers: list[torch.Tensor] = []

    def measure(self, what: str, iterations: int) -> list[float]:
        """Return the seconds of whole steps, of their forward pass or of their communication."""
        warm_up = min(self._warm_up, 3 * iterations)
        if what == "step":
            return [self._mean_step(iterations, warm_up)]
        calls = {"forward": self._loss, "communication": self._communicate}
        return times(calls[what], iterations, warm_up)

    def record(self, path: Path) -> None:
        """Write a timeline of some steps after measured ones, and the phases of these steps."""
        import horoscale.torch as hvd

        phases = []
        if hvd.rank() == 0:
            hvd.start_timeline(str(path), mark_cycles=True)
        for _ in range(RECORDED):
            moments = [time.monotonic()]
            self._optimizer.zero_grad()
            loss = self._loss()
            moments.append(time.monotonic())
            loss.backward()
            moments.append(time.monotonic())
            self._optimizer.step()
            moments.append(time.monotonic())
            phases += list(zip(("forward", "backward", "step"), pairwise(moments), strict=True))
        hvd.barrier()
        if hvd.rank() == 0:
            hvd.stop_timeline()
            path.with_suffix(".phases").write_text(json.dumps(phases))

    def _mean_step(self, iterations: int, warm_up: int) -> float:
        for _ in range(warm_up):
            self._step()
        list(self._model.parameters())  # finishes an overlapped step
        start = time.perf_counter()
        for _ in range(iterations):
            self._step()
        list(self._model.parameters())
        return (time.perf_counter() - start) / iterations

    def record_choices(self, path: Path, steps: int) -> None:
        """Write the seconds of each step, and the bytes of its gradients by chosen encoding."""
        import horoscale.torch as hvd

        sizes = {f"gradient.{n}": 4 * p.numel() for n, p in self._model.named_parameters()}
        recorded = []
        for _ in range(steps):
            start = time.perf_counter()
            self._step()
            seconds = time.perf_counter() - start
            chosen: dict[str, int] = {}
            for name, one in hvd.metrics()["process_sets"]["0"]["adaptive"].items():
                chosen[one["encoding"]] = chosen.get(one["encoding"], 0) + sizes[name]
            recorded.append({"seconds": seconds, "bytes": chosen})
        if hvd.rank() == 0:
            path.write_text(json.dumps(recorded))

    def _loss(self) -> torch.Tensor:
        return functional.cross_entropy(self._model(self._inputs), self._targets)

    def _communicate(self) -> None:
        """Reduce as many bytes as all gradients have, at once."""
        import horoscale.torch as hvd

        if not self._buffers:
            self._buffers = [hvd.empty_shared(one.shape) for one in self._model.parameters()]
        for handle in [
            hvd.allreduce_async_(b, name=f"all.{i}") for i, b in enumerate(self._buffers)
        ]:
            handle.wait()


def of_matrices(compressor: Any) -> Callable[[str, torch.Tensor], Any]:
    """Compress the embedding as well, which is not compressed by default: DDP's hooks do so."""
    import horoscale.torch as hvd

    return lambda _, parameter: compressor if parameter.dim() > 1 else hvd.Compression.none


def compressed(name: str) -> Callable[[], Make]:
    """DistributedOptimizer with one of hvd.Compression, and overlap across steps if possible."""

    def make() -> Make:
        import horoscale.torch as hvd

        choices = {
            "topk": hvd.Compression.topk(0.01),
            "powersgd": hvd.Compression.powersgd(4),
            "adaptive": hvd.Compression.adaptive(),
            "adaptive-6": hvd.Compression.adaptive(error=6),
        }
        chosen = choices[name] if name in choices else getattr(hvd.Compression, name)
        if name == "powersgd":
            return horoscale(compression=chosen)
        return horoscale(overlap_step=True, compression=of_matrices(chosen))

    return make


def hooked(name: str) -> Callable[[], Make]:
    """DistributedDataParallel with one of its communication hooks; PowerSGD of rank 4."""

    def implementation() -> Make:
        plain = ddp()

        def make(task: Task) -> Trained:
            model, optimizer = plain(task)
            if name == "fp16":
                model.register_comm_hook(None, default_hooks.fp16_compress_hook)
            else:
                state = powerSGD_hook.PowerSGDState(None, 4, start_powerSGD_iter=2)
                model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
            return model, optimizer

        return make

    return implementation


IMPLEMENTATIONS: dict[str, Callable[[], Make]] = {
    "alone": alone,
    "ddp": ddp,
    "fifo": horoscale,
    "priority": lambda: horoscale(overlap_step=True),
    "priority-bf16": compressed("bf16"),
    **{name: compressed(name) for name in ("int8", "int4", "onebit", "topk", "powersgd")},
    **{name: compressed(name) for name in ADAPTIVE},
    **{f"ddp-{name}": hooked(name) for name in ("fp16", "powersgd")},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("implementation", choices=IMPLEMENTATIONS)
    parser.add_argument("socket", help="address of the benchmark")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    make = IMPLEMENTATIONS[arguments.implementation]()
    warm_up = ADAPTS_IN if arguments.implementation in ADAPTIVE else WARM_UP
    trainers: dict[str, Trainer] = {}

    def carry_out(what: str, task: str, detail: Any) -> list[float]:
        if task not in trainers:
            trainers.clear()  # one model at a time
            trainers[task] = Trainer(make, TASKS[task], warm_up)
        if what == "timeline":
            trainers[task].record(Path(detail))
            return [0.0]
        if what == "choices":
            trainers[task].record_choices(Path(detail[0]), detail[1])
            return [0.0]
        return trainers[task].measure(what, detail)

    serve(arguments.socket, carry_out)


if __name__ == "__main__":
    main()
