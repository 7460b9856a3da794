"""Batch normalization across the batches of all ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from horoscale import common
from horoscale.common import Sum
from horoscale.common.process_sets import ProcessSet, global_process_set
from horoscale.torch.compiling import is_compiling
from horoscale.torch.reductions import allreduce, allreduce_

_TOO_FEW = "SyncBatchNorm needs more than one value for each channel in training"


class SyncBatchNorm(_BatchNorm):
    """Batch normalization with the mean and variance of all ranks' batches in training.

    Inputs have shape (batch, channels, ...). Batch sizes may differ between the ranks and may be 0.
    In evaluation mode the module is equal to torch.nn.BatchNorm1d, 2d or 3d.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        """Create a module for `num_features` channels, with the options of torch.nn.BatchNorm1d.

        Args:
            num_features: the number of channels.
            eps: added to the variance.
            momentum: the weight of a new batch in the running statistics. None: a cumulative
                average.
            affine: whether to learn a scale and a bias for each channel.
            track_running_stats: whether to keep running statistics for evaluation.
            process_set: the ranks whose batches are normalized together.
        """
        super().__init__(num_features, eps, momentum, affine, track_running_stats)
        self.process_set = process_set

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2 or input.shape[1] != self.num_features:
            raise ValueError(
                f"SyncBatchNorm takes (batch, {self.num_features}, ...), not {tuple(input.shape)}"
            )

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Normalize a batch. In training every rank of the process set must call it.

        Raises ValueError for a wrong number of channels, or if all ranks together have only one
        value per channel (RuntimeError in a compiled model), and HorovodInternalError if a rank
        failed.
        """
        self._check_input_dim(input)
        if not self.training or common.size(self.process_set) == 1:
            return super().forward(input)
        if is_compiling():
            return self._forward_in_graph(input)
        mean, variance, count = _moments(input, self.process_set)
        if self.track_running_stats:
            self._track(mean, variance, count)
        inverse_deviation = torch.rsqrt(variance + self.eps)
        result: torch.Tensor = _Normalize.apply(  # type: ignore[no-untyped-call]
            input, self.weight, self.bias, mean, inverse_deviation, count, self.process_set
        )
        return result

    def _forward_in_graph(self, input: torch.Tensor) -> torch.Tensor:
        """Compute forward() without reading a value on the host, for tracing by torch.compile.

        Autograd differentiates this code, and the compiler fuses it.
        """
        mean, variance, count = _moments_in_graph(input, self.weight, self.process_set)
        if self.track_running_stats:
            self._track(mean.detach(), variance.detach(), count)
        inverse_deviation = torch.rsqrt(variance + self.eps)
        centred = input.to(_work_dtype(input)) - _by_channel(mean, input)
        result = centred * _by_channel(inverse_deviation, input)
        if self.weight is not None and self.bias is not None:
            result = result * _by_channel(self.weight, input) + _by_channel(self.bias, input)
        return result.to(input.dtype)

    @torch.no_grad()
    def _track(
        self, mean: torch.Tensor, variance: torch.Tensor, count: float | torch.Tensor
    ) -> None:
        assert self.num_batches_tracked is not None
        assert self.running_mean is not None
        assert self.running_var is not None
        self.num_batches_tracked += 1
        unbiased = variance * (count / (count - 1))
        for running, new in ((self.running_mean, mean), (self.running_var, unbiased)):
            if self.momentum is None:
                running += (new.to(running.dtype) - running) / self.num_batches_tracked
            else:
                running.lerp_(new.to(running.dtype), self.momentum)


def _moments(
    input: torch.Tensor, process_set: ProcessSet
) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Return each channel's mean and variance over all ranks, and its number of values."""
    channels = input.shape[1]
    own_count = input.numel() // channels
    sums = torch.zeros(2 * channels + 1, dtype=torch.float64)
    if own_count:
        values = input.detach().to(_work_dtype(input))
        variance, mean = torch.var_mean(values, _all_but_channels(input), correction=0)
        mean = mean.double()
        # float64, so that the difference of squares below keeps float32's precision.
        sums[:channels] = mean * own_count
        sums[channels:-1] = (variance.double() + mean.square()) * own_count
        sums[-1] = own_count
    # Not an allgather, because an allreduce also works when another rank has joined.
    allreduce_(sums, op=Sum, process_set=process_set)
    count = sums[-1].item()
    if count <= 1:
        raise ValueError(_TOO_FEW)
    mean = sums[:channels] / count
    variance = (sums[channels:-1] / count - mean.square()).clamp_min(0.0)
    return mean, variance, count


def _moments_in_graph(
    input: torch.Tensor, weight: torch.Tensor | None, process_set: ProcessSet
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the same as _moments(), as tensors that autograd tracks."""
    channels = input.shape[1]
    values = input.double()
    own_count = values.new_full((1,), input.numel() // channels)
    over = _all_but_channels(input)
    sums = torch.cat([values.sum(over), values.square().sum(over), own_count])
    if weight is not None:
        # Adds zero, but makes the sums require a gradient if the weight does. The backward pass
        # must run its allreduce even if this rank's input needs no gradient, because inputs of
        # other ranks may.
        sums = sums + weight[:0].sum()
    sums = allreduce(sums, op=Sum, process_set=process_set)
    count = sums[-1].detach()
    torch._assert_async(count > 1, _TOO_FEW)
    mean = sums[:channels] / count
    variance = (sums[channels:-1] / count - mean.square()).clamp_min(0.0)
    return mean, variance, count


class _Normalize(torch.autograd.Function):
    """(input - mean) * inverse_deviation * weight + bias, with statistics that depend on input."""

    @staticmethod
    def forward(
        ctx: Any,
        input: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        mean: torch.Tensor,
        inverse_deviation: torch.Tensor,
        count: float,
        process_set: ProcessSet,
    ) -> torch.Tensor:
        ctx.save_for_backward(input, weight, mean, inverse_deviation)
        ctx.count, ctx.process_set = count, process_set
        result = _standardised(input, mean, inverse_deviation)
        if weight is not None and bias is not None:
            result = result.mul_(_by_channel(weight, input)).add_(_by_channel(bias, input))
        return result.to(input.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, output_gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        input, weight, mean, inverse_deviation = ctx.saved_tensors
        standardised = _standardised(input, mean, inverse_deviation)
        output_gradient = output_gradient.to(standardised.dtype)
        over = _all_but_channels(input)
        bias_gradient = output_gradient.sum(over)
        weight_gradient = (output_gradient * standardised).sum(over)
        # Always, even if this rank's input needs no gradient: inputs of other ranks may.
        sums = torch.stack([bias_gradient, weight_gradient]).double()
        shift, slope = allreduce_(sums, op=Sum, process_set=ctx.process_set) / ctx.count
        gradient = output_gradient - _by_channel(shift, input)
        gradient -= standardised * _by_channel(slope, input)
        scale = inverse_deviation if weight is None else inverse_deviation * weight
        gradient *= _by_channel(scale, input)
        if weight is None:
            return gradient.to(input.dtype), *[None] * 6
        of_parameters = weight_gradient.to(weight.dtype), bias_gradient.to(weight.dtype)
        return gradient.to(input.dtype), *of_parameters, *[None] * 4


def _work_dtype(input: torch.Tensor) -> torch.dtype:
    return torch.promote_types(input.dtype, torch.float32)


def _all_but_channels(input: torch.Tensor) -> list[int]:
    return [0, *range(2, input.dim())]


def _by_channel(values: torch.Tensor, input: torch.Tensor) -> torch.Tensor:
    return values.to(_work_dtype(input)).view(1, -1, *[1] * (input.dim() - 2))


def _standardised(
    input: torch.Tensor, mean: torch.Tensor, inverse_deviation: torch.Tensor
) -> torch.Tensor:
    centred = input.to(_work_dtype(input)) - _by_channel(mean, input)
    return centred.mul_(_by_channel(inverse_deviation, input))
