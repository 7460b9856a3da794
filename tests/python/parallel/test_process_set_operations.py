"""Every operation of every binding within overlapping process sets."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest
from support.process_sets import all_registered, all_sets, some_sets

import horoscale.numpy

try:
    import torch

    import horoscale.torch
except ImportError:
    torch = None

pytestmark = pytest.mark.usefixtures("need_ranks")

Inputs = list[np.ndarray]  # of the members, in their order


class Binding(NamedTuple):
    hvd: ModuleType
    tensor: Callable[[np.ndarray], Any]


def bindings() -> list[Any]:
    found = [pytest.param(Binding(horoscale.numpy, np.copy), id="numpy")]
    if torch is not None:
        tensor = lambda array: torch.from_numpy(array.copy())  # noqa: E731
        found.append(pytest.param(Binding(horoscale.torch, tensor), id="torch"))
    return found


class Case(NamedTuple):
    """A function of the bindings: its arguments, and the result computed from all inputs."""

    function: str
    expected: Callable[[Inputs, int], np.ndarray]
    options: dict[str, Any]
    own: Callable[[Any, int], Any]  # from the input and this rank's position, the arguments

    @property
    def grouped(self) -> bool:
        return self.function.startswith("grouped")

    def call(self, hvd: ModuleType, x: Any, process_set: Any, name: str) -> Any:
        ranks = process_set.ranks
        own = self.own(x, ranks.index(hvd.rank()) if process_set.included() else 0)
        options = dict(self.options)
        if "broadcast" in self.function:
            options["root_rank"] = ranks[-1]  # a global rank
        outcome = getattr(hvd, self.function)(
            [own, own * 1] if self.grouped else own, name=name, process_set=process_set, **options
        )
        return hvd.synchronize(outcome) if "async" in self.function else outcome


def total(inputs: Inputs, _: int) -> np.ndarray:
    return np.sum(inputs, axis=0)


def mean(inputs: Inputs, _: int) -> np.ndarray:
    return np.mean(inputs, axis=0)


def joined(inputs: Inputs, _: int) -> np.ndarray:
    return np.concatenate([one[: i + 1] for i, one in enumerate(inputs)])


def last(inputs: Inputs, _: int) -> np.ndarray:
    return inputs[-1]


def dealt_out(inputs: Inputs, position: int) -> np.ndarray:
    mine = slice(2 * position, 2 * position + 2)
    return np.concatenate([one[mine] for one in inputs])


def share(inputs: Inputs, position: int) -> np.ndarray:
    return total(inputs, 0)[2 * position : 2 * position + 2]


def cases() -> list[Case]:
    found = []

    def add(ways: str, name: str, expected: Any, own: Any = None, **options: Any) -> None:
        for way in ways.split(","):
            function = f"grouped_{name}{way[7:]}" if way.startswith("grouped") else name + way
            found.append(Case(function, expected, options, own or (lambda x, position: x)))

    out_of_place = ",_async,grouped,grouped_async"
    everything = f"{out_of_place},_,_async_,grouped_,grouped_async_"
    add(everything, "allreduce", total, op=horoscale.numpy.Sum)
    add("", "allreduce", mean)
    add(out_of_place, "reducescatter", share, op=horoscale.numpy.Sum)
    add(out_of_place, "allgather", joined, own=lambda x, position: x[: position + 1])
    add(",_async,_,_async_", "broadcast", last)
    add(",_async", "alltoall", dealt_out)
    return found


def others_calls(hvd: ModuleType, x: Any, process_set: Any) -> list[Callable[[], Any]]:
    """Calls that involve one other rank; it is a member, or not, like this one."""
    calls: list[Callable[[], Any]] = []
    own = {"process_set": process_set}
    for peer in (process_set.ranks[0], hvd.rank()):
        for function in ("reduce", "gather", "scatter", "send", "recv"):
            calls.append(partial(getattr(hvd, function), x, peer, **own))
            calls.append(partial(getattr(hvd, f"{function}_async"), x, peer, **own))
        calls += [
            partial(hvd.reduce_, x, peer, **own),
            partial(hvd.recv_view, (3,), x.dtype, peer, **own),
            partial(hvd.batch, [hvd.P2POp(hvd.send, x, peer, **own)]),
            partial(hvd.send_object, 1, peer, **own),
            partial(hvd.recv_object, peer, **own),
        ]
    calls += [
        partial(hvd.recv_any, x, **own),
        partial(hvd.recv_any_async, x, **own),
        partial(hvd.recv_view, (3,), x.dtype, None, **own),
        partial(hvd.batch, [hvd.P2POp(hvd.recv_any, x, **own)]),
    ]
    return calls


def inputs_of(ranks: list[int]) -> Inputs:
    shape = (2 * len(ranks), 3)
    return [np.arange(np.prod(shape), dtype=np.float64).reshape(shape) + 100 * r for r in ranks]


def check(binding: Binding, case: Case, process_set: Any, name: str) -> None:
    ranks = process_set.ranks
    inputs = inputs_of(ranks)
    position = ranks.index(binding.hvd.rank())
    result = case.call(binding.hvd, binding.tensor(inputs[position]), process_set, name)
    for one in result if case.grouped else [result]:
        np.testing.assert_allclose(
            np.asarray(one), case.expected(inputs, position), rtol=1e-15, err_msg=case.function
        )


@pytest.mark.conformance
@pytest.mark.parametrize("binding", bindings())
def test_every_operation(binding: Binding, name: str) -> None:
    with all_registered(some_sets()) as sets:
        for process_set in sets:
            if process_set.included():
                for case in cases():
                    check(binding, case, process_set, f"{name}.{case.function}")
                binding.hvd.barrier(process_set)


@pytest.mark.parametrize("binding", bindings())
def test_every_operation_is_refused_outside(binding: Binding, name: str) -> None:
    hvd = binding.hvd
    with all_registered(some_sets()) as sets:
        operations = hvd.metrics()["process_sets"]
        for process_set in sets:
            if process_set.included():
                continue
            tensor = binding.tensor(inputs_of(process_set.ranks)[0])
            for case in cases():
                with pytest.raises(ValueError, match=f"rank {hvd.rank()} does not belong"):
                    case.call(hvd, tensor, process_set, name)
            for call in others_calls(hvd, tensor, process_set):
                with pytest.raises(ValueError, match=f"rank {hvd.rank()} does not belong"):
                    call()
        assert hvd.metrics()["process_sets"] == operations


@pytest.mark.conformance
def test_every_set_that_the_ranks_can_form(name: str) -> None:
    """254 sets on 8 ranks: sizes from 1 on, each overlapping with half of the others."""
    hvd = horoscale.numpy
    with all_registered(all_sets()) as sets:
        registered = {one.process_set_id: one.ranks for one in sets}
        assert hvd.get_process_set_ids_and_ranks() == registered | {0: list(range(hvd.size()))}
        assert hvd.allgather_object(registered) == [registered] * hvd.size()
        mine = [one for one in sets if one.included()]
        assert len(mine) == 2 ** (hvd.size() - 1) - 1
        own = np.full(1000, hvd.rank(), np.float64)
        handles = [hvd.allreduce_async(own, op=hvd.Sum, name=name, process_set=one) for one in mine]
        for one, handle in zip(mine, handles, strict=True):
            assert (hvd.synchronize(handle) == sum(one.ranks)).all()
            assert hvd.rank(one) == one.ranks.index(hvd.rank())
            assert hvd.size(one) == len(one.ranks)
    assert list(hvd.get_process_set_ids_and_ranks()) == [0]
