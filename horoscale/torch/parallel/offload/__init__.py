"""Offload: keeps a rank's state on a disk, or in host memory, while it is not in use."""

from horoscale.torch.parallel.offload.activations import (
    DiskOffload,
    HostOffload,
    offload_activations,
)
from horoscale.torch.parallel.offload.direct import OffloadError
from horoscale.torch.parallel.offload.store import Area, Store, Transfer

__all__ = [
    "Area",
    "DiskOffload",
    "HostOffload",
    "OffloadError",
    "Store",
    "Transfer",
    "offload_activations",
]
