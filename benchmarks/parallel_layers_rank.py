"""One rank of layers that are divided in one way, for benchmarks/parallel_layers.py."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from orders import serve
from torch import nn
from torch.nn import functional

TOKENS, WARM_UP = 512, 2
Call = Callable[[torch.Tensor], torch.Tensor]


def same(x: torch.Tensor) -> torch.Tensor:
    return x


class MLP(nn.Module):
    """Two linear layers, whole, or divided between `enter` and `leave`."""

    def __init__(self, width: int, ranks: int, enter: Call = same, leave: Call = same) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width // ranks)
        self.down = nn.Linear(4 * width // ranks, width)
        self.enter, self.leave = enter, leave

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.leave(self.down(functional.gelu(self.up(self.enter(x)))))


class Attention(nn.Module):
    """Causal attention, whole or divided by heads."""

    def __init__(
        self, width: int, heads: int, ranks: int, enter: Call = same, leave: Call = same
    ) -> None:
        super().__init__()
        self.size = width // heads
        self.qkv = nn.Linear(width, 3 * width // ranks)
        self.out = nn.Linear(width // ranks, width)
        self.enter, self.leave = enter, leave

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            one.unflatten(-1, (-1, self.size)).transpose(1, 2)
            for one in self.qkv(self.enter(x)).chunk(3, -1)
        )
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.leave(self.out(y.transpose(1, 2).flatten(2)))


class Block(nn.Module):
    """Both halves of a transformer layer."""

    def __init__(self, width: int, attention: nn.Module, mlp: nn.Module) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.attention, self.mlp = attention, mlp

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norms[0](x))
        return x + self.mlp(self.norms[1](x))


class _Copy(torch.autograd.Function):
    """Its gradient is the sum of the ranks'."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
        return x

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        gradient = gradient.contiguous()
        dist.all_reduce(gradient)
        return gradient


class _Reduce(torch.autograd.Function):
    """The sum of the ranks' values."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


def whole(case: str, width: int, heads: int) -> nn.Module:
    mlp = MLP(width, 1)
    return mlp if case == "mlp" else Block(width, Attention(width, heads, 1), mlp)


def by_hand(case: str, width: int, heads: int) -> nn.Module:
    """The way of tutorials: two functions, and layers of a rank's size."""
    ranks, calls = dist.get_world_size(), (_Copy.apply, _Reduce.apply)
    mlp = MLP(width, ranks, *calls)
    return mlp if case == "mlp" else Block(width, Attention(width, heads, ranks, *calls), mlp)


def dtensor(case: str, width: int, heads: int) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    prefix = "" if case == "mlp" else "mlp."
    plan = {f"{prefix}up": ColwiseParallel(), f"{prefix}down": RowwiseParallel()}
    if case == "block":
        plan |= {"attention.qkv": ColwiseParallel(), "attention.out": RowwiseParallel()}
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return parallelize_module(whole(case, width, heads), mesh, plan)


def ours(case: str, width: int, heads: int) -> nn.Module:
    import horoscale.torch as hvd
    import horoscale.torch.parallel as par

    axis = par.Axis.of(hvd.global_process_set, "tp")
    mlp = par.ParallelMLP(width, 4 * width, axis)
    return mlp if case == "mlp" else Block(width, par.ParallelAttention(width, heads, axis), mlp)


WAYS = {"one": whole, "dtensor": dtensor, "hand": by_hand, "ours": ours}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("job", choices=("one", "gloo", "horoscale"))
    parser.add_argument("socket", help="address of the benchmark")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.job == "gloo":
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        where = f"file://{os.environ['JOB_FILE']}"
        dist.init_process_group("gloo", where, rank=rank, world_size=size)
    elif arguments.job == "horoscale":
        import horoscale.torch as hvd

        hvd.init()

    def measure(way: str, case: str, width: int, steps: int) -> list[float]:
        """Return the CPU seconds of forward and backward passes, of all threads of this rank."""
        torch.manual_seed(0)
        model = WAYS[way](case, width, width // 64)
        x = torch.randn(2, TOKENS // 2, width, requires_grad=True)
        seconds = []
        for _ in range(WARM_UP + steps):
            began = time.process_time()
            model(x).sum().backward()
            seconds.append(time.process_time() - began)
        return seconds[WARM_UP:]

    serve(arguments.socket, measure)


if __name__ == "__main__":
    main()
