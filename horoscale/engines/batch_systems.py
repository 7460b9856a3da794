"""The batch systems, and under which of them this process runs.

Each system is a module that reads its variables; nothing is asked of a server but a node's address.
"""

from __future__ import annotations

from collections.abc import Mapping

from horoscale.engines import lsf, pbs, slurm
from horoscale.engines.batch import Allocation, BatchTask


def find_task(environ: Mapping[str, str]) -> BatchTask | None:
    """Return which rank a batch system has started this process as; None if it is one of one.

    Raises BatchError for variables that do not parse, or a file that can't be read.
    """
    return slurm.task(environ) or lsf.task(environ)


def find_allocation(environ: Mapping[str, str]) -> Allocation | None:
    """Return the machines of the batch job that this process is part of; None if it is of none.

    Raises BatchError for variables that do not parse, or a file that can't be read.
    """
    return slurm.allocation(environ) or lsf.allocation(environ) or pbs.allocation(environ)
