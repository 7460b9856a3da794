"""horoscale for Keras 3, on its TensorFlow, PyTorch and JAX backends, and for tf_keras (Keras 2).

    import horoscale.keras as hvd

    hvd.init()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.001 * hvd.size()))
    model.compile(optimizer=optimizer, loss=...)
    model.fit(..., callbacks=[
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
    ])

Each rank calls fit() with its own part of the data, in the same number of batches on all ranks. If
all batches have the same size, the weights are the same as from one process that trains on the
ranks' combined batches.

Structure: optimizer.py extends the class of an optimizer. step.py defines the interface that
reduces its gradients, and backend.py selects the implementation: graph_step.py, eager_step.py or
jax_step.py (with xla.py and native/). callbacks.py and models.py support fit(). values.py has
collectives of numbers and arrays.
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
from horoscale.common import allgather_object, broadcast_object
from horoscale.common import exports as _exports
from horoscale.common.exports import *  # noqa: F403
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
    "Compression",
    "DistributedOptimizer",
    "PartialDistributedOptimizer",
    "allgather",
    "allgather_object",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_variables",
    "callbacks",
    "elastic",
    "load_model",
    "reducescatter",
]
__all__ += _exports.__all__
