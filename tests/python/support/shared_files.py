"""Which files of horoscale are in /dev/shm, to check that a job leaves none behind."""

from __future__ import annotations

import os


def shared_files() -> set[str]:
    """Return the names of horoscale's files in /dev/shm.

    Other programs use /dev/shm, too. Folders of benchmarks are not included: a test in another
    process of pytest may run one at the same time.
    """
    ours = (name for name in os.listdir("/dev/shm") if "horoscale" in name)
    return {name for name in ours if not name.startswith("horoscale-bench-")}
