"""Checks that an optimizer is elementwise, so that it can update a part of a parameter."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

Factory = Callable[..., torch.optim.Optimizer]

_ELEMENTS = 256
_STEPS = 3


def need_elementwise(
    factory: Factory, options: dict[str, object], dtype: torch.dtype
) -> dict[str, torch.dtype]:
    """Compare an optimizer's updates of a tensor with those of the tensor's parts.

    Returns:
        The dtypes of the state tensors that it keeps for each element, by key.

    Raises:
        ValueError: the optimizer is not elementwise, or can't be tried.
    """
    name = getattr(factory, "__qualname__", repr(factory))
    generator = torch.Generator().manual_seed(0)
    start, *gradients = torch.randn(_STEPS + 1, _ELEMENTS, generator=generator).to(dtype)
    results = []
    kinds: dict[str, torch.dtype] = {}
    for parts in (1, 4):
        parameters = [nn.Parameter(one.clone()) for one in start.chunk(parts)]
        try:
            optimizer = factory([{"params": parameters}], **options)
            for gradient in gradients:
                for parameter, part in zip(parameters, gradient.chunk(parts), strict=True):
                    parameter.grad = part.clone()
                optimizer.step()
        except Exception as error:
            raise ValueError(
                f"{name} can't be an optimizer of shards: on one-dimensional dense parameters "
                f"it failed with {type(error).__name__}: {error}"
            ) from error
        for parameter in parameters:
            for key, value in optimizer.state.get(parameter, {}).items():
                if isinstance(value, torch.Tensor) and value.shape == parameter.shape:
                    kinds[key] = value.dtype
        results.append(torch.cat([one.detach() for one in parameters]))
    if not torch.equal(*results):
        raise ValueError(
            f"{name} is not elementwise: what it does to a part of a tensor depends on the rest, "
            "so that its parts can't be left to different ranks. Use AdamW or SGD, for example"
        )
    return kinds


def is_elementwise(value: object, numel: int) -> bool:
    """Return whether a value of a state is a tensor with `numel` elements."""
    return isinstance(value, torch.Tensor) and value.dim() == 1 and len(value) == numel
