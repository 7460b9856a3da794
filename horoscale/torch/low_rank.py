"""PowerSGD: gradients as products of two thin matrices, with error feedback.

After Vogels, Karimireddy and Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for
Distributed Optimization" (2019). A gradient M of r rows and c columns is approximated by P Qᵀ, with
P of r rows and Q of c, both of `rank` columns: one step of power iteration from the Q of the step
before. P and Q are averaged over the ranks, in two small allreduces; M itself is not. What the
approximation lacks is added to the next step's M.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

_Saved = dict[str, torch.Tensor]


@dataclass(frozen=True)
class PowerSGD:
    """The compressor Compression.powersgd(rank), for DistributedOptimizer alone."""

    rank: int

    def compress(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Return the tensor itself: what has too little to gain travels as it is."""
        return tensor, None

    def decompress(self, tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """Return the tensor itself."""
        return tensor

    def __repr__(self) -> str:
        """How users write it."""
        return f"Compression.powersgd({self.rank})"

    def shape_of(self, parameter: torch.Tensor) -> tuple[int, int] | None:
        """Return the matrix as which a gradient is approximated; None: it travels as it is."""
        if parameter.dim() < 2 or parameter.numel() == 0 or not parameter.is_floating_point():
            return None
        rows = parameter.shape[0]
        columns = parameter.numel() // rows
        return (rows, columns) if 2 * self.rank * (rows + columns) <= rows * columns else None


def powersgd(rank: int = 4) -> PowerSGD:
    """Return the compressor of this rank. Raises ValueError unless it is at least 1."""
    if rank < 1:
        raise ValueError(f"powersgd({rank!r}): a rank is at least 1")
    return PowerSGD(rank)


class LowRank:
    """The approximation of one parameter's gradients, from step to step."""

    def __init__(self, shape: tuple[int, int], rank: int, device: torch.device) -> None:
        """Begin with no residual, and a Q that all ranks make alike."""
        rows, columns = shape
        generator = torch.Generator().manual_seed(rows * 1_000_003 + columns)
        self._q = torch.randn(columns, rank, generator=generator).to(device)
        self._residual = torch.zeros(shape, device=device)
        self._matrix = self._residual
        self._p = torch.empty(rows, rank, device=device)

    def p_of(self, gradient: torch.Tensor) -> torch.Tensor:
        """Return this rank's P, to be averaged."""
        self._matrix = gradient.reshape(self._residual.shape).float() + self._residual
        return self._matrix @ _orthogonal(self._q)

    def q_of(self, p: torch.Tensor) -> torch.Tensor:
        """Return this rank's Q for the averaged P, to be averaged too."""
        self._p = _orthogonal(p)
        return self._matrix.t() @ self._p

    def approximation(self, q: torch.Tensor) -> torch.Tensor:
        """Return the averaged gradient, and keep what this rank's lacks.

        What is not finite is told, and leaves the state as it was.
        """
        result = self._p @ q.t()
        if bool(torch.isfinite(q).all()):
            self._q = q
            self._residual = self._matrix - result
        return result

    def scale(self, factor: float) -> None:
        """Multiply what is kept, as where gradients have another scale from now on."""
        self._residual = self._residual * factor

    def save(self) -> _Saved:
        """Return the state."""
        return {"q": self._q.clone(), "residual": self._residual.clone()}

    def load(self, saved: _Saved, with_residual: bool) -> None:
        """Take a state back; where the residual is another rank's, without it."""
        self._q = saved["q"].to(self._q).clone()
        kept = saved["residual"].to(self._residual).clone()
        self._residual = kept if with_residual else torch.zeros_like(self._residual)


def _orthogonal(matrix: torch.Tensor) -> torch.Tensor:
    """Return an orthonormal basis of the columns; NaN where they are not finite."""
    if not bool(torch.isfinite(matrix).all()):
        return torch.full_like(matrix, torch.nan)
    basis: torch.Tensor = torch.linalg.qr(matrix).Q
    return basis


def states(compression: Any, parameters: Sequence[torch.Tensor]) -> list[LowRank | None]:
    """Return the state of each parameter; None for one that travels as it is."""
    if not isinstance(compression, PowerSGD):
        return [None] * len(parameters)
    found: list[LowRank | None] = []
    for parameter in parameters:
        shape = compression.shape_of(parameter)
        state = None if shape is None else LowRank(shape, compression.rank, parameter.device)
        found.append(state)
    return found
