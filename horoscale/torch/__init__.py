"""horoscale for PyTorch.

    import horoscale.torch as hvd

    hvd.init()
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

Common to all collectives:

    Tensors         on the CPU or a GPU, strided, of any shape: uint8 to int64, float16, bfloat16,
                    float32, float64, bool, complex64, complex128. Non-contiguous tensors are
                    copied.
    Names           pending operations of a process set must have different names. Operations
                    without a name are matched by the order of the calls on each rank.
    f_async()       returns a handle. synchronize(handle) waits and returns the result of f(). Until
                    then, do not modify the tensor or read an in-place result.
    f_()            works in place and returns its argument. Autograd does not record it.
    grouped_f()     works on a list of tensors, all or none of them.
    Gradients       out-of-place collectives are differentiable. The backward pass uses the same
                    process set, and every rank must run it. Gradients are scaled as in Horovod: a
                    result that is equal on all ranks (of allgather or broadcast) counts as one
                    tensor, and its gradient is the average over the ranks. The result of reduce and
                    gather exists only on the root. A loss that all ranks compute from gathered
                    tensors therefore has the same gradients as in a single process.
    Errors          an error that one rank can detect alone raises ValueError there immediately. A
                    mismatch between ranks raises MismatchError on all of them.
"""

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"horoscale.torch needs PyTorch 2.1 or newer ({error}): pip install torch"
    ) from error
from horoscale.common import (
    P2POp,
    allgather_object,
    broadcast_object,
    recv_object,
    send_object,
)
from horoscale.common import exports as _exports
from horoscale.common.exports import *  # noqa: F403
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
    recv_view,
    send,
    send_async,
)
from horoscale.torch.movement import (
    allgather,
    allgather_async,
    alltoall,
    alltoall_async,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    grouped_allgather,
    grouped_allgather_async,
)
from horoscale.torch.optimizer import DistributedOptimizer
from horoscale.torch.priorities import set_priority
from horoscale.torch.reductions import (
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
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
from horoscale.torch.rooted import (
    gather,
    gather_async,
    reduce,
    reduce_,
    reduce_async,
    reduce_async_,
    scatter,
    scatter_async,
)
from horoscale.torch.shards import empty_sharded
from horoscale.torch.sparse import sparse_allreduce_async
from horoscale.torch.sync_batch_norm import SyncBatchNorm

for _function in (
    _exports.add_process_set,
    _exports.barrier,
    _exports.get_process_set_ids_and_ranks,
    _exports.init,
    _exports.metrics,
    _exports.remove_process_set,
    _exports.shutdown,
    _exports.start_timeline,
    _exports.stop_timeline,
    allgather_object,
    broadcast_object,
    empty_shared,
    recv_object,
    send_object,
):
    outside_graph(_function)

__all__ = [
    "Compression",
    "DistributedOptimizer",
    "P2POp",
    "SyncBatchNorm",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "batch",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "elastic",
    "empty_sharded",
    "empty_shared",
    "gather",
    "gather_async",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "join",
    "poll",
    "recv",
    "recv_any",
    "recv_any_async",
    "recv_async",
    "recv_object",
    "recv_view",
    "reduce",
    "reduce_",
    "reduce_async",
    "reduce_async_",
    "reducescatter",
    "reducescatter_async",
    "scatter",
    "scatter_async",
    "send",
    "send_async",
    "send_object",
    "set_priority",
    "sparse_allreduce_async",
    "synchronize",
]
__all__ += _exports.__all__
