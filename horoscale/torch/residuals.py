"""The residuals of a process set, in the form that optimizers save and load."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from horoscale.common.arguments import set_id
from horoscale.common.compression import Selection
from horoscale.common.job import at_end, current_runtime, is_initialized
from horoscale.common.process_sets import ProcessSet, at_removal

RESIDUALS = "horoscale_residuals"  # the key in a state_dict

# By process set id: the loss scale of its residuals, which all of its optimizers share.
_loss_scales: dict[int, float] = {}
at_end(_loss_scales.clear)


def _forget_loss_scale(process_set: int) -> None:
    # A later process set with this id starts without residuals.
    _loss_scales.pop(process_set, None)


at_removal(_forget_loss_scale)


@dataclass(frozen=True)
class Residuals:
    """This rank's errors of lossy encodings, which a process set's tensors still have to send."""

    selection: Selection
    process_set: ProcessSet

    @property
    def are_kept(self) -> bool:
        """Whether residuals can exist: an encoding is lossy, and this rank is in the set."""
        return self.selection.is_lossy and is_initialized() and bool(self.process_set.included())

    @property
    def loss_scale(self) -> float:
        """The factor by which the residuals are scaled."""
        return _loss_scales.get(set_id(self.process_set), 1.0)

    def save(self) -> torch.Tensor | None:
        """Return the residuals as uint8 of shape (bytes,), or None if none are kept."""
        if not self.are_kept:
            return None
        saved = current_runtime().save_residuals(set_id(self.process_set))
        return torch.frombuffer(bytearray(saved), dtype=torch.uint8)

    def load(self, saved: torch.Tensor | None, loss_scale: float | None = None) -> None:
        """Restore residuals that belong to this rank of the same set, or else reset them."""
        runtime = current_runtime()
        process_set = set_id(self.process_set)
        if saved is None or not runtime.load_residuals(process_set, saved.cpu().numpy().tobytes()):
            runtime.scale_residuals(process_set, 0.0)
        if loss_scale is not None:
            _loss_scales[process_set] = loss_scale

    def rescale(self, loss_scale: float) -> None:
        """Scale the residuals from the current loss scale to another one."""
        process_set = set_id(self.process_set)
        current_runtime().scale_residuals(process_set, loss_scale / self.loss_scale)
        _loss_scales[process_set] = loss_scale
