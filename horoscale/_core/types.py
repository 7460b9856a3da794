"""The types of the C ABI as Python values: element types, operators, kinds, descriptions."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import ClassVar, NamedTuple

from horoscale._core._binding import lib


class DataType(IntEnum):
    """The element types that horoscale can move and reduce."""

    UINT8 = lib.HS_UINT8
    INT8 = lib.HS_INT8
    UINT16 = lib.HS_UINT16
    INT16 = lib.HS_INT16
    INT32 = lib.HS_INT32
    INT64 = lib.HS_INT64
    FLOAT16 = lib.HS_FLOAT16
    BFLOAT16 = lib.HS_BFLOAT16
    FLOAT32 = lib.HS_FLOAT32
    FLOAT64 = lib.HS_FLOAT64
    BOOL = lib.HS_BOOL
    COMPLEX64 = lib.HS_COMPLEX64
    COMPLEX128 = lib.HS_COMPLEX128


class ReduceOp(IntEnum):
    """How the values of the ranks are combined. Values up to PRODUCT equal Horovod's."""

    AVERAGE = lib.HS_AVERAGE
    SUM = lib.HS_SUM
    ADASUM = lib.HS_ADASUM
    MIN = lib.HS_MIN
    MAX = lib.HS_MAX
    PRODUCT = lib.HS_PRODUCT
    BITWISE_AND = lib.HS_BITWISE_AND
    BITWISE_OR = lib.HS_BITWISE_OR
    BITWISE_XOR = lib.HS_BITWISE_XOR

    @property
    def label(self) -> str:
        """Return the name in the API, such as BitwiseAnd."""
        return self.name.title().replace("_", "")


class Encoding(int):
    """The form in which sums travel between hosts; see hs_encoding in the C header."""

    NONE: ClassVar[Encoding]
    FLOAT16: ClassVar[Encoding]
    BFLOAT16: ClassVar[Encoding]
    INT8: ClassVar[Encoding]
    INT4: ClassVar[Encoding]
    ONEBIT: ClassVar[Encoding]

    @classmethod
    def top_k(cls, kept: int) -> Encoding:
        """Return the encoding that sends `kept` of 4,096 elements."""
        return cls(lib.HS_ENCODE_TOPK + 256 * kept)

    @classmethod
    def adaptive(cls, error: int) -> Encoding:
        """Return the encoding that is chosen for an error of at most `error` / 10,000."""
        return cls(lib.HS_ENCODE_ADAPTIVE + 256 * error)

    @property
    def is_lossy(self) -> bool:
        """Whether the error is kept as a residual, and added to the next values."""
        return bool(self & 255 >= lib.HS_ENCODE_INT8)


Encoding.NONE = Encoding(lib.HS_ENCODE_NONE)
Encoding.FLOAT16 = Encoding(lib.HS_ENCODE_FLOAT16)
Encoding.BFLOAT16 = Encoding(lib.HS_ENCODE_BFLOAT16)
Encoding.INT8 = Encoding(lib.HS_ENCODE_INT8)
Encoding.INT4 = Encoding(lib.HS_ENCODE_INT4)
Encoding.ONEBIT = Encoding(lib.HS_ENCODE_ONEBIT)


class OpKind(IntEnum):
    """The kind of an operation."""

    ALLREDUCE = lib.HS_ALLREDUCE
    ALLGATHER = lib.HS_ALLGATHER
    BROADCAST = lib.HS_BROADCAST
    ALLTOALL = lib.HS_ALLTOALL
    REDUCESCATTER = lib.HS_REDUCESCATTER
    BARRIER = lib.HS_BARRIER
    JOIN = lib.HS_JOIN
    ADD_PROCESS_SET = lib.HS_ADD_PROCESS_SET
    REMOVE_PROCESS_SET = lib.HS_REMOVE_PROCESS_SET
    REDUCE = lib.HS_REDUCE
    GATHER = lib.HS_GATHER
    SCATTER = lib.HS_SCATTER


class SetFlags(IntFlag):
    """Properties of a process set besides its ranks."""

    DISTINCT = lib.HS_SET_DISTINCT
    ORDERED = lib.HS_SET_ORDERED
    BY_MEMBERS = lib.HS_SET_BY_MEMBERS
    ABANDONED = lib.HS_SET_ABANDONED  # for a removal


class TensorArg(NamedTuple):
    """A tensor of an operation: addresses of contiguous memory, its type and shape."""

    in_ptr: int
    out_ptr: int  # may equal in_ptr; 0: the library allocates the result
    dtype: DataType
    shape: tuple[int, ...]  # of the input
    out_rows: int = 0  # allgather, alltoall: number of rows that fit at out_ptr


@dataclass(frozen=True)
class Topology:
    """The position of this process in its job."""

    rank: int
    size: int
    local_rank: int  # among the ranks of this host
    local_size: int
    cross_rank: int  # among the ranks with this local rank, one per host
    cross_size: int
    homogeneous: bool  # every host has the same number of ranks
