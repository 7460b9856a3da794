"""Trainer(sync_batchnorm=True): batch normalization over the ranks that train together."""

from __future__ import annotations

from collections.abc import Callable

import torch
from lightning.pytorch.plugins import LayerSync
from torch.nn.modules.batchnorm import _BatchNorm

from horoscale.common.process_sets import ProcessSet
from horoscale.torch import SyncBatchNorm


class SyncBatchNormOfSet(LayerSync):  # type: ignore[misc]
    """Replaces torch.nn.BatchNorm1d, 2d and 3d with hvd.SyncBatchNorm, and restores them."""

    def __init__(self, process_set: Callable[[], ProcessSet]) -> None:
        """`process_set` returns the ranks that normalize together, once they are registered."""
        self._process_set = process_set
        self._were: dict[torch.nn.Module, torch.nn.Module] = {}

    def apply(self, model: torch.nn.Module) -> torch.nn.Module:
        """Replace the layers. Parameters and statistics remain the same tensors."""
        for parent in list(model.modules()):
            for name, child in list(parent.named_children()):
                if isinstance(child, _BatchNorm) and not isinstance(child, SyncBatchNorm):
                    setattr(parent, name, self._synchronized(child))
        return model

    def revert(self, model: torch.nn.Module) -> torch.nn.Module:
        """Restore the layers that apply() has replaced."""
        for parent in list(model.modules()):
            for name, child in list(parent.named_children()):
                if child in self._were:
                    setattr(parent, name, self._were.pop(child).train(child.training))
        return model

    def _synchronized(self, layer: _BatchNorm) -> SyncBatchNorm:
        new = SyncBatchNorm(
            layer.num_features,
            layer.eps,
            layer.momentum,
            layer.affine,
            layer.track_running_stats,
            self._process_set(),
        )
        new._parameters = layer._parameters
        new._buffers = layer._buffers
        self._were[new.train(layer.training)] = layer
        return new
