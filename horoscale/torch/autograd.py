"""The one autograd node of all collectives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

# Maps the gradients of an operation's outputs to those of its inputs; itself a collective.
Gradient = Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]


class _Collective(torch.autograd.Function):
    """Records the collective that computed a list of tensors."""

    @staticmethod
    def forward(
        ctx: Any, gradient: Gradient, outputs: Sequence[torch.Tensor], *inputs: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.gradient = gradient
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *output_gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        # autograd materializes zeros for outputs that the loss does not use, so that all ranks pass
        # the same tensors to the operation.
        return (None, None, *ctx.gradient(output_gradients))


def connect(
    outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], gradient: Gradient
) -> list[torch.Tensor]:
    """Connect the outputs of a completed collective to the autograd graph of its inputs."""
    with torch.enable_grad():
        return list(_Collective.apply(gradient, outputs, *inputs))  # type: ignore[no-untyped-call]


def needs_gradient(inputs: Sequence[torch.Tensor]) -> bool:
    """Return whether autograd would record an operation on these tensors."""
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs)
