"""Mapping of torch.distributed's reduction operators to the runtime's."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.distributed import ReduceOp as TorchOp

from horoscale._core import ReduceOp, UnsupportedError
from horoscale.common.arguments import check_reduction
from horoscale.torch.tensors import data_type

_OPERATORS = {
    TorchOp.SUM: ReduceOp.SUM,
    TorchOp.AVG: ReduceOp.AVERAGE,
    TorchOp.PRODUCT: ReduceOp.PRODUCT,
    TorchOp.MIN: ReduceOp.MIN,
    TorchOp.MAX: ReduceOp.MAX,
    TorchOp.BAND: ReduceOp.BITWISE_AND,
    TorchOp.BOR: ReduceOp.BITWISE_OR,
    TorchOp.BXOR: ReduceOp.BITWISE_XOR,
}


class Reduction(NamedTuple):
    """An operator, and the factor of each rank's values before the reduction."""

    op: ReduceOp
    prescale: float = 1.0


def reduction(op: Any, dtype: torch.dtype) -> Reduction:
    """Return the runtime's reduction for a torch.distributed.ReduceOp on values of `dtype`.

    Raises UnsupportedError for an operator that is not supported, in general or for the dtype.
    """
    kind = getattr(op, "op", op)  # ReduceOp.SUM is an enumerator, an option's reduceOp wraps one
    if kind == TorchOp.PREMUL_SUM:
        if not (dtype.is_floating_point or dtype.is_complex):
            raise UnsupportedError(f"ReduceOp.PREMUL_SUM of {dtype}: only floating point types")
        return Reduction(ReduceOp.SUM, _factor(op))
    try:
        resolved = _OPERATORS[kind]
    except (KeyError, TypeError):
        raise UnsupportedError(f"horoscale has no reduction for {op!r}") from None
    check_reduction(data_type(dtype), resolved)
    return Reduction(resolved)


def _factor(op: Any) -> float:
    factor = op.factor if hasattr(op, "factor") else op.__getstate__()[1]
    if isinstance(factor, torch.Tensor) and factor.numel() != 1:
        raise UnsupportedError("ReduceOp.PREMUL_SUM takes one factor, not a tensor of several")
    return float(factor)
