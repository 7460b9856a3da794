"""reduce, gather and scatter on tensors against a reference."""

from __future__ import annotations

import pytest
import torch
from support.reference import OPS, SIZES, defined
from support.torch_reference import DTYPES, all_values, check, reduced

import horoscale.torch as hvd


def exact(dtype: str, op: str) -> bool:
    rounds = op == "Average" or (op == "Product" and "complex" in dtype)
    return not rounds or "int" in dtype


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", OPS)
def test_reduce(dtype: str, op: str, name: str) -> None:
    if not defined(dtype, op):
        pytest.skip("not defined")
    inputs = all_values(dtype, 1000)
    own = inputs[hvd.rank()]
    for root in range(hvd.size()):
        result = hvd.reduce(own, root, op=getattr(hvd, op), name=name)
        assert (result is None) == (hvd.rank() != root)
        if result is not None:
            check(result, reduced(inputs, op), exact(dtype, op))


@pytest.mark.conformance
@pytest.mark.parametrize("n", SIZES)
def test_reduce_in_place(n: int, name: str) -> None:
    inputs = all_values("float32", n)
    root = hvd.size() - 1
    own = inputs[hvd.rank()].clone()
    version = own._version
    result = hvd.reduce_(own, root, op=hvd.Sum, name=name)
    again = hvd.synchronize(
        hvd.reduce_async_(inputs[hvd.rank()].clone(), root, op=hvd.Sum, name=name)
    )
    if hvd.rank() == root:
        assert result is own
        assert own._version > version
        check(own, reduced(inputs, "Sum"))
        check(again, own)
    else:
        assert result is None
        assert again is None
        check(own, inputs[hvd.rank()])


def test_reduce_in_place_of_a_view(name: str) -> None:
    whole = torch.full((4, 6), float(hvd.rank() + 1))
    hvd.reduce_(whole[:, ::2], 0, op=hvd.Max, name=name)
    assert (whole[:, ::2] == (hvd.size() if hvd.rank() == 0 else hvd.rank() + 1)).all()
    assert (whole[:, 1::2] == hvd.rank() + 1).all()


@pytest.mark.conformance
@pytest.mark.parametrize("dtype", DTYPES)
def test_gather(dtype: str, name: str) -> None:
    inputs = [one[: 3 * rank] for rank, one in enumerate(all_values(dtype, (3 * hvd.size(), 5)))]
    for root in range(hvd.size()):
        handle = hvd.gather_async(inputs[hvd.rank()], root, name=f"{name}.async")
        for result in (
            hvd.gather(inputs[hvd.rank()], root, name=name),
            hvd.synchronize(handle),
        ):
            assert (result is None) == (hvd.rank() != root)
            if result is not None:
                check(result, torch.cat(inputs))


@pytest.mark.conformance
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["even", "list", "tensor"])
def test_scatter(dtype: str, kind: str, name: str) -> None:
    rows = [3 * rank for rank in range(hvd.size())]
    for root, whole in enumerate(all_values(dtype, (sum(rows) + 1, 5))):
        is_root = hvd.rank() == root
        splits = {"even": None, "list": rows, "tensor": torch.tensor(rows)}[kind]
        own = whole if is_root else whole[: hvd.rank() % 2]
        parts = torch.tensor_split(whole, hvd.size()) if kind == "even" else whole[:-1].split(rows)
        handle = hvd.scatter_async(own, root, splits if is_root else None, name=f"{name}.async")
        for result in (
            hvd.scatter(own, root, splits if is_root else None, name=name),
            hvd.synchronize(handle),
        ):
            check(result, parts[hvd.rank()].contiguous())


def test_in_a_process_set(process_set: hvd.ProcessSet, name: str) -> None:
    if not process_set.included():
        return
    ranks = process_set.ranks
    root = ranks[-1]
    own = torch.full((2,), hvd.rank())
    total = hvd.reduce(own, root, op=hvd.BitwiseOr, name=name, process_set=process_set)
    gathered = hvd.gather(own, root, name=name, process_set=process_set)
    if hvd.rank() == root:
        bits = 0
        for rank in ranks:
            bits |= rank
        check(total, torch.full((2,), bits))
        check(gathered, torch.tensor(ranks).repeat_interleave(2))
    rows = torch.arange(len(ranks))
    part = hvd.scatter(rows, root, name=name, process_set=process_set)
    check(part, torch.tensor([ranks.index(hvd.rank())]))


def test_results_without_gradient(name: str) -> None:
    """Where nothing is recorded, the others get None, even for inputs that require a gradient."""
    own = torch.ones(3, requires_grad=True)
    with torch.no_grad():
        results = hvd.reduce(own, 0, name=name), hvd.gather(own, 0, name=name)
    for result in results:
        assert (result is None) == (hvd.rank() != 0)


def test_operators_without_gradient(name: str) -> None:
    own = torch.ones(3, requires_grad=True)
    result = hvd.reduce(own, 0, op=hvd.Max, name=name)
    assert result is not None
    with pytest.raises(NotImplementedError, match="op=Max has no gradient"):
        result.sum().backward()
