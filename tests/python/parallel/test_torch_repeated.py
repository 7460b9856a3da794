"""Calls that are made again and again: what is remembered of one may not leak into another."""

from __future__ import annotations

import threading

import pytest
import torch
from support.torch_reference import check

import horoscale.torch as hvd


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
    """Shape, type, operator and factors change from call to call, and come again."""
    for _ in range(2):
        check(hvd.allreduce_(own(1), op=hvd.Sum, name=name), total(1))
        check(hvd.allreduce_(own(1), op=hvd.Max, name=name), torch.full((5,), float(hvd.size())))
        check(hvd.allreduce_(own(1), name=name), total(1) / hvd.size())
        check(hvd.allreduce_(own(1), op=hvd.Sum, prescale_factor=2.0, name=name), total(2))
        check(hvd.allreduce_(own(1).view(5, 1), op=hvd.Sum, name=name), total(1).view(5, 1))
        check(hvd.allreduce_(own(1).double(), op=hvd.Sum, name=name), total(1).double())


def test_of_many_names(name: str) -> None:
    """More names than are remembered."""
    for step in range(5000):
        tensor = hvd.allreduce_(own(step), op=hvd.Sum, name=f"{name}.{step}")
    check(tensor, total(4999))


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
    """What does not lie plainly in its own memory, and what autograd has an eye on."""
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
