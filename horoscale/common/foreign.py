"""Ranks that somebody else's launcher has started, and how they find each other.

HOROSCALE_ and MPI's variables are the core's business. Here is what torchrun sets, or anything else
that sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT as it does. Batch systems such as Slurm have
batch_meeting.
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
_JOB_KEY = "job"  # in our store: which one it is of
_JOB_VARIABLES = (
    "TORCHELASTIC_RUN_ID",
    "MASTER_ADDR",
    "MASTER_PORT",
    "WORLD_SIZE",
)


_known: Identity | None = None


def identity(ranks: Sequence[int]) -> Identity | None:
    """Return who a foreign launcher says that this process is; None if there is none.

    `ranks` are those that take part in the job, or empty. Under torchrun it blocks until the first
    of them has come, for at most START_TIMEOUT seconds.

    Raises ValueError where a variable does not parse, HorovodInternalError where torchrun's store
    can't be used.
    """
    if _known is not None:
        return _known
    ours = any(variable(name)[1] is not None for name in ("RANK", "SIZE"))
    if ours or variable("CONTROLLER")[1] == "mpi":
        return None
    rendezvous = variable("RENDEZVOUS")[1] is not None
    if _is_torchrun():
        rank, size = _number("RANK"), _number("WORLD_SIZE")
        # A rank that takes no part is told so by the core.
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
    """Tell whether a launcher that hvd.init() knows has started this process."""
    ours = any(variable(name)[1] is not None for name in ("RANK", "CONTROLLER"))
    srun = os.environ.get("SLURM_STEP_NUM_TASKS", "1") != "1"
    return ours or srun or _is_torchrun() or any(name in os.environ for name in _MPI)


@contextlib.contextmanager
def known_as(known: Identity) -> Iterator[None]:
    """Have identity() return this meanwhile, whatever the environment says."""
    global _known
    _known = known
    try:
        yield
    finally:
        _known = None


def meet_on_one_host(store: Any, rank: int, size: int) -> Identity:
    """Return the identity of ranks of this host that have nothing but a store of torch's.

    Rank 0 serves our store on loopback, and says in torch's at which port. Who writes there can
    lead ranks to no store but this user's own, as only those have the file with its secret.
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
    """Whether these variables start ranks; under mpirun they may be set for torch's sake."""
    if not all(name in os.environ for name in _TORCHRUN):
        return False
    return "TORCHELASTIC_RUN_ID" in os.environ or not any(name in os.environ for name in _MPI)


# Both until the process ends: ranks that come later, and later jobs, use them too.
_store: Any = None
_served: dict[str, tuple[StoreServer, bytes]] = {}


def _meet_through_torch(rank: int, size: int, ranks: Sequence[int]) -> Identity:
    """Have the first rank serve our store, and tell by torch's where.

    Any process that reaches torch's store can read and write there. So ranks of one host take no
    more from it than a port on loopback; their secret is in a file (see LocalSecret in the core).
    Ranks of several hosts learn the secret there too, unless the variables say what it is.

    What is told may lead to another job of this user, which has the same secret or a file of its
    own. Each rank therefore knows by its own environment which job it is of. A secret that is given
    is used with that mixed in; where there is none, the store at a port of loopback, which has
    proved to be this user's, says whose it is.
    """
    global _store
    server = ranks[0] if ranks else 0
    key = f"rendezvous/{zlib.crc32(repr(tuple(ranks)).encode()):08x}"
    one_host = _on_one_host(size)
    encrypt = switch("ENCRYPT")  # errors of variables are told on all ranks, before any waits
    job, given = _job(ranks), job_secret()
    secret = hmac.new(given.encode(), job.encode(), "sha256").hexdigest() if given else None
    if not one_host and encrypt and not secret:
        raise ValueError(
            "HOROSCALE_ENCRYPT=1 needs a secret where torchrun starts ranks on several hosts, as "
            "torch's store would send it in clear: set HOROSCALE_SECRET_FILE to the same for all"
        )
    try:
        _store = _store or _torch_store(rank, size)
        if rank == server and key not in _served:
            _served[key] = _serve(one_host, secret, job, encrypt)
            _store.set(key, _served[key][1])
        told = _served[key][1] if rank == server else _store.get(key)
    except RuntimeError as error:  # of torch, or ours
        raise HorovodInternalError(
            f"rank {rank} of {size} can't meet rank {server} through torch's store at "
            f"MASTER_ADDR={os.environ['MASTER_ADDR']}, MASTER_PORT={os.environ['MASTER_PORT']}: "
            f"{error}"
        ) from None
    if one_host:
        rendezvous, learned = f"{_LOOPBACK}:{_port(told)}", None
    else:
        rendezvous, _, learned = told.decode(errors="replace").partition(" ")
    if rank != server and (one_host or secret):
        _check_job(rendezvous, secret, job, encrypt)
    # What is told here goes for nothing where the variables say what the secret is.
    return Identity(rank, size, rendezvous, secret or learned or None)


def _job(ranks: Sequence[int]) -> str:
    """Return what tells this job from others of this user, by nothing that torch's store says."""
    variables = [f"{name}={os.environ.get(name, '')}" for name in _JOB_VARIABLES]
    return ", ".join([*variables, f"ranks {list(ranks)}" if ranks else "all ranks"])


def _check_job(rendezvous: str, secret: str | None, job: str, encrypt: bool) -> None:
    """Raise HorovodInternalError unless the store at `rendezvous` is that of this job.

    Who relays this connection to the right store can lead the next one elsewhere: to no store that
    lacks the secret, where one is given. Where none is, nobody else can listen at the port.
    """
    host, _, port = rendezvous.rpartition(":")
    try:
        store = StoreClient(
            host.strip("[]"), _port(port.encode()), secret, start_timeout(), encrypt=encrypt
        )
        found = store.get(_JOB_KEY, timeout=0).decode(errors="replace")
        why = f"it is of the job with {found!r}"
    except HorovodInternalError as error:
        found, why = None, str(error)
    if found != job:
        raise HorovodInternalError(
            f"torch's store leads to {rendezvous}, which can't be authenticated as the store of "
            f"this job, with {job!r}: {why}. All ranks of a job need the same of these variables; "
            "if they have, somebody else has written to torch's store"
        )


def _on_one_host(size: int) -> bool:
    """Whether all ranks are here: torchrun says so, or their meeting point can't be elsewhere."""
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
    """Serve our store; also return what the others are told of it."""
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
        raise HorovodInternalError(f"torch's store tells {told[:80]!r} where a port should be")
    return int(told)


def _torch_store(rank: int, size: int) -> Any:
    """Connect to torchrun's store, or where there is none to one that rank 0 serves."""
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
        multi_tenant=True,  # the user's torch.distributed may serve at this port as well
    )
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return torch.PrefixStore(f"horoscale/attempt{attempt}", store)


def own_address(peer: str, port: int) -> str:
    """Return the address of this machine on the way to another one, or to itself."""
    error: OSError | None = None
    for family, kind, _, _, address in socket.getaddrinfo(peer, port, type=socket.SOCK_DGRAM):
        try:
            with socket.socket(family, kind) as probe:
                probe.connect(address)  # sends nothing
                return str(probe.getsockname()[0])
        except OSError as failed:
            error = failed
    raise HorovodInternalError(f"there is no way to {peer}: {error}")


def _number(name: str) -> int:
    text = os.environ.get(name, "")
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"{name}={text!r} does not parse: expected a number")
    return int(text)
