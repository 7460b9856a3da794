"""horoscale for Apache MXNet 1.9.1, symbolic (Module) and imperative (Gluon).

    import horoscale.mxnet as hvd

    hvd.init()
    hvd.broadcast_parameters(net.collect_params(), root_rank=0)
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1})

Common to all collectives:

    Arrays          NDArrays (mx.nd and mx.np) in the host's memory: uint8, int8, int32, int64,
                    float16, bfloat16, float32, float64, bool. Not sparse ones.
    Asynchrony      collectives are operations of MXNet's engine: a call returns immediately, the
                    engine starts the operation when its inputs are ready, and reading the result
                    waits for it. allgather() and alltoall() first wait for the other ranks' calls,
                    which determine the shape of the result. With MXNET_ENGINE_TYPE=NaiveEngine,
                    each call blocks.
    Names           pending operations of a process set must have different names. Operations
                    without a name are matched by the order of the calls on each rank.
    grouped_f()     works on a list of arrays, all or none of them.
    Gradients       are not recorded by autograd.
    Errors          an error that one rank can detect alone raises ValueError immediately. Others
                    raise MXNetError when the result is waited for (or at the call, with
                    NaiveEngine). Its class is also one of horoscale's, such as hvd.MismatchError.

Structure: native/ is the library that MXNet's engine calls, and engine.py loads it and pushes
operations. reductions.py and movement.py have the collectives, for functions.py, optimizer.py and
trainer.py.
"""

try:
    import mxnet
except (ImportError, AttributeError) as error:  # AttributeError: NumPy is too new for MXNet
    raise ImportError(
        f"horoscale.mxnet needs MXNet 1.9.1 ({error}): pip install mxnet==1.9.1 'numpy<1.24'"
    ) from error
from horoscale.common import exports as _exports
from horoscale.common.exports import *  # noqa: F403
from horoscale.common.objects import allgather_object, broadcast_object
from horoscale.mxnet.compression import Compression
from horoscale.mxnet.functions import broadcast_parameters
from horoscale.mxnet.movement import (
    allgather,
    alltoall,
    broadcast,
    broadcast_,
    grouped_allgather,
)
from horoscale.mxnet.optimizer import DistributedOptimizer
from horoscale.mxnet.reductions import (
    allreduce,
    allreduce_,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_reducescatter,
    reducescatter,
)
from horoscale.mxnet.trainer import DistributedTrainer

del mxnet

__all__ = [
    "Compression",
    "DistributedOptimizer",
    "DistributedTrainer",
    "allgather",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "alltoall",
    "broadcast",
    "broadcast_",
    "broadcast_object",
    "broadcast_parameters",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_reducescatter",
    "reducescatter",
]
__all__ += _exports.__all__
