"""horoscale for TensorFlow.

    import horoscale.tensorflow as hvd

    hvd.init()
    hvd.broadcast_variables(model.variables, root_rank=0)
    with tf.GradientTape() as tape:
        loss = ...
    tape = hvd.DistributedGradientTape(tape)
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))

Common to all collectives:

    Tensors         on the CPU, of any shape: uint8 to int64, float16, bfloat16, float32, float64,
                    bool, complex64, complex128; broadcast, allgather, alltoall, gather and scatter
                    also of uint32 and uint64.
    Eager, graphs   both are supported. All collectives of a tf.function may be pending at the same
                    time, in any order: they do not block TensorFlow's threads. Only the iterations
                    of a loop run one after the other. XLA cannot compile them, so they raise an
                    error in a tf.function(jit_compile=True).
    Names           pending operations of a process set must have different names. Without a name,
                    eager operations are matched by the order of the calls on each rank, and those
                    of a graph by the names of the function and the tensor.
    grouped_f()     works on a list of tensors, all or none of them.
    Gradients       are registered. The backward pass uses the same process set, and every rank must
                    run it. Gradients are scaled as in Horovod: a result that is equal on all ranks
                    counts as one tensor, and its gradient is the average over the ranks.
    Errors          an error that one rank can detect alone raises ValueError there immediately, or
                    tf.errors.InvalidArgumentError if the kernel detects it (both for an invalid
                    process set). A mismatch between ranks raises tf.errors.FailedPreconditionError
                    on all of them. A rank that died or has joined causes tf.errors.UnknownError, a
                    concurrent hvd.shutdown() tf.errors.AbortedError. Objects, barrier and process
                    sets raise horoscale's own exceptions.

Structure: native/ is the kernel, one library for all versions of TensorFlow, and loader.py loads
it. collectives.py has the ops on lists of tensors and their gradients, ops.py the public functions.
gradients.py reduces the gradients of a step for tape.py and optimizer.py, after aggregation.py.
"""

try:
    import tensorflow
except ImportError as error:
    raise ImportError(
        f"horoscale.tensorflow needs TensorFlow 2.18 or newer ({error}): pip install tensorflow"
    ) from error
from horoscale.common import exports as _exports
from horoscale.common.batches import P2POp
from horoscale.common.exports import *  # noqa: F403
from horoscale.common.object_messages import recv_object, send_object
from horoscale.tensorflow import elastic
from horoscale.tensorflow.compression import (
    Compression,
)
from horoscale.tensorflow.functions import (
    BroadcastGlobalVariablesHook,
    allgather_object,
    broadcast_global_variables,
    broadcast_object,
    broadcast_object_fn,
    broadcast_variables,
)
from horoscale.tensorflow.messages import (
    batch,
    recv,
    recv_any,
    send,
)
from horoscale.tensorflow.ops import (
    allgather,
    allreduce,
    alltoall,
    broadcast,
    broadcast_,
    gather,
    grouped_allgather,
    grouped_allreduce,
    grouped_reducescatter,
    join,
    reduce,
    reducescatter,
    scatter,
)
from horoscale.tensorflow.optimizer import (
    DistributedOptimizer,
)
from horoscale.tensorflow.sync_batch_norm import (
    SyncBatchNormalization,
)
from horoscale.tensorflow.tape import (
    DistributedGradientTape,
    PartialDistributedGradientTape,
)
from horoscale.tensorflow.values import (
    local_rank_op,
    local_size_op,
    process_set_included_op,
    rank_op,
    size_op,
)
from horoscale.tensorflow.variables import set_priority

del tensorflow

__all__ = [
    "BroadcastGlobalVariablesHook",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "P2POp",
    "PartialDistributedGradientTape",
    "SyncBatchNormalization",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "batch",
    "broadcast",
    "broadcast_",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "elastic",
    "gather",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "join",
    "local_rank_op",
    "local_size_op",
    "process_set_included_op",
    "rank_op",
    "recv",
    "recv_any",
    "recv_object",
    "reduce",
    "reducescatter",
    "scatter",
    "send",
    "send_object",
    "set_priority",
    "size_op",
]
__all__ += _exports.__all__
