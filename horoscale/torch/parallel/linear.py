"""Linear layers whose weights are divided by columns or rows (Shoeybi et al. 2019, section 3)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.autograd.function import once_differentiable

from horoscale._core import ReduceOp
from horoscale.torch.handles import Handle
from horoscale.torch.parallel import rng
from horoscale.torch.parallel.division import Shard, bounds, split_sizes
from horoscale.torch.parallel.mesh import Axis
from horoscale.torch.parallel.regions import (
    Ready,
    gather_from,
    sequence_reduce_scatter,
    start_gather,
    start_gather_with_sizes,
    start_reduce,
    start_reduce_scatter,
)
from horoscale.torch.reductions import allreduce_


class _Linear(nn.Module):
    """Base class: a weight of which each rank has a shard, and an optional bias."""

    shards: dict[str, Shard]
    transposed: frozenset[str] = frozenset()  # parameters that were (in, out) in the whole model

    def __init__(
        self,
        in_features: int,
        out_features: int,
        group: Any,
        sequence_parallel: bool,
        sequence_dim: int,
        multiple_of: int,
    ) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.axis = Axis.of(group)
        self.sequence_parallel = sequence_parallel
        self.sequence_dim = sequence_dim
        self.multiple_of = multiple_of
        self.weight: nn.Parameter
        self.bias: nn.Parameter | None

    def _divide(self, features: int, what: str) -> tuple[int, ...]:
        if features % self.multiple_of:
            raise ValueError(
                f"{type(self).__name__} on axis {self.axis.name}: {what}={features} is not a "
                f"multiple of multiple_of={self.multiple_of}"
            )
        return split_sizes(features, self.axis.size, self.multiple_of)

    def reset_parameters(self) -> None:
        """Initialize the weights as nn.Linear does for the whole layer, each rank its own."""
        bound = 1 / math.sqrt(self.in_features)
        with rng.fork(self.axis):
            nn.init.uniform_(self.weight, -bound, bound)
            if self.bias is not None:
                nn.init.uniform_(self.bias, -bound, bound)

    @torch.no_grad()
    def load_whole(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        """Load this rank's shards of a whole layer's weight, (out, in), and bias."""
        self.weight.copy_(self.shards["weight"].of(weight))
        if self.bias is not None and bias is not None:
            shard = self.shards.get("bias")
            self.bias.copy_(bias if shard is None else shard.of(bias))

    def extra_repr(self) -> str:
        """Describe the layer and this rank's part of it."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"shard={tuple(self.weight.shape)}, axis={self.axis.name}, "
            f"sequence_parallel={self.sequence_parallel}"
        )


class ColumnParallelLinear(_Linear):
    """A linear layer whose output features are divided among the ranks.

    The input has all features. With `sequence_parallel`, each rank has a part of the input's
    sequence. The parts are gathered while the product with the rank's own part is computed, and
    only that part is saved for the backward pass. Otherwise, the input is the same on all ranks,
    and its gradient is summed over them.

    Attributes:
        input_of_several: prepares the input for several layers at once. None: this layer prepares
            its input itself.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        axis: Any,
        bias: bool = True,
        sequence_parallel: bool = False,
        multiple_of: int = 1,
        gather_output: bool = False,
        sequence_dim: int = 0,
        parts: Sequence[int] = (1,),
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Create this rank's shard of the layer.

        Args:
            in_features: the number of input features.
            out_features: the number of output features in all, divided as by split_sizes().
            axis: an Axis, a ProcessSet, or a torch.distributed process group.
            bias: whether the layer has a bias.
            sequence_parallel: whether each rank has a part of the input's sequence.
            multiple_of: the size of an indivisible unit of features, such as the width of a head.
            gather_output: whether to gather the output on all ranks.
            sequence_dim: the sequence dimension of the input.
            parts: the relative sizes of parts of the output that are divided separately, such as
                (1, 1, 1) for queries, keys and values. `multiple_of` applies to the first part.
            device: the device of the parameters.
            dtype: the dtype of the parameters.

        Raises:
            ValueError: `parts` or `multiple_of` do not divide `out_features`, or `gather_output` is
                combined with several parts.
        """
        super().__init__(
            in_features, out_features, axis, sequence_parallel, sequence_dim, multiple_of
        )
        parts = tuple(parts)
        if gather_output and len(parts) > 1:
            raise ValueError(f"gather_output=True cannot be combined with several parts: {parts}")
        if out_features % sum(parts):
            raise ValueError(f"out_features={out_features} can't be divided into parts {parts}")
        self.gather_output = gather_output
        self.input_of_several: Callable[[torch.Tensor], torch.Tensor] | None = None
        first = out_features // sum(parts) * parts[0]
        sizes = self._divide(first, "out_features" if len(parts) == 1 else "the first part")
        shard = Shard(self.axis, 0, sizes, parts)
        own = shard.extent(out_features)
        made = {"device": device, "dtype": dtype}
        self.weight = nn.Parameter(torch.empty(own, in_features, **made))
        self.bias = nn.Parameter(torch.empty(own, **made)) if bias else None
        self.shards = {"weight": shard, "bias": shard} if bias else {"weight": shard}
        self.reset_parameters()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return this rank's features of the output: (..., in_features) to (..., own features)."""
        _check_features(self, x, self.in_features)
        if self.input_of_several is not None:
            y = F.linear(self.input_of_several(x), self.weight, self.bias)
        else:
            dim = self.sequence_dim if self.sequence_parallel else None
            y = column_parallel(x, self.weight, self.bias, self.axis, dim)
        if not self.gather_output:
            return y
        return gather_from(y, self.axis, -1, self.shards["weight"].sizes)


class RowParallelLinear(_Linear):
    """A linear layer whose input features are divided among the ranks.

    It takes the output of a ColumnParallelLinear. The ranks' outputs are summed. With
    `sequence_parallel`, each rank gets a part of the sum's sequence. The first rank has the bias.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        axis: Any,
        bias: bool = True,
        sequence_parallel: bool = False,
        multiple_of: int = 1,
        sequence_dim: int = 0,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Create this rank's shard of the layer.

        Args:
            in_features: the number of input features in all, divided as by split_sizes().
            out_features: the number of output features.
            axis: an Axis, a ProcessSet, or a torch.distributed process group.
            bias: whether the layer has a bias.
            sequence_parallel: whether each rank gets a part of the output's sequence.
            multiple_of: the size of an indivisible unit of input features.
            sequence_dim: the sequence dimension of the output.
            device: the device of the parameters.
            dtype: the dtype of the parameters.

        Raises:
            ValueError: `multiple_of` does not divide `in_features`.
        """
        super().__init__(
            in_features, out_features, axis, sequence_parallel, sequence_dim, multiple_of
        )
        sizes = self._divide(in_features, "in_features")
        made = {"device": device, "dtype": dtype}
        self.weight = nn.Parameter(torch.empty(out_features, sizes[self.axis.rank], **made))
        has_bias = bias and self.axis.rank == 0
        self.bias = nn.Parameter(torch.empty(out_features, **made)) if has_bias else None
        self.shards = {"weight": Shard(self.axis, 1, sizes)}
        if bias:
            self.shards["bias"] = Shard(self.axis, None)
        self.reset_parameters()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the output: (..., own features) to (..., out_features)."""
        _check_features(self, x, self.weight.shape[1])
        return row_parallel(
            x,
            self.weight,
            self.bias,
            self.axis,
            self.sequence_dim if self.sequence_parallel else None,
        )


def _check_features(module: _Linear, x: torch.Tensor, features: int) -> None:
    if x.dim() == 0 or x.shape[-1] != features:
        raise ValueError(
            f"{type(module).__name__} on rank {module.axis.rank} of axis {module.axis.name} takes "
            f"{features} features, but the input has shape {tuple(x.shape)}"
        )


def column_parallel(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    axis: Axis,
    sequence_dim: int | None = None,
) -> torch.Tensor:
    """Return the product of a whole input with this rank's rows of a weight, (own out, in).

    With a `sequence_dim`, the input is the rank's part along it.
    """
    if axis.size == 1:
        return F.linear(x, weight, bias)
    result: torch.Tensor = _Column.apply(*_cast(x, weight, bias), axis, sequence_dim)  # type: ignore[no-untyped-call]
    return result


def row_parallel(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    axis: Axis,
    sequence_dim: int | None = None,
) -> torch.Tensor:
    """Return the sum of the ranks' products, each over some features of the input.

    With a `sequence_dim`, return the rank's part along it, as split_sizes() divides it. Only one
    rank passes a bias.
    """
    if axis.size == 1:
        return F.linear(x, weight, bias)
    result: torch.Tensor = _Row.apply(*_cast(x, weight, bias), axis, sequence_dim)  # type: ignore[no-untyped-call]
    return result


class _Column(torch.autograd.Function):
    """The product with a weight of which each rank has rows."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        axis: Axis,
        dim: int | None,
    ) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.axis, ctx.dim = axis, dim
        if dim is None:
            return F.linear(x, weight, bias)
        _, y, ctx.sizes = _gathered_product(x, weight.t(), bias, axis, dim, None)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        x, weight = ctx.saved_tensors
        axis, dim = ctx.axis, ctx.dim
        gradient = gradient.contiguous()  # otherwise each product would copy it
        whole: Handle | Ready = Ready(x)
        if dim is not None and ctx.needs_input_grad[1]:
            whole = start_gather(x, axis, dim, ctx.sizes)
        reduced: Handle | Ready | None = None
        if ctx.needs_input_grad[0]:
            of_whole = gradient @ weight
            if dim is None:
                reduced = start_reduce(of_whole, axis)
            else:
                reduced = start_reduce_scatter(of_whole, axis, dim, ctx.sizes)
        of_weight, of_bias = _gradients(ctx, gradient, whole)
        return None if reduced is None else reduced.wait(), of_weight, of_bias, None, None


class _Row(torch.autograd.Function):
    """The sum of the products with a weight of which each rank has columns."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        axis: Axis,
        dim: int | None,
    ) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.axis, ctx.dim = axis, dim
        y = F.linear(x, weight, bias)
        if dim is None:
            assert axis.set is not None
            return allreduce_(y, op=ReduceOp.SUM, process_set=axis.set)
        ctx.sizes = split_sizes(y.shape[dim], axis.size)
        return sequence_reduce_scatter(y, axis, dim, ctx.sizes)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        x, weight = ctx.saved_tensors
        gradient = gradient.contiguous()
        if ctx.dim is None:
            of_x = gradient @ weight if ctx.needs_input_grad[0] else None
        else:
            gradient, of_x, _ = _gathered_product(
                gradient, weight, None, ctx.axis, ctx.dim, ctx.sizes
            )
        return of_x, *_gradients(ctx, gradient, Ready(x)), None, None


def _gradients(
    ctx: Any, gradient: torch.Tensor, x: Handle | Ready
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Return the gradients of the weight and the bias. Waits for the input."""
    rows = _rows(gradient)
    of_bias = rows.sum(0) if ctx.needs_input_grad[2] else None
    inputs = x.wait()
    if not ctx.needs_input_grad[1]:
        return None, of_bias
    return rows.t() @ _rows(inputs), of_bias


def _gathered_product(
    x: torch.Tensor,
    matrix: torch.Tensor,
    bias: torch.Tensor | None,
    axis: Axis,
    dim: int,
    sizes: Sequence[int] | None,
) -> tuple[torch.Tensor, torch.Tensor, Sequence[int]]:
    """Gather x, and compute its product with a matrix; return both, and the size of each part.

    If the sequence dimension is the first, this rank's rows are multiplied while the others' are
    gathered.
    """
    gathering = start_gather_with_sizes(x, axis, dim, sizes)
    if dim:
        whole, sizes = gathering.wait()
        return whole, whole @ matrix if bias is None else F.linear(whole, matrix.t(), bias), sizes
    expected = sizes or (x.shape[0],) * axis.size
    y = x.new_empty((sum(expected), *x.shape[1:-1], matrix.shape[1]))
    begin, end = bounds(expected, axis.rank)
    own = y[begin:end]
    _product(x, matrix, bias, own)
    whole, sizes = gathering.wait()
    begin, end = bounds(sizes, axis.rank)
    if sum(sizes) != y.shape[0] or sizes[: axis.rank] != expected[: axis.rank]:
        y = x.new_empty((sum(sizes), *y.shape[1:]))
        y[begin:end] = own
    for part in (slice(0, begin), slice(end, None)):
        _product(whole[part], matrix, bias, y[part])
    return whole, y, sizes


def _rows(x: torch.Tensor) -> torch.Tensor:
    """Return a matrix of the same rows, even if they are empty: reshape(-1, 0) is ambiguous."""
    return x.flatten(0, -2) if x.dim() > 1 else x.unsqueeze(0)


def _product(
    x: torch.Tensor, matrix: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor
) -> None:
    rows, place = _rows(x), _rows(out)
    if bias is None:
        torch.mm(rows, matrix, out=place)
    else:
        torch.addmm(bias, rows, matrix, out=place)


def _cast(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Cast all but float64 as autocast would, before custom computation and communication."""
    kind = x.device.type
    if hasattr(torch, "get_autocast_dtype"):  # since PyTorch 2.4
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
    elif kind == "cpu":
        dtype = torch.get_autocast_cpu_dtype() if torch.is_autocast_cpu_enabled() else None
    else:
        dtype = torch.get_autocast_gpu_dtype() if torch.is_autocast_enabled() else None
    if dtype is None:
        return x, weight, bias

    def cast(tensor: torch.Tensor) -> torch.Tensor:
        return tensor if tensor.dtype == torch.float64 else tensor.to(dtype)

    return cast(x), cast(weight), None if bias is None else cast(bias)
