"""What all bindings share: the job, process sets, errors, objects, and the rules for arguments.

The rules, each in one function of horoscale.common.arguments that every binding calls:

    resolve_op(op, average)     Average unless one of the two is given; both are an error; Adasum is
                                not there yet; reducescatter passes allowed=REDUCESCATTER_OPS
    check_reduction(dtype, op)  no Average of bool, no Min and Max of complex numbers
    set_id(process_set)         the id for Runtime.enqueue(); the set must be registered, and this
                                rank in it
    check_root(root, set)       a root is a global rank, also inside a process set, and in the set
    check_splits(splits, …)     one for each member, none negative, in sum at most the rows
    check_even_split(rows, set) alltoall without splits deals out evenly or not at all
    check_has_rows(shape, …)    allgather, alltoall and reducescatter take no 0-d tensor
    scattered_rows(rows, set)   reducescatter leaves the lower ranks one row more

The arithmetic is not theirs: average of integers, scale factors and accumulation are the core's.
What a rank can see to be wrong by itself raises at once and sends nothing; what takes the other
ranks to see (shapes that differ) raises MismatchError on every member.
"""

from horoscale.common.basics import (
    Adasum,
    Average,
    Max,
    Min,
    Product,
    Sum,
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    current_runtime,
    ddl_built,
    gloo_built,
    gloo_enabled,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    metrics,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rank,
    rocm_built,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)
from horoscale.common.exceptions import (
    DuplicateNameError,
    HorovodInternalError,
    HostsUpdatedInterrupt,
    MismatchError,
    RankFailedError,
)
from horoscale.common.messages import P2POp, recv_object, send_object
from horoscale.common.objects import allgather_object, broadcast_object
from horoscale.common.process_sets import (
    ProcessSet,
    add_process_set,
    get_process_set_ids_and_ranks,
    global_process_set,
    remove_process_set,
)
from horoscale.common.synchronization import barrier, join

__all__ = [
    "Adasum",
    "Average",
    "DuplicateNameError",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "Max",
    "Min",
    "MismatchError",
    "P2POp",
    "ProcessSet",
    "Product",
    "RankFailedError",
    "Sum",
    "add_process_set",
    "allgather_object",
    "barrier",
    "broadcast_object",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "current_runtime",
    "ddl_built",
    "get_process_set_ids_and_ranks",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "metrics",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "recv_object",
    "remove_process_set",
    "rocm_built",
    "send_object",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]
