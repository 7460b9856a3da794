"""Strategy: one way to divide the training of a model among ranks. Pure data."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from horoscale.torch.parallel.mesh import AXES, ORDER
from horoscale.torch.parallel.planning.recomputation import CHOICES, Recompute


@dataclass(frozen=True)
class Strategy:
    """The number of ranks for each kind of parallelism, and how a step runs.

    Attributes:
        tp: the number of ranks among which layers are divided.
        cp: the number of ranks among which sequences are divided.
        pp: the number of ranks with a stage of the model each.
        dp: the number of ranks that train the same parameters on different samples.
        stage: the state that ZeRO divides over dp: 0 nothing, 1 the optimizer's, 2 also gradients,
            3 also parameters.
        microbatches: the number of parts of a rank's share of the batch, run one after the other.
        recompute: the activations that the backward pass recomputes: False, "selective", "sqrt" or
            True. See par.plan().
        order: the placement: the axes, that of neighboring ranks first.
    """

    tp: int = 1
    cp: int = 1
    pp: int = 1
    dp: int = 1
    stage: int = 0
    microbatches: int = 1
    recompute: Recompute = False
    order: str = ORDER

    def __post_init__(self) -> None:
        """Raise ValueError for invalid numbers of ranks, microbatches or stages."""
        for name in (*AXES, "microbatches"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: at least 1 is needed")
        if self.stage not in (0, 1, 2, 3):
            raise ValueError(f"stage={self.stage} is none of 0 to 3")
        if self.recompute not in CHOICES:
            raise ValueError(f"recompute={self.recompute!r} is none of {CHOICES}")

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return prod(self.sizes.values())

    @property
    def sizes(self) -> dict[str, int]:
        """The extent of each axis, the axis of neighboring ranks first."""
        names = [*self.order.split("-")]
        names += [name for name in AXES if name not in names]
        return {name: int(getattr(self, name)) for name in names}

    def __str__(self) -> str:
        parts = [f"{name}={size}" for name, size in self.sizes.items() if size > 1] or ["dp=1"]
        if self.stage:
            parts.append(f"stage={self.stage}")
        if self.microbatches > 1:
            parts.append(f"microbatches={self.microbatches}")
        if self.recompute:
            parts.append("recompute" if self.recompute is True else f"recompute={self.recompute}")
        return " ".join(parts)
