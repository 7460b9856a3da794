"""A tensor of a model, and this rank's part of it."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from horoscale.torch.parallel.checkpoint.layout import Layout


@dataclass
class ModelTensor:
    """A parameter or buffer.

    Attributes:
        names: its names; several if modules share the parameter.
        of: the parameter or buffer of the module.
        tensor: this rank's memory for it: the same tensor, or the elements that the rank owns.
        layout: the relation of `tensor` to the whole tensor.
        stage: its pipeline stage.
        is_tied: whether other stages have a copy of it, perhaps under the same name.
        is_parameter: whether it is a parameter, which is equal on all ranks that hold it. Buffers
            need not be.
    """

    names: list[str]
    of: torch.Tensor
    tensor: torch.Tensor
    layout: Layout
    stage: int
    is_tied: bool
    is_parameter: bool = field(default=True)
