"""Descriptions of MXNet's arrays for the runtime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mxnet as mx
import numpy as np

from horoscale._core import DataType
from horoscale.mxnet.errors import InvalidArgumentError, UnsupportedError

_DATA_TYPES: dict[np.dtype[Any], DataType] = {
    np.dtype(np.float32): DataType.FLOAT32,
    np.dtype(np.float64): DataType.FLOAT64,
    np.dtype(np.float16): DataType.FLOAT16,
    np.dtype(np.uint8): DataType.UINT8,
    np.dtype(np.int8): DataType.INT8,
    np.dtype(np.int32): DataType.INT32,
    np.dtype(np.int64): DataType.INT64,
    np.dtype(np.bool_): DataType.BOOL,
    np.dtype([("bfloat16", np.uint16)]): DataType.BFLOAT16,
}


def check_arrays(arrays: Sequence[Any]) -> list[Any]:
    """Return arrays as a list.

    Raises InvalidArgumentError for an empty list, TypeError for a value that is not an NDArray,
    UnsupportedError for an array that is sparse or not in the host's memory.
    """
    result = list(arrays)
    if not result:
        raise InvalidArgumentError("a group needs at least one array")
    for array in result:
        if not isinstance(array, mx.nd.NDArray):
            raise TypeError(f"horoscale.mxnet needs an NDArray, not a {type(array).__name__}")
        if array.stype != "default":
            raise UnsupportedError(
                f"arrays of storage type {array.stype} are not supported: use tostype('default')"
            )
        if array.context.device_type == "gpu":
            raise UnsupportedError(
                f"arrays on {array.context} are not supported: use as_in_context(mx.cpu())"
            )
    return result


def data_type(array: Any) -> DataType:
    """Return the runtime's data type of an array. Raises UnsupportedError if there is none."""
    known = _DATA_TYPES.get(np.dtype(array.dtype))  # mx.nd has classes, mx.np has dtypes
    if known is None:
        raise UnsupportedError(f"arrays of {array.dtype} are not supported")
    return known


def tensors_of(arrays: Sequence[Any]) -> tuple[tuple[DataType, tuple[int, ...]], ...]:
    """Return the part of a signature that describes arrays: their data types and shapes."""
    return tuple([(data_type(array), array.shape) for array in arrays])


def check_rows(array: Any, operation: str) -> None:
    """Raise InvalidArgumentError for an array without a first dimension."""
    if not array.shape:
        raise InvalidArgumentError(
            f"{operation} needs an array with at least one dimension, not a 0-d one"
        )


def new_like(array: Any, rows: int | None = None) -> Any:
    """Return a new array with the dtype and shape of another one, or with `rows` rows."""
    shape = array.shape if rows is None else (rows, *array.shape[1:])
    with mx.util.np_shape(True):  # otherwise, an extent of 0 means unknown
        result = mx.nd.empty(shape, ctx=array.context, dtype=array.dtype)
    return result.as_np_ndarray() if isinstance(array, mx.np.ndarray) else result
