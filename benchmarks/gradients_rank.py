"""One rank that averages the gradients of a model, for benchmarks/gradients.py.

The benchmark starts it and sends it measurement orders.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable

import torch
from orders import serve
from torch import nn

WARM_UP = 3

Shapes = list[tuple[int, ...]]


def resnet50() -> Shapes:
    """He et al., Deep Residual Learning (2016): 161 tensors, 25,557,032 elements."""

    def convolution(inputs: int, outputs: int, width: int) -> Shapes:
        return [(outputs, inputs, width, width), (outputs,), (outputs,)]  # with its batch norm

    shapes = convolution(3, 64, 7)
    inputs = 64
    for blocks, inner in ((3, 64), (4, 128), (6, 256), (3, 512)):
        for block in range(blocks):
            outputs = 4 * inner
            shapes += convolution(inputs, inner, 1) + convolution(inner, inner, 3)
            shapes += convolution(inner, outputs, 1)
            if block == 0:
                shapes += convolution(inputs, outputs, 1)
            inputs = outputs
    return [*shapes, (1000, 2048), (1000,)]


def vgg16() -> Shapes:
    """Simonyan and Zisserman (2015), configuration D: 32 tensors, 138,357,544 elements."""
    shapes: Shapes = []
    inputs = 3
    for outputs in (64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512):
        shapes += [(outputs, inputs, 3, 3), (outputs,)]
        inputs = outputs
    for inputs, outputs in ((25088, 4096), (4096, 4096), (4096, 1000)):
        shapes += [(outputs, inputs), (outputs,)]
    return shapes


def bert_base() -> Shapes:
    """Devlin et al. (2019), uncased: 199 tensors, 109,482,240 elements."""
    width, inner = 768, 3072
    norm: Shapes = [(width,), (width,)]
    shapes: Shapes = [(30522, width), (512, width), (2, width), *norm]
    for _ in range(12):
        shapes += 4 * [(width, width), (width,)] + norm
        shapes += [(inner, width), (inner,), (width, inner), (width,), *norm]
    return [*shapes, (width, width), (width,)]


MODELS: dict[str, tuple[Callable[[], Shapes], int]] = {
    "resnet50": (resnet50, 25_557_032),
    "vgg16": (vgg16, 138_357_544),
    "bert-base": (bert_base, 109_482_240),
}


class Use(torch.autograd.Function):
    """A zero whose gradient is one everywhere; neither reads the parameter."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, parameter: torch.Tensor) -> torch.Tensor:
        ctx.shape = parameter.shape
        return parameter.new_zeros(())

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, grad: torch.Tensor) -> torch.Tensor:
        return grad.expand(ctx.shape)


class Model(nn.Module):
    """The parameters of a model, and a loss that depends on each."""

    def __init__(self, name: str) -> None:
        super().__init__()
        shapes, elements = MODELS[name]
        self.parts = nn.ParameterList(torch.zeros(shape) for shape in shapes())
        if sum(part.numel() for part in self.parts) != elements:
            raise AssertionError(f"{name} has {elements} elements")

    def forward(self) -> torch.Tensor:
        return torch.stack([Use.apply(part) for part in self.parts]).sum()


Step = Callable[[], object]


def ddp() -> Callable[[str], tuple[Model, Step]]:
    """PyTorch's DistributedDataParallel over Gloo."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    where = f"file://{os.environ['JOB_FILE']}"
    torch.distributed.init_process_group("gloo", where, rank=rank, world_size=size)

    def prepare(name: str) -> tuple[Model, Step]:
        model = Model(name)
        parallel = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
        return model, lambda: parallel().backward()

    return prepare


def horoscale() -> Callable[[str], tuple[Model, Step]]:
    """DistributedOptimizer, without its step."""
    import horoscale.torch as hvd

    hvd.init()

    def prepare(name: str) -> tuple[Model, Step]:
        model = Model(name)
        sgd = torch.optim.SGD(model.parameters(), lr=1e-3)
        optimizer = hvd.DistributedOptimizer(sgd, model.named_parameters())

        def step() -> None:
            model().backward()
            optimizer.synchronize()

        return model, step

    return prepare


IMPLEMENTATIONS = {"ddp": ddp, "horoscale": horoscale}


def verify(model: Model) -> None:
    """Check that the average of ones is one."""
    for part in model.parts:
        if not torch.equal(part.grad, torch.ones_like(part)):
            raise AssertionError(f"wrong average of a gradient of {tuple(part.shape)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("implementation", choices=IMPLEMENTATIONS)
    parser.add_argument("socket", help="address of the benchmark")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    prepare = IMPLEMENTATIONS[arguments.implementation]()
    prepared: dict[str, tuple[Model, Step]] = {}

    def carry_out(name: str, iterations: int) -> list[float]:
        if name not in prepared:
            prepared.clear()  # one model at a time
            prepared[name] = prepare(name)
        model, step = prepared[name]
        seconds = []
        warm_up = min(WARM_UP, iterations)
        for index in range(warm_up + iterations):
            model.zero_grad()
            start = time.perf_counter()
            step()
            if index >= warm_up:
                seconds.append(time.perf_counter() - start)
        verify(model)
        return seconds

    serve(arguments.socket, carry_out)


if __name__ == "__main__":
    main()
