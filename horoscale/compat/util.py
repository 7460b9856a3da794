"""The functions of horovod.common.util that scripts use."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from horoscale.common.basics import nccl_built


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Return whether the binding of a framework, such as "torch", can be imported."""
    del verbose
    return all(
        importlib.util.find_spec(name) is not None
        for name in (ext_base_name, f"horoscale.{ext_base_name}")
    )


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Return whether GPU tensors are supported: a library to access a GPU was found."""
    del ext_base_name, verbose
    return nccl_built()


def num_rank_is_power_2(num_rank: int) -> bool:
    """Return whether a number of ranks is a power of two."""
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


def split_list(items: Sequence[Any], parts: int) -> list[Sequence[Any]]:
    """Split a list into `parts` pieces whose lengths differ by at most one."""
    short, longer = divmod(len(items), parts)
    ends = [i * short + min(i, longer) for i in range(parts + 1)]
    return [items[start:end] for start, end in pairwise(ends)]
