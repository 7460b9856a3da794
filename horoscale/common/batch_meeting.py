"""How ranks meet that a batch system has started, with nothing written by hand.

The first rank serves the job's store, and leaves where and with which secret in a file in the
user's home, which the nodes of a cluster share; only this user can read it. It is gone when all
have met. Where the variables give a secret no file is needed: the store is at the first node, at a
port that follows from the job's number.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import secrets
import socket
import stat
import time
import zlib
from collections.abc import Sequence
from pathlib import Path

from horoscale._core import HorovodInternalError, StoreServer, build_info, job_secret
from horoscale.common.environment import start_timeout, switch, variable
from horoscale.common.identity import Identity
from horoscale.engines.batch import BatchTask
from horoscale.engines.batch_systems import find_task

_SECRET_BYTES = 32
_FOLDER = ".horoscale"  # in the home
_MAX_BYTES = 4096
_FIRST_WAIT_S, _LAST_WAIT_S = 0.02, 0.5
# What a process manager of MPI tells its ranks; srun without --mpi is none.
_PROCESS_MANAGERS = ("PMI_RANK", "PMIX_RANK")
# What an mpirun says, which may have been started by the batch system's tasks.
_MPIRUN_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")

_met: dict[tuple[int, ...], Identity] = {}  # later jobs of these processes meet there too
_servers: list[StoreServer] = []  # until the process ends
_left: list[Path] = []  # files, until all have met


def identity(ranks: Sequence[int]) -> Identity | None:
    """Return which rank a batch system says that this process is; None where MPI or nobody does.

    `ranks` are those that take part, or empty. May block for START_TIMEOUT seconds, for the first
    of them.

    Raises ValueError where a variable does not parse, HorovodInternalError where ranks can't meet.
    """
    task = find_task(os.environ)
    if task is None or _is_mpi(task):
        return None
    if variable("HOSTNAME")[1] is None:
        os.environ["HOROSCALE_HOSTNAME"] = task.node
    key = tuple(ranks)
    if ranks and task.rank not in ranks:
        return Identity(task.rank, task.size)  # the core tells it so
    if key not in _met:
        _met[key] = _meet(task, ranks)
    return _met[key]


def _is_mpi(task: BatchTask) -> bool:
    """Whether the ranks meet over MPI: they have a process manager, and there is a library."""
    sizes = [os.environ[name] for name in _MPIRUN_SIZES if name in os.environ]
    if any(size != str(task.size) for size in sizes):
        return True
    if variable("CONTROLLER")[1] is not None:
        return False  # "mpi" is the core's business
    manages = any(name in os.environ for name in _PROCESS_MANAGERS)
    return manages and bool(build_info()["backends"]["mpi"]["available"])


def _meet(task: BatchTask, ranks: Sequence[int]) -> Identity:
    if variable("RENDEZVOUS")[1] is not None:
        return Identity(task.rank, task.size)
    if job_secret() is not None:
        rendezvous = f"{_bracketed(task.first_address())}:{task.port}"
        return Identity(task.rank, task.size, rendezvous, served=False)
    first = ranks[0] if ranks else 0
    subset = f"-{zlib.crc32(repr(tuple(ranks)).encode()):08x}" if ranks else ""
    path = _folder() / f"{task.job}{subset}"
    if task.rank == first:
        rendezvous, secret = _serve(task)
        _leave(path, f"{rendezvous} {secret}\n")
    else:
        rendezvous, secret = _find(path, task, first)
    return Identity(task.rank, task.size, rendezvous, secret)


def _serve(task: BatchTask) -> tuple[str, str]:
    """Serve the store at this node's address; return host:port and the secret."""
    node, secret = task.own_address(), secrets.token_hex(_SECRET_BYTES)
    try:
        found = socket.getaddrinfo(node, 0, type=socket.SOCK_STREAM)
        addresses = dict.fromkeys(str(address[0]) for *_, address in found)
        server = StoreServer(",".join(addresses), 0, secret, encrypt=switch("ENCRYPT"))
    except (OSError, HorovodInternalError) as error:
        raise HorovodInternalError(
            f"rank {task.rank} can't serve the job's store at {node}, which is the address of "
            f"{task.node}: {error}. Export HOROSCALE_RENDEZVOUS=host:port and HOROSCALE_SECRET in "
            "the batch script to say where rank 0 is"
        ) from None
    _servers.append(server)
    return f"{_bracketed(node)}:{server.port}", secret


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


# ------------------------------------------------------------------ the file


def _folder() -> Path:
    """Return the folder of the files; make it if there is none."""
    folder = Path("~").expanduser() / _FOLDER
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise HorovodInternalError(f"{error}: {_WITHOUT_FILE}") from None
    _check_private(found, folder, of_others=stat.S_IWGRP | stat.S_IWOTH)
    return folder


_WITHOUT_FILE = (
    "where nodes share no home that can be written, export HOROSCALE_SECRET=$(openssl rand -hex "
    "32) in the batch script, before the command that starts the ranks"
)


def _check_private(found: os.stat_result, path: Path, of_others: int) -> None:
    if found.st_uid != os.geteuid():
        raise HorovodInternalError(f"{path} belongs to user {found.st_uid}, not to you")
    if stat.S_ISLNK(found.st_mode) or found.st_mode & of_others:
        raise HorovodInternalError(f"others can change or read {path}: remove it")


def _leave(path: Path, text: str) -> None:
    """Write the file, at once and for this user only; it is removed when all have met."""
    new = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    try:
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        _left.append(new)
        with open(descriptor, "w", encoding="ascii") as file:
            file.write(text)
            file.flush()
            os.fsync(descriptor)
        os.replace(new, path)
        _left.append(path)
    except OSError as error:
        raise HorovodInternalError(f"{error}: {_WITHOUT_FILE}") from None


def remove_file() -> None:
    """Remove what the first rank has left; to be called when all have met."""
    while _left:
        with contextlib.suppress(OSError):
            _left.pop().unlink()


def _find(path: Path, task: BatchTask, first: int) -> tuple[str, str]:
    """Wait for the first rank's file; return host:port and the secret."""
    seconds = start_timeout()
    deadline, wait = time.monotonic() + seconds, _FIRST_WAIT_S
    while (text := _read(path)) is None:
        left = deadline - time.monotonic()
        if left <= 0:
            raise HorovodInternalError(
                f"rank {task.rank} of {task.size}, on {task.node}, finds no file {path} of rank "
                f"{first} after {seconds:g} s (HOROSCALE_START_TIMEOUT): that rank has not called "
                f"hvd.init(), or its home is another: {_WITHOUT_FILE}"
            )
        time.sleep(min(wait, left))
        wait = min(1.5 * wait, _LAST_WAIT_S)
    rendezvous, _, secret = text.strip().partition(" ")
    return rendezvous, secret


def _read(path: Path) -> str | None:
    """Return what is in the file; None while there is none."""
    try:
        # Over the network a folder that is opened is looked at anew for files that were not there.
        os.close(os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY))
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise HorovodInternalError(f"{error}: {_WITHOUT_FILE}") from None
    with open(descriptor, encoding="ascii", errors="replace") as file:
        _check_private(os.fstat(descriptor), path, of_others=stat.S_IRWXG | stat.S_IRWXO)
        return file.read(_MAX_BYTES)


atexit.register(remove_file)  # ranks that did not come
