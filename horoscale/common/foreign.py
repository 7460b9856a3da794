"""Rendezvous for ranks started by a third-party launcher.

The core reads the HOROSCALE_ variables and those of MPI. This module handles torchrun, and any
launcher that sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT as torchrun does. For batch systems
such as Slurm, see batch_meeting.
"""

from __future__ import annotations

import contextlib
import hmac
import importlib
import os
import secrets
import socket
import zlib
from collections.abc import Iterator, Sequence
from datetime import timedelta
from ipaddress import ip_address
from typing import Any

from horoscale._core import HorovodInternalError, StoreClient, StoreServer, job_secret
from horoscale.common import batch_meeting
from horoscale.common.environment import start_timeout, switch, variable
from horoscale.common.identity import Identity

_TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_MPI = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_SECRET_BYTES = 32
_LOOPBACK = "127.0.0.1"
_JOB_KEY = "job"  # in our store: the job that it belongs to
_JOB_VARIABLES = (
    "TORCHELASTIC_RUN_ID",
    "MASTER_ADDR",
    "MASTER_PORT",
    "WORLD_SIZE",
)


_known: Identity | None = None


def identity(ranks: Sequence[int]) -> Identity | None:
    """Return this process' identity from a third-party launcher, or None if there is none.

    `ranks` are those that take part in the job; empty means all. Under torchrun this blocks until
    the first of them has arrived, for at most START_TIMEOUT seconds.

    Raises ValueError if a variable does not parse, HorovodInternalError if torchrun's store cannot
    be used.
    """
    if _known is not None:
        return _known
    ours = any(variable(name)[1] is not None for name in ("RANK", "SIZE"))
    if ours or variable("CONTROLLER")[1] == "mpi":
        return None
    rendezvous = variable("RENDEZVOUS")[1] is not None
    if _is_torchrun():
        rank, size = _number("RANK"), _number("WORLD_SIZE")
        # The core raises the error on a rank that does not take part.
        if size > 1 and not rendezvous and (not ranks or rank in ranks):
            return _meet_through_torch(rank, size, ranks)
    elif (by_batch_system := batch_meeting.identity(ranks)) is not None:
        return by_batch_system
    elif rendezvous and "SLURM_STEP_NUM_TASKS" in os.environ:
        rank, size = _number("SLURM_PROCID"), _number("SLURM_STEP_NUM_TASKS")
    else:
        return None
    return Identity(rank, size) if size > 1 else None


def is_launched() -> bool:
    """Return whether a launcher that hvd.init() recognizes has started this process."""
    ours = any(variable(name)[1] is not None for name in ("RANK", "CONTROLLER"))
    srun = os.environ.get("SLURM_STEP_NUM_TASKS", "1") != "1"
    return ours or srun or _is_torchrun() or any(name in os.environ for name in _MPI)


@contextlib.contextmanager
def known_as(known: Identity) -> Iterator[None]:
    """Make identity() return this value within the block, regardless of the environment."""
    global _known
    _known = known
    try:
        yield
    finally:
        _known = None


def meet_on_one_host(store: Any, rank: int, size: int) -> Identity:
    """Return the identity of ranks on this host that share only a torch store.

    Rank 0 serves our store on loopback and publishes its port in torch's store. A forged entry can
    only lead ranks to another store of this user, because no other user has the secret's file.
    """
    encrypt = switch("ENCRYPT")
    if rank == 0:
        server, told = _serve(True, None, f"{size} ranks", encrypt)
        _served[f"port {server.port}"] = server, told
        store.set("port", told)
    else:
        told = store.get("port")
    rendezvous = f"{_LOOPBACK}:{_port(told)}"
    if rank != 0:
        _check_job(rendezvous, None, f"{size} ranks", encrypt)
    return Identity(rank, size, rendezvous)


def _is_torchrun() -> bool:
    """Return whether torchrun started this rank. Under mpirun, users may set its variables."""
    if not all(name in os.environ for name in _TORCHRUN):
        return False
    return "TORCHELASTIC_RUN_ID" in os.environ or not any(name in os.environ for name in _MPI)


# Kept until the process ends, for ranks that arrive later and for later jobs.
_store: Any = None
_served: dict[str, tuple[StoreServer, bytes]] = {}


def _meet_through_torch(rank: int, size: int, ranks: Sequence[int]) -> Identity:
    """Let the first rank serve our store and publish its address in torch's.

    Any process that reaches torch's store can read and write it. Ranks on one host therefore take
    only a loopback port from it; their secret is in a file (see LocalSecret in the core). Ranks on
    several hosts also take the secret from it, unless a variable provides the secret.

    A published address may lead to another job of this user, which has the same secret or its own
    file. Each rank therefore derives the job's identity from its own environment. A secret from a
    variable is combined with it. Without such a secret, the store on loopback, which has proved to
    be this user's, names its job.
    """
    global _store
    server = ranks[0] if ranks else 0
    key = f"rendezvous/{zlib.crc32(repr(tuple(ranks)).encode()):08x}"
    one_host = _on_one_host(size)
    encrypt = switch("ENCRYPT")  # if invalid, raises on all ranks before any of them waits
    job, given = _job(ranks), job_secret()
    secret = hmac.new(given.encode(), job.encode(), "sha256").hexdigest() if given else None
    if not one_host and encrypt and not secret:
        raise ValueError(
            "HOROSCALE_ENCRYPT=1 needs a secret where torchrun starts ranks on several hosts, "
            "because torch's store would send it in clear: set HOROSCALE_SECRET_FILE to the same "
            "file on all of them"
        )
    try:
        _store = _store or _torch_store(rank, size)
        if rank == server and key not in _served:
            _served[key] = _serve(one_host, secret, job, encrypt)
            _store.set(key, _served[key][1])
        told = _served[key][1] if rank == server else _store.get(key)
    except RuntimeError as error:  # from torch or from us
        raise HorovodInternalError(
            f"rank {rank} of {size} cannot reach rank {server} through torch's store at "
            f"MASTER_ADDR={os.environ['MASTER_ADDR']}, MASTER_PORT={os.environ['MASTER_PORT']}: "
            f"{error}"
        ) from None
    if one_host:
        rendezvous, learned = f"{_LOOPBACK}:{_port(told)}", None
    else:
        rendezvous, _, learned = told.decode(errors="replace").partition(" ")
    if rank != server and (one_host or secret):
        _check_job(rendezvous, secret, job, encrypt)
    # A secret from a variable takes precedence over the one in torch's store.
    return Identity(rank, size, rendezvous, secret or learned or None)


def _job(ranks: Sequence[int]) -> str:
    """Return what identifies this job among the user's jobs, independently of torch's store."""
    variables = [f"{name}={os.environ.get(name, '')}" for name in _JOB_VARIABLES]
    return ", ".join([*variables, f"ranks {list(ranks)}" if ranks else "all ranks"])


def _check_job(rendezvous: str, secret: str | None, job: str, encrypt: bool) -> None:
    """Raise HorovodInternalError unless the store at `rendezvous` belongs to this job.

    An attacker who relays this connection to the right store could redirect the next one. With a
    secret, the other store would have to know it. Without one, no other process can listen at the
    port.
    """
    host, _, port = rendezvous.rpartition(":")
    try:
        store = StoreClient(
            host.strip("[]"), _port(port.encode()), secret, start_timeout(), encrypt=encrypt
        )
        found = store.get(_JOB_KEY, timeout=0).decode(errors="replace")
        why = f"it belongs to the job with {found!r}"
    except HorovodInternalError as error:
        found, why = None, str(error)
    if found != job:
        raise HorovodInternalError(
            f"torch's store leads to {rendezvous}, which can't be authenticated as the store of "
            f"this job, with {job!r}: {why}. Set these variables to the same values on all ranks. "
            "If they are the same, another process has written to torch's store"
        )


def _on_one_host(size: int) -> bool:
    """Return whether all ranks are on this host, by torchrun's variables or a loopback address."""
    if "LOCAL_WORLD_SIZE" in os.environ:
        return _number("LOCAL_WORLD_SIZE") == size
    try:
        found = socket.getaddrinfo(os.environ["MASTER_ADDR"], None, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return all(ip_address(address[0]).is_loopback for *_, address in found)


def _serve(
    one_host: bool, secret: str | None, job: str, encrypt: bool
) -> tuple[StoreServer, bytes]:
    """Serve our store. Also return the value to publish about it."""
    if one_host:
        address = _LOOPBACK
    else:
        address = own_address(os.environ["MASTER_ADDR"], _number("MASTER_PORT"))
    used = secret if one_host or secret else secrets.token_hex(_SECRET_BYTES)
    server = StoreServer(address, 0, used, encrypt=encrypt)
    StoreClient(address, server.port, used, start_timeout(), encrypt=encrypt).set(
        _JOB_KEY, job.encode()
    )
    if one_host:
        return server, str(server.port).encode()
    host = f"[{address}]" if ":" in address else address
    told = f"{host}:{server.port}" if secret else f"{host}:{server.port} {used}"
    return server, told.encode()


def _port(told: bytes) -> int:
    if not told.isdigit() or int(told) > 65535:
        raise HorovodInternalError(f"torch's store has {told[:80]!r} where a port was expected")
    return int(told)


def _torch_store(rank: int, size: int) -> Any:
    """Connect to torchrun's store, or to one that rank 0 serves if there is none."""
    try:
        torch: Any = importlib.import_module("torch.distributed")
    except ImportError as error:
        raise HorovodInternalError(
            f"torch.distributed is missing ({error}); start the job with horoscalerun, or set "
            "HOROSCALE_RENDEZVOUS and HOROSCALE_SECRET"
        ) from None
    of_agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    store = torch.TCPStore(
        os.environ["MASTER_ADDR"],
        _number("MASTER_PORT"),
        size,
        is_master=rank == 0 and not of_agent,
        timeout=timedelta(seconds=start_timeout()),
        wait_for_workers=False,
        multi_tenant=True,  # the user's torch.distributed may also serve at this port
    )
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return torch.PrefixStore(f"horoscale/attempt{attempt}", store)


def own_address(peer: str, port: int) -> str:
    """Return this machine's address on the route to `peer`, which may be this machine."""
    error: OSError | None = None
    for family, kind, _, _, address in socket.getaddrinfo(peer, port, type=socket.SOCK_DGRAM):
        try:
            with socket.socket(family, kind) as probe:
                probe.connect(address)  # sends no data
                return str(probe.getsockname()[0])
        except OSError as failed:
            error = failed
    raise HorovodInternalError(f"there is no route to {peer}: {error}")


def _number(name: str) -> int:
    text = os.environ.get(name, "")
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"{name}={text!r} does not parse: expected a number")
    return int(text)
