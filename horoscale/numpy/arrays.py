"""Descriptions of arrays for the runtime, and arrays over the runtime's memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import index
from typing import Any, TypeAlias, TypeGuard

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from horoscale._core import DataType, OwnedBuffer, TensorArg, UnsupportedError, address_of
from horoscale.common import current_runtime
from horoscale.common.arguments import check_out, extents_of

Array: TypeAlias = NDArray[Any]

_DATA_TYPES: dict[np.dtype[Any], DataType] = {
    np.dtype(one.name.lower()): one for one in DataType if one is not DataType.BFLOAT16
}


def data_type(dtype: np.dtype[Any]) -> DataType:
    """Return the runtime's type of an element type. Raises UnsupportedError if there is none."""
    known = _DATA_TYPES.get(dtype)
    if known is not None:
        return known
    if dtype.name == "bfloat16":  # from ml_dtypes, which may not be installed
        return DataType.BFLOAT16
    if not dtype.isnative:
        raise ValueError(f"arrays of {dtype!r} do not have native byte order: convert them first")
    names = ", ".join(one.name.lower() for one in DataType)
    raise UnsupportedError(f"arrays of {dtype} are not supported, only of {names}")


def contiguous(tensor: ArrayLike) -> Array:
    """Return an array in C order: the argument itself if possible, otherwise a copy."""
    return np.asarray(tensor, order="C")


def is_plain(tensor: object) -> TypeGuard[Array]:
    """Return whether this is a writable array whose memory is contiguous in C order."""
    return type(tensor) is np.ndarray and tensor.flags.carray


def need_writable(tensor: object, operation: str = "an operation in place") -> Array:
    """Return the argument if it is an array that can be changed in place; raise otherwise."""
    if not isinstance(tensor, np.ndarray):
        raise TypeError(f"{operation} needs a numpy array, not a {type(tensor).__name__}")
    if not tensor.flags.writeable:
        raise ValueError(f"{operation} needs a writable array")
    return tensor


def need_room(out: object, rows: int | None, like: Array, operation: str) -> Array:
    """Return `out` if a result with `rows` rows (None: any) like `like` can be written to it.

    `operation` comes from titled(). Raises TypeError if `out` is not an array, ValueError if it has
    another dtype or shape, or is not contiguous or not writable.
    """
    array = need_writable(out, f"out= of {operation}")
    if not array.flags.carray:
        raise ValueError(f"out= of {operation} needs a contiguous array")
    if array.dtype != like.dtype:
        raise ValueError(
            f"out= has dtype {array.dtype}, but the result of {operation} has {like.dtype}"
        )
    check_out(array.shape, rows, like.shape[1:], operation)
    return array


def address(array: Array) -> int:
    """Return the address of the first element of an array in C order."""
    try:
        return address_of(array)
    except ValueError:  # NumPy has no buffer format for the types of ml_dtypes
        return int(array.__array_interface__["data"][0])


def tensor_arg(array: Array, out: Array | None = None) -> TensorArg:
    """Describe an operation's input in C order. Without `out`, the library allocates the result."""
    out_address = 0 if out is None else address(out)
    return TensorArg(address(array), out_address, data_type(array.dtype), array.shape)


def split_list(splits: ArrayLike) -> list[int]:
    """Return row counts as a list. Raises ValueError unless they are integers in one dimension."""
    # One by one, because NumPy converts a list of mixed integer types to floats.
    elements: Any = splits if isinstance(splits, list | tuple) else np.asarray(splits)
    try:
        return [index(split) for split in elements]
    except TypeError:
        raise ValueError(f"splits must be a 1-d array of integers, not {splits!r}") from None


def gathered_arg(array: Array, out: Array | None) -> TensorArg:
    """Describe the input of an operation whose result may have any number of rows."""
    if out is None:
        return tensor_arg(array)
    # An empty array may have a null address, but the library needs a nonzero one. It writes nothing
    # there.
    return tensor_arg(array, out)._replace(out_ptr=address(out) or 1, out_rows=out.shape[0])


def adopt(buffer: OwnedBuffer, dtype: np.dtype[Any], shape: Sequence[int]) -> Array:
    """Return an array that refers to memory of the library and keeps it alive."""
    if buffer.nbytes == 0:
        return np.empty(shape, dtype)
    return np.frombuffer(buffer.buffer, np.uint8).view(dtype).reshape(shape)


def empty_shared(*size: int | Sequence[int], dtype: DTypeLike = np.float32) -> Array:
    """Return an array of zeros in memory that the other ranks of this host can access.

    If all ranks pass such arrays, allreduce_() works on them directly from 256 KiB on, without a
    copy. The other collectives read such inputs of 64 KiB or more without a copy. Not collective.

    Args:
        *size: the shape, as numbers or as one sequence.
        dtype: the element type.

    Raises:
        ValueError: before hvd.init(), an extent is negative, or the dtype is not supported.
        HorovodInternalError: there is not enough memory.
    """
    extents = extents_of(size[0] if len(size) == 1 else size)
    element = np.dtype(dtype)
    data_type(element)
    nbytes = math.prod(extents) * element.itemsize
    if nbytes == 0:
        current_runtime()
        return np.empty(extents, element)
    return adopt(current_runtime().shared_alloc(nbytes), element, extents)
