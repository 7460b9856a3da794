"""torch.compile: collectives are part of graphs, and all our other functions break graphs.

test_on_ranks_compile.py starts these tests on 2 or 3 ranks, and each backend on both. Results are
compared with those of eager calls, which have their own tests.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import nn

import horoscale.torch as hvd
from horoscale.torch import compiled, operators
from horoscale.torch.collectives import Call

Function = Callable[..., Any]
pytestmark = pytest.mark.filterwarnings("default")  # raised by the compiler
AOT_EAGER = pytest.mark.parametrize("backend", ["aot_eager"])


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    # Skips inductor's preparation for its first loop: compiling headers and programs that query the
    # CPU, and building patterns of models that are not used here.
    with torch._inductor.config.patch(
        {"cpp_cache_precompile_headers": False, "cpp.vec_isa_ok": False, "pattern_matcher": False}
    ):
        yield


def own(rows: int, columns: int = 2) -> torch.Tensor:
    random = torch.Generator().manual_seed(hvd.rank())
    return torch.randn(rows, columns, generator=random, dtype=torch.float64)


def in_one_graph(function: Function, backend: str) -> Function:
    return torch.compile(function, backend=backend, fullgraph=True)


def check_equal(result: Any, expected: Any) -> None:
    torch.testing.assert_close(result, expected, rtol=1e-12, atol=1e-12)


# Typical user code. Each result differs between ranks, and has a gradient.


def reduce_(x: torch.Tensor) -> torch.Tensor:
    return hvd.allreduce(x * 2, op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0).square()


def reduce_group(x: torch.Tensor) -> torch.Tensor:
    first, second = hvd.grouped_allreduce([x, x[0].sin()], name="of two")
    return first * second


def reduce_compressed(x: torch.Tensor) -> torch.Tensor:
    return hvd.allreduce(x, compression=hvd.Compression.fp16).square()


def gather_uneven(x: torch.Tensor) -> torch.Tensor:
    return hvd.allgather(x[: 1 + hvd.rank()] * 2).square()


def gather_even(x: torch.Tensor) -> torch.Tensor:
    gathered = hvd.allgather(x)
    torch._check(gathered.shape[0] == hvd.size() * x.shape[0])
    return gathered @ gathered.T


def gather_group(x: torch.Tensor) -> torch.Tensor:
    first, second = hvd.grouped_allgather([x[:1], x[hvd.rank() :]])
    return first.sum() * second.square()


def scatter(x: torch.Tensor) -> torch.Tensor:
    return hvd.reducescatter(x.sin(), op=hvd.Sum).square()


def scatter_group(x: torch.Tensor) -> torch.Tensor:
    first, second = hvd.grouped_reducescatter([x, x[1:] * 2])
    return torch.cat([first, second]).square()


def scatter_unevenly(x: torch.Tensor) -> torch.Tensor:
    splits = [x.shape[0] - hvd.size() + 1] + [1] * (hvd.size() - 1)
    return hvd.reducescatter(x.sin(), op=hvd.Sum, splits=splits).square()


def from_last(x: torch.Tensor) -> torch.Tensor:
    return hvd.broadcast(x * 2, hvd.size() - 1).square()


def exchange_evenly(x: torch.Tensor) -> torch.Tensor:
    return hvd.alltoall(x[: hvd.size()] * 2).square()


def exchange(x: torch.Tensor) -> torch.Tensor:
    result, received = hvd.alltoall(x * 2, [1 + (hvd.rank() == 1)] * hvd.size())
    return result.square() * received.sum()


def exchange_by_tensor(x: torch.Tensor) -> torch.Tensor:
    splits = torch.ones(hvd.size(), dtype=torch.uint8)
    result, received = hvd.alltoall(x, splits)
    assert received.dtype == torch.int32
    return result.square()


COLLECTIVES = [
    reduce_,
    reduce_group,
    reduce_compressed,
    gather_uneven,
    gather_even,
    gather_group,
    scatter,
    scatter_group,
    scatter_unevenly,
    from_last,
    exchange_evenly,
    exchange,
    exchange_by_tensor,
]


def value_and_gradient(function: Function, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    x = x.clone().requires_grad_()
    value = function(x)
    value.sum().backward()
    assert x.grad is not None
    return value.detach(), x.grad


@pytest.mark.parametrize("function", COLLECTIVES, ids=lambda function: function.__name__)
def test_collectives_in_one_graph(function: Function) -> None:
    x = own(2 * hvd.size() + 1)
    in_graph = in_one_graph(function, "eager")
    check_equal(value_and_gradient(in_graph, x), value_and_gradient(function, x))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_all_in_one_graph(backend: str) -> None:
    """Rank 0 isn't compiled: the others' compiled code makes the same calls in the same order.

    Unnamed operations match by order, including those that a rank doesn't need, or needs in another
    order, and those of the backward pass.
    """

    def everything(x: torch.Tensor) -> torch.Tensor:
        unused = hvd.allreduce(x * 7, op=hvd.Sum)
        second = hvd.allreduce(x.sin(), op=hvd.Sum)
        first = hvd.allreduce(x.cos(), op=hvd.Sum)
        if hvd.rank() == 0:
            x = x + 0 * unused.detach()
        results = [first * second.exp(), *(function(x) for function in COLLECTIVES)]
        hvd.allgather(x[: hvd.rank()].detach())
        return torch.stack([result.sum() for result in results])

    x = own(2 * hvd.size() + 1)
    runs = everything if hvd.rank() == 0 else in_one_graph(everything, backend)
    check_equal(value_and_gradient(runs, x), value_and_gradient(everything, x))


def every_collective(x: torch.Tensor, process_set: hvd.ProcessSet) -> list[torch.Tensor]:
    """As above, with few loops for inductor to compile."""
    unused = hvd.allreduce(x, op=hvd.Sum)
    if hvd.rank() == 0:
        x = x + 0 * unused.detach()
    hvd.allgather(x[: hvd.rank()].detach())
    second, first = hvd.allreduce(x, op=hvd.Sum), hvd.allreduce(x)
    results = [first, second, *hvd.grouped_allreduce([x, x.detach()])]
    results += [hvd.allgather(x), hvd.reducescatter(x), hvd.broadcast(x, 1)]
    results.append(hvd.alltoall(x[: hvd.size()].contiguous()))
    if process_set.included():
        results.append(hvd.allreduce(x, op=hvd.Sum, process_set=process_set))
    return results


@torch.compiler.disable
def sum_of_squares(results: Sequence[torch.Tensor]) -> torch.Tensor:
    return sum((one * one.detach()).sum() for one in results)


@pytest.fixture
def some() -> Iterator[hvd.ProcessSet]:
    chosen = hvd.add_process_set(range(1, hvd.size()))
    yield chosen
    hvd.remove_process_set(chosen)


def test_inductor(some: hvd.ProcessSet) -> None:
    def results(run: Function) -> list[torch.Tensor]:
        x = own(2 * hvd.size()).requires_grad_()
        values = run(x, some)
        sum_of_squares(values).backward()
        return [*(value.detach() for value in values), x.grad]

    in_graph = in_one_graph(every_collective, "inductor")
    runs = every_collective if hvd.rank() == 0 else in_graph
    check_equal(results(runs), results(every_collective))


@AOT_EAGER
def test_in_place(backend: str) -> None:
    def function(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        y = x * 2
        assert hvd.allreduce_(y, op=hvd.Sum) is y
        hvd.broadcast_(weight, 1)
        hvd.grouped_allreduce_([y, x], op=hvd.Max)
        return y + weight

    def results(function: Function) -> tuple[torch.Tensor, ...]:
        x, weight = own(3), nn.Parameter(own(1))
        return function(x, weight).detach(), x, weight.detach()

    check_equal(results(in_one_graph(function, backend)), results(function))


@AOT_EAGER
def test_process_sets(backend: str, process_set: hvd.ProcessSet) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        total = hvd.allreduce(x, op=hvd.Sum, process_set=process_set)
        gathered = hvd.allgather(x[: 1 + hvd.rank()], process_set=process_set)
        share = hvd.reducescatter(x, op=hvd.Sum, process_set=process_set)
        root = hvd.broadcast(x, hvd.size() - 1, process_set=process_set)
        rows = hvd.alltoall(x, [1] * hvd.size(process_set), process_set=process_set)[0]
        parts = [total, gathered, share, root, rows]
        return sum(part.square().sum() for part in parts) + hvd.rank(process_set)

    if process_set.included():
        x = own(2 * hvd.size())
        in_graph = in_one_graph(function, backend)
        check_equal(value_and_gradient(in_graph, x), value_and_gradient(function, x))


def test_another_process_set() -> None:
    """The function is recompiled for a set with another ID or size."""

    def function(x: torch.Tensor, process_set: hvd.ProcessSet) -> torch.Tensor:
        share = hvd.reducescatter(x, op=hvd.Sum, process_set=process_set)
        return share / hvd.size(process_set) + hvd.rank(process_set)

    in_graph = in_one_graph(function, "eager")
    sets = [hvd.global_process_set, *(hvd.add_process_set([rank]) for rank in range(hvd.size()))]
    x = own(2 * hvd.size())
    for process_set in sets:
        if process_set.included():
            check_equal(in_graph(x, process_set), function(x, process_set))
    for process_set in sets[1:]:
        hvd.remove_process_set(process_set)


def test_sizes_that_change() -> None:
    """The second size creates a graph for all sizes, which the third uses."""
    compilations = []

    def count(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        compilations.append(graph)
        return graph

    def function(x: torch.Tensor) -> torch.Tensor:
        share = hvd.reducescatter(gather_uneven(x) + reduce_(x).sum(), op=hvd.Sum)
        return share.sum() + hvd.alltoall(x, [x.shape[0] - hvd.size()] + [1] * (hvd.size() - 1))[0]

    in_graph = torch.compile(function, backend=count, fullgraph=True)
    for rows in (5, 7, 9, 11):
        check_equal(in_graph(own(rows)), function(own(rows)))
    assert len(compilations) == 2


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.convolution = nn.Conv2d(2, 4, 3)
        self.norm = hvd.SyncBatchNorm(4)
        self.head = nn.Linear(4, 3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(self.convolution(images)).relu().mean((2, 3))
        result: torch.Tensor = self.head(hidden)
        return result


def images(rows: int, step: int = 0) -> torch.Tensor:
    random = torch.Generator().manual_seed(100 * step + hvd.rank())
    return torch.randn(rows, 2, 6, 6, generator=random, dtype=torch.float64)


def make_optimizer(model: nn.Module) -> Any:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return hvd.DistributedOptimizer(optimizer, model.named_parameters())


def train(model: nn.Module, step: Function, steps: int = 3) -> nn.Module:
    optimizer = make_optimizer(model)
    for i in range(steps):
        step(model, optimizer, images(3 + hvd.rank(), i))
    return model


def plain_step(model: nn.Module, optimizer: Any, batch: torch.Tensor) -> torch.Tensor:
    optimizer.zero_grad()
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    return loss.detach()


def clipped_step(model: nn.Module, optimizer: Any, batch: torch.Tensor) -> torch.Tensor:
    optimizer.zero_grad()
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.synchronize()
    nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    with optimizer.skip_synchronize():
        optimizer.step()
    return loss.detach()


def check_same_state(model: nn.Module, expected: nn.Module) -> None:
    for name, value in expected.state_dict().items():
        torch.testing.assert_close(
            model.state_dict()[name], value, msg=lambda m, n=name: f"{n}: {m}"
        )


@AOT_EAGER
def test_model_with_batch_norm(backend: str) -> None:
    """The whole model is one graph; step() is called as usual."""
    expected = train(Net().double(), plain_step)
    model = Net().double()
    in_graph = in_one_graph(model, backend)
    optimizer = make_optimizer(model)
    for i in range(3):
        plain_step(in_graph, optimizer, images(3 + hvd.rank(), i))
    check_same_state(model, expected)
    model.eval()
    check_equal(in_graph(images(2)).detach(), model(images(2)).detach())


@AOT_EAGER
def test_options_of_batch_norm(backend: str) -> None:
    options = [{"affine": False}, {"momentum": None}, {"track_running_stats": False}]
    layers = nn.Sequential(*(hvd.SyncBatchNorm(2, **one) for one in options)).double()
    others = copy.deepcopy(layers)
    in_graph = in_one_graph(others, backend)
    for step in range(2):
        batch = images(3, step)
        expected = value_and_gradient(lambda x: layers(x * x).square() * x, batch)
        check_equal(value_and_gradient(lambda x: in_graph(x * x).square() * x, batch), expected)
    check_same_state(others, layers)


@AOT_EAGER
def test_batch_norm_where_one_rank_needs_no_gradient(backend: str) -> None:
    """Additionally has an empty batch, whose backward pass matches the others'."""
    layer = hvd.SyncBatchNorm(2).double()
    other = copy.deepcopy(layer)

    def gradients(run: Function, layer: nn.Module) -> list[torch.Tensor]:
        batch = images(0 if hvd.rank() == 0 else 3).requires_grad_(hvd.rank() != 0)
        (run(batch).square() * batch.detach()).sum().backward()
        return [one.grad for one in (*layer.parameters(), batch) if one.grad is not None]

    in_graph = in_one_graph(other, backend)
    check_equal(gradients(in_graph, other), gradients(layer, layer))


def test_batch_norm_of_one_value() -> None:
    layer = in_one_graph(hvd.SyncBatchNorm(2), "aot_eager")
    with pytest.raises(RuntimeError, match="more than one value"):
        layer(torch.ones(1 if hvd.rank() == 0 else 0, 2))


@pytest.mark.parametrize(
    ("step", "backend"),
    [(plain_step, "eager"), (clipped_step, "aot_eager")],
    ids=["plain", "clipped-aot_eager"],
)
def test_compiled_step(step: Function, backend: str) -> None:
    """backward(), the optimizer and its hooks break graphs; the rest is compiled."""
    expected = train(Net().double(), step)
    model = train(Net().double(), torch.compile(step, backend=backend))
    check_same_state(model, expected)


class EveryCollective(nn.Module):
    def __init__(self, process_set: hvd.ProcessSet) -> None:
        super().__init__()
        self.norm = hvd.SyncBatchNorm(2)
        self.process_set = process_set

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        return every_collective(self.norm(x), self.process_set)


def step_of_all(model: nn.Module, optimizer: Any, batch: torch.Tensor) -> None:
    optimizer.zero_grad()
    sum_of_squares(model(batch)).backward()
    optimizer.step()


def test_step_by_inductor(some: hvd.ProcessSet) -> None:
    """Rank 0 compiles only what must be compiled on all ranks. No rank compiles loops."""
    run, model = step_of_all, EveryCollective(some).double()
    expected = EveryCollective(some).double()
    if hvd.rank() == 0:
        model.norm.compile(backend="inductor")
    else:
        run = torch.compile(run, backend="inductor")
    optimizers = [make_optimizer(expected), make_optimizer(model)]
    for _ in range(2):
        step_of_all(expected, optimizers[0], own(2 * hvd.size()))
        with torch._inductor.config.patch({"fallback_by_default": True}):
            run(model, optimizers[1], own(2 * hvd.size()))
    check_same_state(model, expected)


def test_what_is_no_collective_ends_a_graph() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        handle = hvd.allreduce_async(x * 2, op=hvd.Sum, name="in flight")
        total = hvd.allreduce(x, op=hvd.Sum)
        hvd.barrier()
        factor = hvd.broadcast_object({"factor": 3 + hvd.rank()}, root_rank=1)["factor"]
        hvd.poll(handle)
        return hvd.synchronize(handle) + total * factor

    x = own(2)
    check_equal(torch.compile(function, backend="eager")(x), function(x))


def test_errors(process_set: hvd.ProcessSet) -> None:
    x = own(2)
    for wrong, message in [
        (lambda x: hvd.alltoall(x, [1]), r"splits has 1 elements"),
        (lambda x: hvd.broadcast(x, 99), r"root_rank=99"),
        (lambda x: hvd.allgather(x[0, 0]), r"at least one dimension"),
        (lambda x: hvd.alltoall(x, torch.ones(hvd.size())), r"tensor of integers"),
        (lambda x: hvd.allreduce(x, process_set=hvd.ProcessSet([0])), r"is not registered"),
        (lambda x: hvd.allreduce(x > 0), r"bool"),
    ]:
        with pytest.raises(Exception, match=message):
            in_one_graph(wrong, "eager")(x)
    rows = [0.5] * hvd.size()
    with pytest.raises(TypeError, match="integer"):  # as outside of graphs
        torch.compile(lambda x: hvd.alltoall(x, rows), backend="eager")(x)


def test_gradient_of_an_operator_that_has_none() -> None:
    x = own(2).requires_grad_()
    result = in_one_graph(lambda x: hvd.allreduce(x, op=hvd.Max), "aot_eager")(x)
    with pytest.raises(NotImplementedError, match="op=Max has no gradient"):
        result.sum().backward()


def test_ranks_that_contradict_each_other() -> None:
    function = in_one_graph(lambda x: hvd.allreduce(x, name="of two shapes"), "aot_eager")
    with pytest.raises(hvd.MismatchError, match="of two shapes"):
        function(own(1 + hvd.rank()))


def test_too_old_a_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operators, "PROBLEM", "collectives inside torch.compile need PyTorch 9")
    x = own(2)
    with pytest.raises(NotImplementedError, match="need PyTorch 9"):
        compiled.broadcast([x], 0, Call(None, hvd.global_process_set))
    # Without fullgraph=True the function is left out, and works.
    check_equal(torch.compile(reduce_, backend="eager")(x), reduce_(x))
