"""Functions that start, end and query a job."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any, Literal

from horoscale._core import HorovodInternalError, MismatchError, ReduceOp, build_info
from horoscale.common import communicators, environment, job, telemetry
from horoscale.common.elastic_link import elastic_link
from horoscale.common.job import current_runtime, is_initialized
from horoscale.common.process_set_registration import begin_process_sets
from horoscale.common.process_sets import ProcessSet, global_process_set
from horoscale.common.standby import Standby

__all__ = [
    "Adasum",
    "Average",
    "BitwiseAnd",
    "BitwiseOr",
    "BitwiseXor",
    "Max",
    "Min",
    "Product",
    "Sum",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "current_runtime",
    "ddl_built",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "metrics",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]

telemetry.watch()

Average = ReduceOp.AVERAGE
Sum = ReduceOp.SUM
Adasum = ReduceOp.ADASUM
Min = ReduceOp.MIN
Max = ReduceOp.MAX
Product = ReduceOp.PRODUCT
BitwiseAnd = ReduceOp.BITWISE_AND
BitwiseOr = ReduceOp.BITWISE_OR
BitwiseXor = ReduceOp.BITWISE_XOR


def init(
    comm: Any = None,
    process_sets: Sequence[ProcessSet] | Literal["dynamic"] | None = None,
) -> None:
    """Join the job and connect to its other ranks. A second call has no effect.

    Args:
        comm: the ranks that take part. A list of ranks, the same on each of them, which are
            renumbered in the order of the list. Or an mpi4py communicator. Or a list of
            communicators: the first one defines the job, each of the others a process set. None:
            all ranks.
        process_sets: process sets to register at the start. A set that any rank lists is registered
            on all ranks. "dynamic" allows add_process_set() and remove_process_set() later.

    Raises:
        ValueError: an argument or an environment variable is invalid (the message names it), this
            rank is not in `comm`, or a second call lists process sets that are not registered.
        HorovodInternalError: ranks did not arrive within HOROSCALE_START_TIMEOUT seconds; or the
            job's secret is wrong; or an MPI launcher started this process but MPI cannot be used;
            or torchrun started it but its store cannot be used.
    """
    ranks, job_comm, comm_sets = _members_of(comm)
    dynamic, own_sets = _sets_of(process_sets)
    own_sets += comm_sets
    with job.lock():
        if is_initialized():
            new = [one for one in own_sets if one.process_set_id is None]
            if new:
                raise ValueError(
                    f"hvd.init() was already called: add {new} with hvd.add_process_set()"
                )
            return
        handle = 0 if job_comm is None else communicators.handle_of(job_comm)
        while True:
            runtime = job.start(ranks, handle)
            if isinstance(runtime, Standby):  # its first view registers them
                runtime.process_sets, runtime.dynamic = own_sets, dynamic
                return
            try:
                begin_process_sets(runtime, own_sets, dynamic, job_comm, ranks)
                return
            except BaseException as error:
                job.stop()
                if not _may_begin_again(error):
                    raise


def _may_begin_again(error: BaseException) -> bool:
    """If an elastic job's ranks have changed meanwhile, wait for the next view."""
    link = elastic_link()
    if link is None or isinstance(error, MismatchError):
        return False
    if not isinstance(error, HorovodInternalError):
        return False
    link.next_view(commits=(), cause=str(error))
    return True


def _members_of(comm: object) -> tuple[list[int], Any, list[ProcessSet]]:
    """Return the job's ranks (empty: all) or communicator, and the process sets of `comm`."""
    if comm is None:
        return [], None, []
    members: list[Any] = list(comm) if isinstance(comm, list | tuple | range) else [comm]
    if members and all(communicators.is_communicator(member) for member in members):
        communicators.check(members[0], "hvd.init(comm)")
        return [], members[0], [ProcessSet(member) for member in members[1:]]
    try:
        return [index(member) for member in members], None, []
    except TypeError:
        raise TypeError(
            f"hvd.init(comm) takes a list of ranks or communicators of mpi4py, not {comm!r}"
        ) from None


def _sets_of(process_sets: object) -> tuple[bool, list[ProcessSet]]:
    """Return whether sets can be added later, and the initial sets."""
    dynamic = environment.switch("DYNAMIC_PROCESS_SETS")
    if process_sets is None:
        return dynamic, []
    if process_sets == "dynamic":
        return True, []
    if isinstance(process_sets, list | tuple) and all(
        isinstance(one, ProcessSet) for one in process_sets
    ):
        return dynamic, [one for one in process_sets if one is not global_process_set]
    raise ValueError(
        f'hvd.init(process_sets=...) takes a list of ProcessSet or "dynamic", not {process_sets!r}'
    )


def shutdown() -> None:
    """Leave the job without waiting for other ranks. Pending operations fail.

    All ranks may then call hvd.init() again. Does nothing if this process is not in a job.
    """
    job.stop()


def rank(process_set: ProcessSet = global_process_set) -> int:
    """Return the rank of this process in the job or in a process set, counted from 0.

    Raises ValueError before hvd.init(), if the set is not registered, or if this process does not
    belong to it.
    """
    if process_set.process_set_id == 0:  # not "is": Python compilers compare values only
        return current_runtime().topology.rank
    position = process_set.rank()
    if position is None:
        raise ValueError(_unregistered(process_set))
    return position


def size(process_set: ProcessSet = global_process_set) -> int:
    """Return the number of processes in the job or in a process set.

    Raises ValueError before hvd.init(), or if the set is not registered.
    """
    if process_set.process_set_id == 0:
        return current_runtime().topology.size
    number = process_set.size()
    if number is None:
        raise ValueError(_unregistered(process_set))
    return number


def _unregistered(process_set: ProcessSet) -> str:
    current_runtime()  # raises the better error if there is no job
    return f"{process_set} is not registered"


def local_rank() -> int:
    """Return the rank of this process among those of its host. Raises ValueError before init()."""
    return current_runtime().topology.local_rank


def local_size() -> int:
    """Return the number of processes on this host. Raises ValueError before hvd.init()."""
    return current_runtime().topology.local_size


def cross_rank() -> int:
    """Return the position of this host among the hosts that have this local rank.

    Raises ValueError before hvd.init().
    """
    return current_runtime().topology.cross_rank


def cross_size() -> int:
    """Return the number of hosts that have this local rank. Raises ValueError before hvd.init()."""
    return current_runtime().topology.cross_size


def is_homogeneous() -> bool:
    """Return whether all hosts have the same number of ranks. Raises ValueError before init()."""
    return current_runtime().topology.homogeneous


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Start recording this rank's operations in a file for Perfetto or chrome://tracing.

    Ranks above 0 append ".rank<N>" to the path. `mark_cycles` adds a mark for each executed plan
    entry.

    Raises ValueError before hvd.init(), HorovodInternalError if the file cannot be written.
    """
    current_runtime().timeline_start(file_path, mark_cycles)


def stop_timeline() -> None:
    """Finish the file of start_timeline(). Raises ValueError before hvd.init()."""
    current_runtime().timeline_stop()


def metrics() -> dict[str, Any]:
    """Return this rank's counters and timings, by process set. Raises ValueError before init()."""
    return current_runtime().metrics()


def mpi_threads_supported() -> bool:
    """Return whether MPI allows calls from several threads, which a job over MPI requires."""
    return mpi_enabled()


def mpi_enabled() -> bool:
    """Return whether the ranks of this job met over MPI; False if no job was joined."""
    return is_initialized() and current_runtime().over_mpi


def mpi_built() -> bool:
    """Return whether a usable MPI library is installed."""
    return _available("mpi")


def gloo_enabled() -> bool:
    """Return whether the native backend, which replaces Gloo, moves the data of this job."""
    return True


def gloo_built() -> bool:
    """Return whether the native backend, which replaces Gloo, is available."""
    return _available("native")


def nccl_built() -> bool:
    """Return whether the NCCL backend is available."""
    return _available("nccl")


def _available(backend: str) -> bool:
    return bool(build_info()["backends"][backend]["available"])


def ddl_built() -> bool:
    """Return False: horoscale has no DDL backend."""
    return False


def ccl_built() -> bool:
    """Return False: horoscale has no oneCCL backend."""
    return False


def cuda_built() -> bool:
    """Return whether tensors may be on CUDA devices. This version does not support it."""
    return False


def rocm_built() -> bool:
    """Return False: tensors on ROCm devices are not supported."""
    return False
