"""horoscale for Keras 3, on its TensorFlow, PyTorch and JAX backends, and for tf_keras (Keras 2).

    import horoscale.keras as hvd

    hvd.init()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.001 * hvd.size()))
    model.compile(optimizer=optimizer, loss=...)
    model.fit(..., callbacks=[
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
    ])

Each rank calls fit() with its own part of the data, in as many batches as the others. With batches
of one size, the weights are those that one process gets from the ranks' batches put together.

How it is built: optimizer.py extends the class of an optimizer; backend.py chooses who reduces its
gradients, graph_step.py, eager_step.py or jax_step.py (with xla.py and native/); callbacks.py and
models.py are what fit() needs around it; values.py has collectives of numbers and arrays.
"""

try:
    from horoscale.common.which_keras import IS_LEGACY, keras
except ModuleNotFoundError as error:
    raise ImportError(
        f"horoscale.keras needs Keras 3 ({error}): pip install keras, and tensorflow, torch or jax"
    ) from error
if not IS_LEGACY and keras.__version__.startswith("2."):
    raise ImportError(
        f"horoscale.keras needs Keras 3, not {keras.__version__}, or tf_keras, which is Keras 2, "
        "with TF_USE_LEGACY_KERAS=1"
    )
from horoscale.common import (
    Adasum,
    Average,
    BitwiseAnd,
    BitwiseOr,
    BitwiseXor,
    DuplicateNameError,
    HorovodInternalError,
    HostsUpdatedInterrupt,
    Max,
    Min,
    MismatchError,
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
    remove_process_set,
    rocm_built,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)
from horoscale.keras import callbacks, elastic
from horoscale.keras.compression import Compression
from horoscale.keras.models import load_model
from horoscale.keras.optimizer import DistributedOptimizer, PartialDistributedOptimizer
from horoscale.keras.values import (
    allgather,
    allreduce,
    broadcast,
    broadcast_global_variables,
    broadcast_variables,
    reducescatter,
)

del IS_LEGACY, keras

__all__ = [
    "Adasum",
    "Average",
    "BitwiseAnd",
    "BitwiseOr",
    "BitwiseXor",
    "Compression",
    "DistributedOptimizer",
    "DuplicateNameError",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "Max",
    "Min",
    "MismatchError",
    "PartialDistributedOptimizer",
    "ProcessSet",
    "Product",
    "RankFailedError",
    "Sum",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "barrier",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_variables",
    "callbacks",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "get_process_set_ids_and_ranks",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "load_model",
    "local_rank",
    "local_size",
    "metrics",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]
