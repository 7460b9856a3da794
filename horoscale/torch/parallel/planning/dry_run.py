"""Runs a model on fake tensors to count the memory, messages and operations of its units.

PyTorch's FakeTensorMode computes only shapes and allocates nothing. Each storage that an operation
creates counts until it is no longer referenced, as with an allocator. saved_tensors_hooks detect
those that autograd saves.
"""

from __future__ import annotations

import copy
import itertools
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import FlopCounterMode

from horoscale.torch.parallel.planning.recomputation import PRODUCTS, is_chain
from horoscale.torch.parallel.planning.stand_ins import Collective, divide, nbytes_of
from horoscale.torch.parallel.styles import Plan

Batch: TypeAlias = "torch.Tensor | Sequence[torch.Tensor]"
Loss: TypeAlias = Callable[[Any, Any], torch.Tensor]
MakeOptimizer: TypeAlias = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


@dataclass(frozen=True)
class Unit:
    """The resources of a part of the model, such as a transformer block, on one rank of tp.

    Sizes are in bytes, for one microbatch. Parameters are listed by identity, because units may
    share them.

    Attributes:
        name: the name of the unit in the model.
        parameters: bytes of each parameter.
        trained: those of `parameters` that get a gradient.
        optimizer: bytes of the optimizer's state of each trained parameter.
        buffers: bytes of buffers.
        saved: bytes of each storage that autograd keeps for the backward pass, by identity.
        input: bytes of the inputs.
        output: bytes of the outputs, including the loss of the last unit.
        transient: the unit's peak, in bytes, beyond `saved` and gradients of parameters.
        update: the peak of the optimizer's step, in bytes, beyond its state.
        sent: the collectives of tp in a forward and backward pass.
        forward_flops: operations of matrix products and convolutions, as by FlopCounterMode.
        backward_flops: the same for the backward pass.
        products: bytes of the results of matrix products and convolutions in the forward pass.
    """

    name: str
    parameters: dict[int, int]
    trained: frozenset[int]
    optimizer: dict[int, int]
    buffers: int
    saved: dict[int, int]
    input: int
    output: int
    transient: int
    update: int
    sent: tuple[Collective, ...]
    forward_flops: int
    backward_flops: int
    products: int = 0

    @property
    def activations(self) -> int:
        """Bytes of everything that autograd keeps."""
        return sum(self.saved.values())


@dataclass
class Rehearsal:
    """A model without memory, divided over tp, whose units can be run.

    Attributes:
        mode: the mode in which its tensors are created.
        units: the units by name, between which pipelines can cut.
        sent: collects the messages that layers would send.
        sources: the model's tensors by the identity of the fake ones, where these are whole.
    """

    mode: FakeTensorMode
    units: dict[str, nn.Module]
    sent: list[Collective]
    sources: dict[int, torch.Tensor] = field(repr=False)


def units_of(model: nn.Module) -> dict[str, nn.Module]:
    """Return the parts between which a model can be cut: the children of an nn.Sequential.

    A model with its own forward(), or one that runs a module twice, is a single unit.
    """
    if is_chain(model):
        units = dict(model.named_children())
        if 0 < len(units) == len(model._modules):
            return units
    return {"": model}


def rehearse(model: nn.Module, tp: int = 1, plan: Plan | None = None) -> Rehearsal:
    """Copy a model to fake tensors, divided over `tp` ranks by a plan. The model is not changed.

    Raises:
        ValueError: there is no plan for several ranks, or as in par.tensor_parallel().
    """
    if tp > 1 and plan is None:
        raise ValueError(f"tp={tp} needs a plan of the layers: tensor_parallel=")
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    known: dict[int, Any] = {}
    sources: dict[int, torch.Tensor] = {}
    with mode:
        for one in (*model.parameters(), *model.buffers()):
            device = "cpu" if one.is_meta else one.device
            fake = torch.empty_strided(one.shape, one.stride(), dtype=one.dtype, device=device)
            if isinstance(one, nn.Parameter):
                fake = nn.Parameter(fake, requires_grad=one.requires_grad)
            known[id(one)] = fake
            sources[id(fake)] = one
        fakes = copy.deepcopy(model, known)
        sent: list[Collective] = []
        if tp > 1:
            assert plan is not None
            divide(fakes, plan, tp, sent)
    return Rehearsal(mode, units_of(fakes), sent, sources)


def dry_run(
    rehearsal: Rehearsal, x: Batch, target: Any, loss: Loss, optimizer: MakeOptimizer
) -> list[Unit]:
    """Run a microbatch forward and backward, unit by unit, and an optimizer's step.

    Args:
        rehearsal: the model.
        x: a microbatch: a tensor or several. Only shapes, dtypes and devices matter.
        target: the target for the loss.
        loss: a function of the last unit's output (a tuple if it returns one) and the target.
        optimizer: a function from some parameters to their optimizer, such as torch.optim.AdamW.

    Returns:
        The resources of each unit.
    """
    found = []
    with rehearsal.mode:
        values = tuple(fake(one) for one in ((x,) if isinstance(x, torch.Tensor) else x))
        target = tree_map(fake, target)
        last = len(rehearsal.units) - 1
        names = Names()
        known: dict[Any, _Ran] = {}
        for index, (name, module) in enumerate(rehearsal.units.items()):
            ends = (lambda output: loss(output, target)) if index == last else None
            alike = (signature(module), *map(shape_of, values), index == last)
            if alike in known:
                unit, values = _repeated(known[alike], names, name, module, values)
            else:
                run = _run_unit(rehearsal, names, name, module, values, ends, optimizer)
                known[alike] = _Ran(
                    *run,
                    list(map(id, module.parameters())),
                    _numbers(names, values),
                    _numbers(names, run[1]),
                )
                unit, values = run
            found.append(unit)
    return found


def _run_unit(
    rehearsal: Rehearsal,
    names: Names,
    name: str,
    module: nn.Module,
    values: tuple[Any, ...],
    loss: Callable[[Any], torch.Tensor] | None,
    optimizer: MakeOptimizer,
) -> tuple[Unit, tuple[Any, ...]]:
    parameters = list(module.parameters())
    trained = [one for one in parameters if one.requires_grad]
    for one in trained:
        one.grad = None
    own = {names.of(one) for one in (*parameters, *module.buffers())}
    inputs = [_entered(one, names) for one in values]
    saved = _Saved(names, own)
    rehearsal.sent.clear()
    with Live(names) as live:
        with _Products() as products, FlopCounterMode(display=False) as forward, saved.count():
            result = module(*inputs)
            if loss is not None:
                result = loss(result)
        outputs = result if isinstance(result, tuple) else (result,)
        activations = saved.sizes
        learnt = [one for one in outputs if isinstance(one, torch.Tensor) and one.requires_grad]
        # In training the next unit holds the output until its own pass is done.
        held = {names.of(one): one.untyped_storage().nbytes() for one in learnt}
        only_here = sum(size for key, size in held.items() if key not in {*activations, *own})
        peak = live.take_most()
        with FlopCounterMode(display=False) as backward:
            if learnt:
                torch.autograd.backward(learnt, [torch.ones_like(one) for one in learnt])
        peak = max(peak, live.most - only_here)
    gradients = sum(nbytes_of(one.grad) for one in trained if one.grad is not None)
    transient = max(0, peak - sum(activations.values()) - gradients)
    del result, inputs
    state, update = _optimizer_state(trained, optimizer)
    passed = tuple(one.detach() if isinstance(one, torch.Tensor) else one for one in outputs)
    unit = Unit(
        name,
        {id(one): nbytes_of(one) for one in parameters},
        frozenset(id(one) for one in trained),
        state,
        sum(nbytes_of(one) for one in module.buffers()),
        activations,
        sum(nbytes_of(one) for one in values if isinstance(one, torch.Tensor)),
        sum(nbytes_of(one) for one in passed if isinstance(one, torch.Tensor)),
        transient,
        update,
        tuple(rehearsal.sent),
        forward.get_total_flops(),
        backward.get_total_flops(),
        products.nbytes,
    )
    for one in trained:
        one.grad = None
    return unit, passed


class _Ran(NamedTuple):
    """The results of a unit that was run, for equal units."""

    unit: Unit
    outputs: tuple[Any, ...]
    parameters: list[int]
    inputs: list[int | None]  # numbers of storages
    passed: list[int | None]


def _repeated(
    ran: _Ran, names: Names, name: str, module: nn.Module, values: tuple[Any, ...]
) -> tuple[Unit, tuple[Any, ...]]:
    """Return the resources and outputs of a unit that equals another one, without running it."""
    own = dict(zip(ran.parameters, map(id, module.parameters()), strict=True))
    storages: dict[int | None, int | None] = dict(
        zip(ran.inputs, _numbers(names, values), strict=True)
    )
    storages |= {one: names.fresh() for one in ran.unit.saved if one not in storages}
    outputs = []
    for output, number in zip(ran.outputs, ran.passed, strict=True):
        if isinstance(output, torch.Tensor):
            output = torch.empty_like(output)
            names.of(output, storages.get(number))
        outputs.append(output)
    unit = replace(
        ran.unit,
        name=name,
        parameters={own[one]: size for one, size in ran.unit.parameters.items()},
        trained=frozenset(own[one] for one in ran.unit.trained),
        optimizer={own[one]: size for one, size in ran.unit.optimizer.items()},
        saved={storages[one]: size for one, size in ran.unit.saved.items()},  # type: ignore[misc]
    )
    return unit, tuple(outputs)


def _numbers(names: Names, values: tuple[Any, ...]) -> list[int | None]:
    return [names.of(one) if isinstance(one, torch.Tensor) else None for one in values]


def signature(module: nn.Module) -> tuple[Any, ...]:
    """Return a key that is equal for modules with the same time and memory."""
    plain = (bool, int, float, str, tuple, type(None))
    attributes = tuple(
        (name, key, value)
        for name, one in module.named_modules()
        for key, value in vars(one).items()
        if isinstance(value, plain)
    )
    shapes = tuple(
        (name, *shape_of(one)) for name, one in module.state_dict(keep_vars=True).items()
    )
    shared = len(list(module.parameters()))
    return type(module), str(module), repr(attributes), shapes, shared


def shape_of(value: Any) -> tuple[Any, ...]:
    """Return a key that is equal for tensors with which modules need the same time and memory."""
    if not isinstance(value, torch.Tensor):
        return (type(value),)
    return tuple(value.shape), value.dtype, value.requires_grad


def _optimizer_state(
    trained: list[nn.Parameter], make: MakeOptimizer
) -> tuple[dict[int, int], int]:
    """Return the bytes of the optimizer's state by parameter, and its step's additional bytes."""
    if not trained:
        return {}, 0
    for one in trained:
        if one.grad is None:
            one.grad = torch.zeros_like(one)
    made = make(trained)
    with Live(Names()) as live:
        made.step()
        peak = live.most
    state = {
        id(parameter): sum(
            nbytes_of(value) for value in values.values() if isinstance(value, torch.Tensor)
        )
        for parameter, values in made.state.items()
    }
    return state, max(0, peak - sum(state.values()))


class _Saved:
    """The storages that autograd has saved, except those of parameters and buffers."""

    def __init__(self, names: Names, own: set[int]) -> None:
        self._names, self._own = names, own
        self.sizes: dict[int, int] = {}

    def count(self) -> AbstractContextManager[object]:
        """Return a context in which saved tensors are counted."""

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            key = self._names.of(tensor)
            if key not in self._own:
                self.sizes[key] = tensor.untyped_storage().nbytes()
            return tensor

        return torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)


class Live(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of storages that are created inside it and still referenced."""

    def __init__(self, names: Names) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.most = 0
        self._bytes = 0
        self._names = names
        self._known: dict[int, Any] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {self._names.of(one) for one in _tensors((args, kwargs))}
        result = func(*args, **(kwargs or {}))
        for one in _tensors(result):
            key = self._names.of(one)
            if key in given or key in self._known:
                continue
            storage = one.untyped_storage()
            size = storage.nbytes()
            self._known[key] = weakref.ref(storage, lambda _, k=key, n=size: self._gone(k, n))  # type: ignore[misc]
            self._bytes += size
            self.most = max(self.most, self._bytes)
        return result

    def take_most(self) -> int:
        """Return the peak, and reset it."""
        most, self.most = self.most, self._bytes
        return most

    def _gone(self, key: int, size: int) -> None:
        del self._known[key]
        self._bytes -= size


class _Products(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of the results that selective recomputation keeps."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.nbytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in PRODUCTS:
            self.nbytes += sum(map(nbytes_of, _tensors(result)))
        return result


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    return (one for one in tree_leaves(values) if isinstance(one, torch.Tensor))


def _entered(value: Any, names: Names) -> Any:
    """Return an input as the result of an operation, so that modules may modify it in place."""
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return value
    entered = value.detach().requires_grad_().clone()
    names.of(entered, names.of(value))  # in one process it is the same storage
    return entered


def fake(value: Any) -> Any:
    """Return a tensor like this one, without memory in a FakeTensorMode; other values unchanged."""
    if not isinstance(value, torch.Tensor):
        return value
    device = "cpu" if value.is_meta else value.device
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)


class Names:
    """Assigns unique numbers to storages, because addresses are reused."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[int, Any]] = {}
        self._next = itertools.count()

    def fresh(self) -> int:
        """Return an unused number."""
        return next(self._next)

    def of(self, tensor: torch.Tensor, number: int | None = None) -> int:
        """Return the number of a tensor's storage; a new storage gets `number`, if given."""
        storage = tensor.untyped_storage()
        address = int(storage._cdata)
        if address not in self._known:
            gone = weakref.ref(storage, lambda _: self._known.pop(address))
            self._known[address] = next(self._next) if number is None else number, gone
        return self._known[address][0]
