"""The residuals of a process set, in the form that optimizers save and load."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from horoscale.common.arguments import set_id
from horoscale.common.compression import Selection
from horoscale.common.job import current_runtime, is_initialized
from horoscale.common.process_sets import ProcessSet

RESIDUALS = "horoscale_residuals"  # the key in a state_dict


@dataclass(frozen=True)
class Residuals:
    """This rank's errors of lossy encodings, which a process set's tensors still have to send."""

    selection: Selection
    process_set: ProcessSet

    @property
    def are_kept(self) -> bool:
        """Whether residuals can exist: an encoding is lossy, and this rank is in the set."""
        return self.selection.is_lossy and is_initialized() and bool(self.process_set.included())

    def save(self) -> torch.Tensor | None:
        """Return the residuals as uint8 of shape (bytes,), or None if none are kept."""
        if not self.are_kept:
            return None
        saved = current_runtime().save_residuals(set_id(self.process_set))
        return torch.frombuffer(bytearray(saved), dtype=torch.uint8)

    def load(self, saved: torch.Tensor | None) -> None:
        """Restore residuals that belong to this rank of the same set, or else reset them."""
        runtime = current_runtime()
        process_set = set_id(self.process_set)
        if saved is None or not runtime.load_residuals(process_set, saved.cpu().numpy().tobytes()):
            runtime.scale_residuals(process_set, 0.0)
