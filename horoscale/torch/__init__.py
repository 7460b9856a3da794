"""horoscale for PyTorch.

    import horoscale.torch as hvd

    hvd.init()
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

What all collectives have in common:

    Tensors         on the CPU, strided, of any shape: uint8 to int64, float16, bfloat16, float32,
                    float64, bool, complex64, complex128. What is not contiguous is copied.
    Names           two pending operations of a process set can't have the same one. Operations
                    without a name are matched by the order of the calls on each rank.
    f_async()       returns a handle; synchronize(handle) waits and returns what f() returns. The
                    tensor may not change and an in-place result may not be read before that.
    f_()            works in place and returns its argument; it is not recorded by autograd.
    grouped_f()     works on a list of tensors, all or none of them.
    Gradients       out-of-place collectives are differentiable on the same process set: every rank
                    has to run the backward pass. They are scaled as Horovod's: a tensor that all
                    ranks hold alike counts as one tensor, and its gradient is the average of theirs
                    (the results of allgather and broadcast). So a loss that all ranks compute alike
                    from gathered tensors has the gradients that one process would get.
    Errors          what one rank can see to be wrong raises ValueError there at once. What the
                    ranks contradict each other about raises MismatchError on all of them.
"""

from horoscale.common import (
    Adasum,
    Average,
    DuplicateNameError,
    HorovodInternalError,
    HostsUpdatedInterrupt,
    Max,
    Min,
    MismatchError,
    P2POp,
    ProcessSet,
    Product,
    RankFailedError,
    Sum,
    add_process_set,
    allgather_object,
    barrier,
    broadcast_object,
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    get_process_set_ids_and_ranks,
    global_process_set,
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
    recv_object,
    remove_process_set,
    rocm_built,
    send_object,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)
from horoscale.torch import elastic
from horoscale.torch.buckets import empty_shared
from horoscale.torch.compiling import outside_graph
from horoscale.torch.compression import Compression
from horoscale.torch.functions import broadcast_optimizer_state, broadcast_parameters
from horoscale.torch.handles import poll, synchronize
from horoscale.torch.messages import (
    batch,
    recv,
    recv_any,
    recv_any_async,
    recv_async,
    send,
    send_async,
)
from horoscale.torch.ops import (
    allgather,
    allgather_async,
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    alltoall,
    alltoall_async,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    grouped_allgather,
    grouped_allgather_async,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    grouped_reducescatter,
    grouped_reducescatter_async,
    join,
    reducescatter,
    reducescatter_async,
)
from horoscale.torch.optimizer import DistributedOptimizer
from horoscale.torch.priorities import set_priority
from horoscale.torch.sparse import sparse_allreduce_async
from horoscale.torch.sync_batch_norm import SyncBatchNorm

for _function in (
    add_process_set,
    allgather_object,
    barrier,
    broadcast_object,
    empty_shared,
    get_process_set_ids_and_ranks,
    init,
    metrics,
    recv_object,
    remove_process_set,
    send_object,
    shutdown,
    start_timeline,
    stop_timeline,
):
    outside_graph(_function)

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
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
    "SyncBatchNorm",
    "add_process_set",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "batch",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "empty_shared",
    "get_process_set_ids_and_ranks",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
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
    "poll",
    "rank",
    "recv",
    "recv_any",
    "recv_any_async",
    "recv_async",
    "recv_object",
    "reducescatter",
    "reducescatter_async",
    "remove_process_set",
    "rocm_built",
    "send",
    "send_async",
    "send_object",
    "set_priority",
    "shutdown",
    "size",
    "sparse_allreduce_async",
    "start_timeline",
    "stop_timeline",
    "synchronize",
]
