"""Collectives on NumPy arrays, for programs without a deep learning framework.

Import it as hvd: `import horoscale.numpy as hvd`. Names, arguments and errors are those of
horoscale.torch where possible. Out-of-place operations return new arrays. Operations whose names
end in _ work in place; they use a copy if an array is not contiguous. Element types: uint8, int8,
uint16, int16, int32, int64, float16, float32, float64, bool, complex64, complex128, and bfloat16
with the package ml_dtypes.
"""

from horoscale.common import (
    P2POp,
    allgather_object,
    broadcast_object,
    join,
    recv_object,
    send_object,
)
from horoscale.common import exports as _exports
from horoscale.common.exports import *  # noqa: F403
from horoscale.numpy.arrays import (
    empty_shared,
)
from horoscale.numpy.compression import (
    Compression,
)
from horoscale.numpy.handles import (
    poll,
    synchronize,
)
from horoscale.numpy.messages import (
    batch,
    recv,
    recv_any,
    recv_any_async,
    recv_async,
    recv_view,
    send,
    send_async,
)
from horoscale.numpy.movement import (
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
from horoscale.numpy.reductions import (
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
)
from horoscale.numpy.rooted import (
    gather,
    gather_async,
    reduce,
    reduce_,
    reduce_async,
    reduce_async_,
    scatter,
    scatter_async,
)
from horoscale.numpy.scattering import (
    grouped_reducescatter,
    grouped_reducescatter_async,
    reducescatter,
    reducescatter_async,
)
from horoscale.numpy.shards import empty_sharded

__all__ = [
    "Compression",
    "P2POp",
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
    "synchronize",
]
__all__ += _exports.__all__
