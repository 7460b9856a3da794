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


def switch(name: str) -> bool:
    """Return a variable as a bool; raise ValueError naming it if it is none."""
    full_name, value = variable(name)
    word = (value or "").strip().lower()
    if word not in _TRUE | _FALSE:
        raise ValueError(f"{full_name}={value!r} is neither 1 nor 0")
    return word in _TRUE


def refuse_foreign_launcher() -> None:
    """Raise if a launcher that is not supported started this process as one of several ranks.

    Otherwise each of them would be rank 0 of 1 and train alone. MPI's launchers are known to the
    core.
    """
    if variable("SIZE")[1] is not None or variable("RANK")[1] is not None:
        return
    size = os.environ.get("WORLD_SIZE", "")
    torchrun = all(name in os.environ for name in ("RANK", "MASTER_ADDR"))
    if torchrun and size.isdigit() and int(size) > 1:
        raise NotImplementedError(
            f"torchrun started this process as one of {size} ranks (WORLD_SIZE={size}), "
            "which this version of horoscale does not support yet. Start the job with "
            "'horoscalerun -np N python ...', or set HOROSCALE_RANK, HOROSCALE_SIZE, "
            "HOROSCALE_RENDEZVOUS and HOROSCALE_SECRET for each rank."
        )
