"""Random numbers that are shared by ranks, and random numbers that differ between them.

torch's default generator must be equal on ranks that compute the same values (those of tensor
parallelism, where tensors are whole), and different on ranks with different samples. seed()
arranges that. Inside fork(), the generator also differs along an axis, for divided tensors: the
dropout of divided heads, or the shards of a weight.

A fork takes one number from the outer generator. The state of that generator is therefore the
complete state: a checkpoint needs nothing else, and torch.utils.checkpoint, which restores it,
reproduces the numbers of the forks inside.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from horoscale.torch.parallel.mesh import Axis, Mesh, current_mesh


def seed(value: int, mesh: Mesh | None = None) -> None:
    """Seed torch equally on ranks that differ only in tp, and differently on all others.

    Call it after the model is created, because its replicas must start with the same weights.

    Args:
        value: the seed of the job.
        mesh: the mesh. None: current_mesh().
    """
    coordinates = (mesh or current_mesh()).coordinates
    others = [f"{name}={at}" for name, at in sorted(coordinates.items()) if name != "tp"]
    torch.manual_seed(_mix(value, *others))


@contextmanager
def fork(axis: Axis | str = "tp") -> Iterator[None]:
    """Use random numbers inside the block that differ along an axis.

    Every rank of the axis must enter it. Afterwards the default generators continue as if one
    number had been taken from the CPU's.

    Args:
        axis: an axis, or the name of one of current_mesh().
    """
    chosen = current_mesh()[axis] if isinstance(axis, str) else axis
    drawn = int(torch.randint(1 << 62, (), device="cpu"))
    with torch.random.fork_rng():
        torch.manual_seed(_mix(drawn, f"{chosen.name}={chosen.rank}"))
        yield


def _mix(*parts: object) -> int:
    """Return a 62-bit hash of the parts."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 2
