"""Offload: what a rank does not need at the moment waits on a disk, or in the host's memory."""

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
