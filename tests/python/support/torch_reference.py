"""The expected results of operations on tensors, computed in one process from all inputs."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import torch
from support import reference

import horoscale.torch as hvd

DTYPES = reference.DTYPES
FLOATS = reference.FLOATS


def values(dtype: str, shape: int | tuple[int, ...], rank: int, seed: int = 0) -> torch.Tensor:
    """The input of a rank, which every rank can compute."""
    if dtype == "bfloat16":
        return values("float32", shape, rank, seed).bfloat16()
    return torch.from_numpy(np.asarray(reference.values(dtype, shape, rank, seed)))


def all_values(dtype: str, shape: int | tuple[int, ...], seed: int = 0) -> list[torch.Tensor]:
    """The inputs of all ranks."""
    return [values(dtype, shape, rank, seed) for rank in range(hvd.size())]


def reduced(inputs: Sequence[torch.Tensor], op: str) -> torch.Tensor:
    """The expected result of allreduce()."""
    if inputs[0].dtype != torch.bfloat16:
        return torch.from_numpy(np.asarray(reference.reduced([one.numpy() for one in inputs], op)))
    fold = {
        reference.PRODUCT: torch.mul,
        reference.MIN: torch.minimum,
        reference.MAX: torch.maximum,
    }
    result = functools.reduce(fold.get(op, torch.add), [one.float() for one in inputs])
    if op == reference.AVERAGE:
        result /= len(inputs)
    return result.bfloat16()


def check(result: torch.Tensor, expected: torch.Tensor, exact: bool = True) -> None:
    """Compare shape, dtype and values: bit by bit, or with the tolerance of the dtype."""
    assert result.dtype == expected.dtype
    assert result.shape == expected.shape
    if exact:
        assert torch.equal(as_bytes(result), as_bytes(expected))
    else:
        torch.testing.assert_close(result, expected, equal_nan=True)


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a tensor."""
    flat = torch.empty(tensor.numel(), dtype=tensor.dtype)
    return flat.copy_(tensor.detach().reshape(-1)).view(torch.uint8)
