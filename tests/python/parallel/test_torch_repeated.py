"""Repeated calls: cached state of one must not leak into another."""

from __future__ import annotations

import gc
import re
import threading
from typing import Any

import pytest
import torch
from support.interrupts import interrupted
from support.torch_reference import check
from torch.multiprocessing.reductions import StorageWeakRef

import horoscale.torch as hvd
from horoscale.common import current_runtime


def own(factor: float) -> torch.Tensor:
    return torch.full((5,), 1.0 * factor * (hvd.rank() + 1))


def total(factor: float, ranks: list[int] | None = None) -> torch.Tensor:
    members = range(hvd.size()) if ranks is None else ranks
    return torch.full((5,), 1.0 * factor * sum(rank + 1 for rank in members))


@pytest.mark.conformance
def test_new_memory_each_time(name: str) -> None:
    kept = []
    for step in range(10):
        tensor = own(step)
        assert hvd.allreduce_(tensor, op=hvd.Sum, name=name) is tensor
        kept.append(tensor)
    for step, tensor in enumerate(kept):
        check(tensor, total(step))


def test_one_name_for_different_things(name: str) -> None:
    """Shape, type, operator and factors change from call to call, and recur."""
    for _ in range(2):
        check(hvd.allreduce_(own(1), op=hvd.Sum, name=name), total(1))
        check(hvd.allreduce_(own(1), op=hvd.Max, name=name), torch.full((5,), float(hvd.size())))
        check(hvd.allreduce_(own(1), name=name), total(1) / hvd.size())
        check(hvd.allreduce_(own(1), op=hvd.Sum, prescale_factor=2.0, name=name), total(2))
        check(hvd.allreduce_(own(1).view(5, 1), op=hvd.Sum, name=name), total(1).view(5, 1))
        check(hvd.allreduce_(own(1).double(), op=hvd.Sum, name=name), total(1).double())


def test_of_many_names(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """More names than are cached."""
    monkeypatch.setattr("horoscale._core.request._MAX_KNOWN", 256)
    for step in range(600):
        tensor = hvd.allreduce_(own(step), op=hvd.Sum, name=f"{name}.{step}")
    check(tensor, total(599))


def test_set_whose_id_is_given_again(name: str, need_ranks: None) -> None:
    for ranks in ([0], [hvd.size() - 1]):
        some = hvd.add_process_set(ranks)
        if hvd.rank() in ranks:
            tensor = hvd.allreduce_(own(1), op=hvd.Sum, name=name, process_set=some)
            check(tensor, total(1, ranks))
        else:
            with pytest.raises(ValueError, match="does not belong"):
                hvd.allreduce_(own(1), op=hvd.Sum, name=name, process_set=some)
        hvd.remove_process_set(some)
        with pytest.raises(ValueError, match="not registered"):
            hvd.allreduce_(own(1), op=hvd.Sum, name=name, process_set=some)


def test_views_and_parameters(name: str) -> None:
    """Tensors that are not plain, and tensors that autograd tracks."""
    plain = own(1)
    check(hvd.allreduce_(torch.stack([plain, plain], 1)[:, 0], op=hvd.Sum, name=name), total(1))
    imaginary = torch.complex(torch.zeros(5), own(1)).conj().imag  # a negated view
    check(hvd.allreduce_(imaginary, op=hvd.Sum, name=name), -total(1))
    parameter = torch.nn.Parameter(own(1))
    loss = (parameter * parameter).sum()
    check(hvd.allreduce_(parameter, op=hvd.Sum, name=name).detach(), total(1))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_from_several_threads(name: str) -> None:
    failures: list[BaseException] = []

    def work(thread: int) -> None:
        try:
            for step in range(100):
                tensor = hvd.allreduce_(own(thread + step), op=hvd.Sum, name=f"{name}.{thread}")
                check(tensor, total(thread + step))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.conformance
def test_asynchronous_calls(name: str) -> None:
    """Many at once, repeatedly, in new memory: in place and not."""
    for step in range(5):
        inputs = [own(step + i) for i in range(20)]
        changed = [one.clone() for one in inputs]
        handles = [
            (
                hvd.allreduce_async(inputs[i], op=hvd.Sum, name=f"{name}.{i}"),
                hvd.allreduce_async_(changed[i], op=hvd.Sum, name=f"{name}.{i}_"),
            )
            for i in range(20)
        ]
        for i, (new, in_place) in enumerate(handles):
            check(hvd.synchronize(new), total(step + i))
            check(inputs[i], own(step + i))
            assert hvd.synchronize(in_place) is changed[i]
            check(changed[i], total(step + i))
            assert hvd.poll(new)
            assert hvd.synchronize(in_place) is changed[i]


def test_one_name_for_different_things_later(name: str) -> None:
    """Shape, type, operator and factors change from call to call, and recur."""
    ranks = float(hvd.size())
    for _ in range(2):
        for start in hvd.allreduce_async, hvd.allreduce_async_:
            cases: list[tuple[torch.Tensor, dict[str, Any], torch.Tensor]] = [
                (own(1), {"op": hvd.Sum}, total(1)),
                (own(1), {"op": hvd.Max}, torch.full((5,), ranks)),
                (own(1), {}, total(1) / ranks),
                (own(1), {"op": hvd.Sum, "postscale_factor": 2.0}, total(2)),
                (own(1).view(1, 5, 1), {"op": hvd.Sum}, total(1).view(1, 5, 1)),
                (own(1).double(), {"op": hvd.Sum, "priority": 3}, total(1).double()),
                (own(1)[:0], {"op": hvd.Sum}, total(1)[:0]),
            ]
            for tensor, options, expected in cases:
                check(hvd.synchronize(start(tensor, name=name, **options)), expected)


@pytest.mark.parametrize("start", [hvd.allreduce_async, hvd.allreduce_async_])
def test_name_that_is_pending(start: Any, name: str, need_ranks: None) -> None:
    tensor = own(1)
    if hvd.rank() == 0:
        handle = start(tensor, op=hvd.Sum, name=name)
        for _ in range(2):
            with pytest.raises(hvd.DuplicateNameError, match=re.escape(name)):
                start(own(1), op=hvd.Sum, name=name)
        hvd.barrier()
    else:
        hvd.barrier()
        handle = start(tensor, op=hvd.Sum, name=name)
    check(hvd.synchronize(handle), total(1))


def test_shapes_that_contradict_each_other(name: str, need_ranks: None) -> None:
    for start in hvd.allreduce_async, hvd.allreduce_async_:
        check(hvd.synchronize(start(own(1), op=hvd.Sum, name=name)), total(1))
        handle = start(torch.ones(5 + hvd.rank()), op=hvd.Sum, name=name)
        for _ in range(2):
            with pytest.raises(hvd.MismatchError, match=re.escape(name)):
                hvd.synchronize(handle)
        check(hvd.synchronize(start(own(1), op=hvd.Sum, name=name)), total(1))


def test_what_autograd_has_an_eye_on(name: str) -> None:
    parameter = torch.nn.Parameter(own(1))
    loss = (parameter * parameter).sum()
    hvd.synchronize(hvd.allreduce_async_(parameter, op=hvd.Sum, name=name))
    check(parameter.detach(), total(1))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    parameter = torch.nn.Parameter(own(1))
    for reduce in (
        lambda: hvd.allreduce(parameter, op=hvd.Sum, name=name),
        lambda: hvd.synchronize(hvd.allreduce_async(parameter, op=hvd.Sum, name=name)),
    ):
        result = reduce()
        assert result.requires_grad
        check(result.detach(), total(1))
        with torch.no_grad():
            result = reduce()
        assert type(result) is torch.Tensor
        assert not result.requires_grad
        check(result, total(1))
    with torch.inference_mode():
        check(hvd.allreduce(own(1), op=hvd.Sum, name=name), total(1))
        check(hvd.allreduce_(own(1), op=hvd.Sum, name=name), total(1))
        inference = own(1)
        hvd.synchronize(hvd.allreduce_async_(inference, op=hvd.Sum, name=name))
    check(inference.clone(), total(1))


def test_memory_that_a_tensor_loses_meanwhile(name: str) -> None:
    tensor = own(1)
    handle = hvd.allreduce_async_(tensor, op=hvd.Sum, name=name)
    tensor.data = torch.zeros(5)
    assert hvd.synchronize(handle) is tensor
    check(tensor, total(1))


def test_one_operation_in_several_threads() -> None:
    """The prepared state is shared; any call may be matched with any other of the thread."""
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(50):
                check(hvd.allreduce_(own(1), op=hvd.Sum), total(1))
                check(hvd.synchronize(hvd.allreduce_async(own(1), op=hvd.Sum)), total(1))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_ctrl_c_loses_no_memory(name: str, need_ranks: None) -> None:
    tensor = own(1)
    in_flight = current_runtime()._in_flight
    hvd.barrier()
    in_flight.reap()
    before = len(in_flight)  # left behind by other tests
    alone = hvd.rank() == 0
    if alone:
        with interrupted():
            hvd.allreduce_(tensor, op=hvd.Sum, name=name)
        kept = StorageWeakRef(tensor.untyped_storage())
        tensor.data = torch.zeros(1)  # like module.half()
        del tensor
        gc.collect()
        assert not kept.expired()
        assert len(in_flight) == before + 1
    hvd.barrier()
    if not alone:
        check(hvd.allreduce_(tensor, op=hvd.Sum, name=name), total(1))
    hvd.barrier()  # executed after it, on all ranks
    in_flight.reap()
    assert len(in_flight) == before
    if alone:
        gc.collect()
        assert kept.expired()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64], ids=str)
def test_a_tensor_may_change_its_type_before_it_is_reduced(name: str, dtype: torch.dtype) -> None:
    tensor = torch.full((4,), 1.5)
    handle = hvd.allreduce_async_(tensor, op=hvd.Sum, name=name)
    tensor.data = tensor.data.to(dtype)
    hvd.synchronize(handle)
    check(tensor, torch.full((4,), 1.5 * hvd.size(), dtype=dtype))
