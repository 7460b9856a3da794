"""Normalizations of tokens whose sequence is divided.

Each rank normalizes its own tokens. The parameters are replicated. The backward pass sums their
gradients over the ranks, so `.grad` is the same as in a single process.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from horoscale.torch.parallel.mesh import Axis
from horoscale.torch.parallel.regions import copy_to


class LayerNorm(nn.LayerNorm):
    """torch.nn.LayerNorm of tokens that are divided among the ranks of an axis."""

    def __init__(self, normalized_shape: int | Sequence[int], axis: Any, **options: Any) -> None:
        """Create the layer.

        Args:
            normalized_shape: the last dimensions, as in torch.nn.LayerNorm.
            axis: an Axis, a ProcessSet, or a torch.distributed process group, among whose ranks the
                sequence is divided. None: it is not divided.
            options: eps, elementwise_affine, bias, device and dtype of torch.nn.LayerNorm.
        """
        shape = normalized_shape if isinstance(normalized_shape, int) else list(normalized_shape)
        super().__init__(shape, **options)
        self.axis = None if axis is None else Axis.of(axis)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return the normalized tokens."""
        return F.layer_norm(
            input,
            self.normalized_shape,
            _shared(self.weight, self.axis),
            _shared(self.bias, self.axis),
            self.eps,
        )


class RMSNorm(nn.Module):
    """Root mean square normalization (Zhang and Sennrich 2019) with a weight.

    The mean is computed in at least float32. The sequence may be divided among the ranks of an
    axis.
    """

    def __init__(
        self,
        dim: int,
        axis: Any,
        eps: float = 1e-6,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Create the layer.

        Args:
            dim: the number of features, the last dimension.
            axis: an Axis, a ProcessSet, or a torch.distributed process group, among whose ranks the
                sequence is divided. None: it is not divided.
            eps: a number added to the mean square.
            device: the device of the weight.
            dtype: the dtype of the weight.
        """
        super().__init__()
        self.dim = dim
        self.eps = eps
        self.axis = None if axis is None else Axis.of(axis)
        self.weight = nn.Parameter(torch.ones(dim, device=device, dtype=dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the normalized tokens: (..., dim)."""
        half = x.dtype in (torch.float16, torch.bfloat16)
        values = x.float() if half else x
        normalized = values * torch.rsqrt(values.square().mean(-1, keepdim=True) + self.eps)
        weight = _shared(self.weight, self.axis)
        assert weight is not None
        return normalized.to(x.dtype) * weight

    def extra_repr(self) -> str:
        """Describe the layer."""
        return f"{self.dim}, eps={self.eps}"


def _shared(parameter: torch.Tensor | None, axis: Axis | None) -> torch.Tensor | None:
    return parameter if parameter is None or axis is None else copy_to(parameter, axis)
