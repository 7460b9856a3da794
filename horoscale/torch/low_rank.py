"""PowerSGD: gradients as products of two thin matrices, with error feedback.

After Vogels, Karimireddy and Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for
Distributed Optimization" (2019). A gradient M of shape (r, c) is approximated by P Qᵀ, where P has
shape (r, rank) and Q has shape (c, rank). Each step runs one power iteration from the previous
step's Q. Two small allreduces average P and Q over the ranks; M itself is not sent. The
approximation error is added to the next step's M.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

_Saved = dict[str, torch.Tensor]


@dataclass(frozen=True)
class PowerSGD:
    """The compressor Compression.powersgd(rank), for DistributedOptimizer only."""

    rank: int

    def compress(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Return the tensor itself: gradients that compress too little are sent uncompressed."""
        return tensor, None

    def decompress(self, tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """Return the tensor itself."""
        return tensor

    def __repr__(self) -> str:
        """Return the expression that users write."""
        return f"Compression.powersgd({self.rank})"

    def shape_of(self, parameter: torch.Tensor) -> tuple[int, int] | None:
        """Return the shape of a gradient as a matrix, or None if it is sent uncompressed."""
        if parameter.dim() < 2 or parameter.numel() == 0 or not parameter.is_floating_point():
            return None
        rows = parameter.shape[0]
        columns = parameter.numel() // rows
        return (rows, columns) if 2 * self.rank * (rows + columns) <= rows * columns else None


def powersgd(rank: int = 4) -> PowerSGD:
    """Return the compressor with this approximation rank. Raises ValueError if it is below 1."""
    if rank < 1:
        raise ValueError(f"powersgd({rank!r}): the rank must be at least 1")
    return PowerSGD(rank)


class LowRank:
    """The low-rank approximation of one parameter's gradients over the steps."""

    def __init__(self, shape: tuple[int, int], rank: int, device: torch.device) -> None:
        """Start with a residual of zero, and with a Q that is equal on all ranks."""
        rows, columns = shape
        generator = torch.Generator().manual_seed(rows * 1_000_003 + columns)
        self._q = torch.randn(columns, rank, generator=generator).to(device)
        self._residual = torch.zeros(shape, device=device)
        self._matrix = self._residual
        self._p = torch.empty(rows, rank, device=device)

    def p_of(self, gradient: torch.Tensor) -> torch.Tensor:
        """Return this rank's P, which the ranks then average."""
        self._matrix = gradient.reshape(self._residual.shape).float() + self._residual
        return self._matrix @ _orthogonal(self._q)

    def q_of(self, p: torch.Tensor) -> torch.Tensor:
        """Return this rank's Q for the averaged P. The ranks then average it, too."""
        self._p = _orthogonal(p)
        return self._matrix.t() @ self._p

    def approximation(self, q: torch.Tensor) -> torch.Tensor:
        """Return the averaged gradient, and keep this rank's approximation error as the residual.

        Non-finite values are passed on and do not change the state.
        """
        result = self._p @ q.t()
        if bool(torch.isfinite(q).all()):
            self._q = q
            self._residual = self._matrix - result
        return result

    def scale(self, factor: float) -> None:
        """Multiply the residual by a factor when the gradient scale changes."""
        self._residual = self._residual * factor

    def save(self) -> _Saved:
        """Return the state."""
        return {"q": self._q.clone(), "residual": self._residual.clone()}

    def load(self, saved: _Saved, with_residual: bool) -> None:
        """Restore a state, but omit the residual if it belongs to another rank."""
        self._q = saved["q"].to(self._q).clone()
        kept = saved["residual"].to(self._residual).clone()
        self._residual = kept if with_residual else torch.zeros_like(self._residual)


def _orthogonal(matrix: torch.Tensor) -> torch.Tensor:
    """Return an orthonormal basis of the columns; NaN if they are not finite."""
    if not bool(torch.isfinite(matrix).all()):
        return torch.full_like(matrix, torch.nan)
    basis: torch.Tensor = torch.linalg.qr(matrix).Q
    return basis


def states(compression: Any, parameters: Sequence[torch.Tensor]) -> list[LowRank | None]:
    """Return the state of each parameter, or None for one that is sent uncompressed."""
    if not isinstance(compression, PowerSGD):
        return [None] * len(parameters)
    found: list[LowRank | None] = []
    for parameter in parameters:
        shape = compression.shape_of(parameter)
        state = None if shape is None else LowRank(shape, compression.rank, parameter.device)
        found.append(state)
    return found
