"""Rendezvous for ranks started by a batch system, without configuration.

The first rank serves the job's store. It writes the store's address and secret to a file in the
user's home directory, which a cluster's nodes share and which only this user can read. The file is
removed when all ranks have met. If the environment provides a secret, no file is needed: the store
is on the first node, at a port derived from the job's id.
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
_FOLDER = ".horoscale"  # in the home directory
_MAX_BYTES = 4096
_FIRST_WAIT_S, _LAST_WAIT_S = 0.02, 0.5
# Set by an MPI process manager for its ranks. srun without --mpi is not one.
_PROCESS_MANAGERS = ("PMI_RANK", "PMIX_RANK")
# Set by an mpirun, which the batch system's tasks may have started.
_MPIRUN_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")

_met: dict[tuple[int, ...], Identity] = {}  # for later jobs of these processes
_servers: list[StoreServer] = []  # kept until the process ends
_left: list[Path] = []  # files to remove when all ranks have met


def identity(ranks: Sequence[int]) -> Identity | None:
    """Return this process' identity from the batch system's variables.

    Returns None if the ranks meet over MPI or if no batch system started them. `ranks` are those
    that take part; empty means all. May wait for the first of them for START_TIMEOUT seconds.

    Raises ValueError if a variable does not parse, HorovodInternalError if the ranks cannot meet.
    """
    task = find_task(os.environ)
    if task is None or _is_mpi(task):
        return None
    if variable("HOSTNAME")[1] is None:
        os.environ["HOROSCALE_HOSTNAME"] = task.node
    key = tuple(ranks)
    if ranks and task.rank not in ranks:
        return Identity(task.rank, task.size)  # the core raises the error
    if key not in _met:
        _met[key] = _meet(task, ranks)
    return _met[key]


def _is_mpi(task: BatchTask) -> bool:
    """Return whether the ranks meet over MPI: a process manager and an MPI library are present."""
    sizes = [os.environ[name] for name in _MPIRUN_SIZES if name in os.environ]
    if any(size != str(task.size) for size in sizes):
        return True
    if variable("CONTROLLER")[1] is not None:
        return False  # the core handles "mpi"
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
            f"rank {task.rank} cannot serve the job's store at {node}, the address of "
            f"{task.node}: {error}. To choose the address of rank 0, export "
            "HOROSCALE_RENDEZVOUS=host:port and HOROSCALE_SECRET in the batch script"
        ) from None
    _servers.append(server)
    return f"{_bracketed(node)}:{server.port}", secret


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


# ------------------------------------------------------------------ the file


def _folder() -> Path:
    """Return the folder for the files; create it if necessary."""
    folder = Path("~").expanduser() / _FOLDER
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise HorovodInternalError(f"{error}: {_WITHOUT_FILE}") from None
    _check_private(found, folder, of_others=stat.S_IWGRP | stat.S_IWOTH)
    return folder


_WITHOUT_FILE = (
    "if the nodes do not share a writable home directory, export HOROSCALE_SECRET=$(openssl rand "
    "-hex 32) in the batch script, before the command that starts the ranks"
)


def _check_private(found: os.stat_result, path: Path, of_others: int) -> None:
    if found.st_uid != os.geteuid():
        raise HorovodInternalError(f"{path} belongs to user {found.st_uid}, not to you")
    if stat.S_ISLNK(found.st_mode) or found.st_mode & of_others:
        raise HorovodInternalError(f"other users can read or change {path}: remove it")


def _leave(path: Path, text: str) -> None:
    """Write the file atomically, readable by this user only. Remove it when all ranks have met."""
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
    """Remove the first rank's file. Called when all ranks have met."""
    while _left:
        with contextlib.suppress(OSError):
            _left.pop().unlink()


def _find(path: Path, task: BatchTask, first: int) -> tuple[str, str]:
    """Wait for the first rank's file. Return host:port and the secret."""
    seconds = start_timeout()
    deadline, wait = time.monotonic() + seconds, _FIRST_WAIT_S
    while (text := _read(path)) is None:
        left = deadline - time.monotonic()
        if left <= 0:
            raise HorovodInternalError(
                f"rank {task.rank} of {task.size}, on {task.node}, finds no file {path} of rank "
                f"{first} after {seconds:g} s (HOROSCALE_START_TIMEOUT). That rank has not called "
                f"hvd.init(), or it has a different home directory: {_WITHOUT_FILE}"
            )
        time.sleep(min(wait, left))
        wait = min(1.5 * wait, _LAST_WAIT_S)
    rendezvous, _, secret = text.strip().partition(" ")
    return rendezvous, secret


def _read(path: Path) -> str | None:
    """Return the contents of the file, or None while it does not exist."""
    try:
        # On a network file system, opening the folder refreshes the client's list of its files.
        os.close(os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY))
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise HorovodInternalError(f"{error}: {_WITHOUT_FILE}") from None
    with open(descriptor, encoding="ascii", errors="replace") as file:
        _check_private(os.fstat(descriptor), path, of_others=stat.S_IRWXG | stat.S_IRWXO)
        return file.read(_MAX_BYTES)


atexit.register(remove_file)  # in case ranks did not arrive
