"""Random numbers that ranks have in common, and others that they have not.

torch's default generator is to be alike on ranks that compute the same (those of tensor
parallelism, where tensors are whole), and different on those that see other samples: seed() makes
it so. Within fork() it differs also along an axis, for what is divided there: a dropout of divided
heads, or the shards of a weight.

A fork takes one number from the generator that it leaves. So the state of that generator is all
there is: a checkpoint of it is complete, and torch.utils.checkpoint, which restores it,
repeats the numbers of the forks within.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from horoscale.torch.parallel.mesh import Axis, Mesh, current_mesh


def seed(value: int, mesh: Mesh | None = None) -> None:
    """Seed torch alike on ranks that differ in nothing but tp, and differently on all others.

    Call it after the model is made, whose replicas begin with the same weights.

    Args:
        value: the seed of the job.
        mesh: None: current_mesh().
    """
    coordinates = (mesh or current_mesh()).coordinates
    others = [f"{name}={at}" for name, at in sorted(coordinates.items()) if name != "tp"]
    torch.manual_seed(_mix(value, *others))


@contextmanager
def fork(axis: Axis | str = "tp") -> Iterator[None]:
    """Have numbers within the context that differ along an axis, if they were alike before.

    Every rank of the axis enters it. Afterwards the default generators go on as if one number had
    been taken from the CPU's.

    Args:
        axis: an axis, or the name of one of current_mesh().
    """
    chosen = current_mesh()[axis] if isinstance(axis, str) else axis
    drawn = int(torch.randint(1 << 62, (), device="cpu"))
    with torch.random.fork_rng():
        torch.manual_seed(_mix(drawn, f"{chosen.name}={chosen.rank}"))
        yield


def _mix(*parts: object) -> int:
    """Return 62 bits that any change of the parts changes."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 2
