"""A tensor of a model, and what this rank holds of it."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from horoscale.torch.parallel.checkpoint.layout import Layout


@dataclass
class ModelTensor:
    """A parameter or buffer.

    Attributes:
        names: the names that it has; of a parameter that modules share, several.
        of: the parameter or buffer of the module.
        tensor: this rank's memory for it: the same, or the elements that the rank owns.
        layout: what that is of the whole tensor.
        stage: which stage of a pipeline it belongs to.
        is_tied: whether other stages have a copy of it, perhaps under the same name.
        is_parameter: whether it is one, and alike on all ranks that have it; a buffer need not be.
    """

    names: list[str]
    of: torch.Tensor
    tensor: torch.Tensor
    layout: Layout
    stage: int
    is_tied: bool
    is_parameter: bool = field(default=True)
