"""PBS: reads the variables of a qsub allocation (OpenPBS, PBS Professional, Torque)."""

from __future__ import annotations

import socket
from collections.abc import Mapping

from horoscale.engines.batch import Allocation, BatchError


def allocation(environ: Mapping[str, str]) -> Allocation | None:
    """Return the hosts of the job that this process is part of, with a slot per line of the file.

    Raises BatchError if the file can't be read.
    """
    path = environ.get("PBS_NODEFILE")
    if not path or "PBS_JOBID" not in environ:
        return None
    slots = count_lines(path, "PBS_NODEFILE")
    own = socket.gethostname()
    return Allocation(
        system="PBS",
        slots=slots,
        own=own if own in slots else None,
        shell=None,  # none of PBS's own commands forwards standard input
        more="qsub's -l select=N:mpiprocs=M (Torque: -l nodes=N:ppn=M) gives more",
    )


def count_lines(path: str, variable: str) -> dict[str, int]:
    """Return the names in a file with a line per slot, in order of first occurrence.

    Raises BatchError, which names the variable that contains the path.
    """
    slots: dict[str, int] = {}
    try:
        with open(path, encoding="utf-8") as file:
            for line in file:
                if name := line.strip():
                    slots[name] = slots.get(name, 0) + 1
    except (OSError, UnicodeDecodeError) as error:
        raise BatchError(f"{variable}={path}: {error}") from None
    if not slots:
        raise BatchError(f"{variable}={path}: there is no host in it")
    return slots
