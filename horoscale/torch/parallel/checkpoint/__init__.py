"""Checkpoints of divided models: each rank writes what it holds, and reads what it needs.

save() and load() use the files of torch.distributed.checkpoint, save_weights() and load_weights()
whole weights in those of safetensors. See docs/checkpoints.md.
"""

from horoscale.torch.parallel.checkpoint.errors import CheckpointError
from horoscale.torch.parallel.checkpoint.folders import latest as latest_checkpoint
from horoscale.torch.parallel.checkpoint.loading import load
from horoscale.torch.parallel.checkpoint.saving import Save, save
from horoscale.torch.parallel.checkpoint.weights import load_weights, save_weights

__all__ = [
    "CheckpointError",
    "Save",
    "latest_checkpoint",
    "load",
    "load_weights",
    "save",
    "save_weights",
]
