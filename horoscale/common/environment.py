"""What the environment says about the job, where Python has to know before the core reads it."""

from __future__ import annotations

import os

_TRUE = {"1", "true", "yes", "on"}
_FALSE = {"", "0", "false", "no", "off"}


def variable(name: str) -> tuple[str, str | None]:
    """Return the full name and the value of HOROSCALE_<name>, or else of HOROVOD_<name>."""
    for full_name in (f"HOROSCALE_{name}", f"HOROVOD_{name}"):
        if full_name in os.environ:
            return full_name, os.environ[full_name]
    return f"HOROSCALE_{name}", None


def integer(name: str, default: int) -> int:
    """Return a variable as a number; raise ValueError naming it if it is none."""
    full_name, value = variable(name)
    try:
        return default if value is None else int(value)
    except ValueError:
        raise ValueError(f"{full_name}={value!r} is not a whole number") from None


def switch(name: str) -> bool:
    """Return a variable as a bool; raise ValueError naming it if it is none."""
    full_name, value = variable(name)
    word = (value or "").strip().lower()
    if word not in _TRUE | _FALSE:
        raise ValueError(f"{full_name}={value!r} is neither 1 nor 0")
    return word in _TRUE


def refuse_foreign_launcher() -> None:
    """Raise if a launcher that is not supported started this process as one of several ranks.

    Otherwise each of them would be rank 0 of 1 and train alone.
    """
    if variable("SIZE")[1] is not None or variable("RANK")[1] is not None:
        return
    for launcher, size_variable, also_needed in (
        ("Open MPI's mpirun", "OMPI_COMM_WORLD_SIZE", ()),
        ("mpirun or mpiexec", "PMI_SIZE", ()),
        ("srun", "SLURM_STEP_NUM_TASKS", ()),  # not set in a batch shell, as SLURM_NTASKS is
        ("torchrun", "WORLD_SIZE", ("RANK", "MASTER_ADDR")),
    ):
        size = os.environ.get(size_variable, "")
        if size.isdigit() and int(size) > 1 and all(v in os.environ for v in also_needed):
            raise NotImplementedError(
                f"{launcher} started this process as one of {size} ranks ({size_variable}={size}), "
                "which this version of horoscale does not support yet. Start the job with "
                "'horoscalerun -np N python ...', or set HOROSCALE_RANK, HOROSCALE_SIZE, "
                "HOROSCALE_RENDEZVOUS and HOROSCALE_SECRET for each rank."
            )
