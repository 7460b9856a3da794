"""The supported batch systems, and detection of the one under which this process runs.

Each system is a module that reads its variables. A server is queried only for a node's address.
"""

from __future__ import annotations

from collections.abc import Mapping

from horoscale.engines import lsf, pbs, slurm
from horoscale.engines.batch import Allocation, BatchTask


def find_task(environ: Mapping[str, str]) -> BatchTask | None:
    """Return this process's rank among those started by a batch system; None if it is alone.

    Raises BatchError for variables that do not parse, or a file that can't be read.
    """
    return slurm.task(environ) or lsf.task(environ)


def find_allocation(environ: Mapping[str, str]) -> Allocation | None:
    """Return the machines of the batch job that this process is part of; None if there is none.

    Raises BatchError for variables that do not parse, or a file that can't be read.
    """
    return slurm.allocation(environ) or lsf.allocation(environ) or pbs.allocation(environ)
