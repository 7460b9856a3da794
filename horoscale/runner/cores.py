"""The number of cores that this process may use."""

from __future__ import annotations

import math
import os
from pathlib import Path


def available_cores(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the number of cores in the affinity mask, or fewer if a container's quota is lower."""
    cores = len(os.sched_getaffinity(0))
    quota = _quota(cgroup)
    return cores if quota is None else max(1, min(cores, math.ceil(quota)))


def _quota(cgroup: Path) -> float | None:
    """Return the CPU quota of the cgroup (version 2 or 1) in cores; None if there is none."""
    for names in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        try:
            words = " ".join((cgroup / name).read_text() for name in names).split()
            quota, period = (int(word) for word in words)
        except (OSError, ValueError):  # absent, or "max": no limit
            continue
        if quota > 0 and period > 0:
            return quota / period
    return None
