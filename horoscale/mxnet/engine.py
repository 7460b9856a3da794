"""Pushes collectives to MXNet's engine, through the library with its sources in native/.

The library is not compiled against MXNet. It receives the addresses of MXNet's functions here.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import mxnet as mx

from horoscale._core import Request, Runtime, Signature
from horoscale._core.request import Requests
from horoscale.common import job
from horoscale.common.process_sets import at_removal, before_removal
from horoscale.mxnet.errors import raised

_LIBRARY = Path(__file__).with_name("libhoroscale_mxnet.so")

# Functions of libmxnet.so and of GNU's C++ library, in the order of the structure in
# native/mxnet_api.h.
_OF_MXNET = (
    "MXEnginePushAsyncND",
    "MXNDArrayGetData",
    "MXShallowCopyNDArray",
    "MXNDArrayFree",
    "MXGetLastError",
    "_ZNK5mxnet7NDArray20Reorder2DefaultAsyncEv",  # NDArray::Reorder2DefaultAsync() const
)
_OF_CXX = (
    "_ZNSt13runtime_errorC1EPKc",  # std::runtime_error::runtime_error(const char*)
    "_ZNSt13runtime_errorD1Ev",
)


@cache
def _library() -> ctypes.CDLL:
    """Return the library, which knows MXNet's functions and the jobs of this process.

    Raises ImportError if it is not installed or does not work with the installed MXNet.
    """
    try:
        library = ctypes.CDLL(str(_LIBRARY))
        standard = ctypes.CDLL("libstdc++.so.6")
        functions = [getattr(mx.base._LIB, name) for name in _OF_MXNET]
        functions += [getattr(standard, name) for name in _OF_CXX]
    except (OSError, AttributeError) as error:
        raise ImportError(
            f"horoscale.mxnet does not work with MXNet {mx.__version__}, only with 1.9.1: {error}"
        ) from error
    _check_layout()
    addresses = [ctypes.cast(function, ctypes.c_void_p).value for function in functions]
    is_naive = os.environ.get("MXNET_ENGINE_TYPE") == "NaiveEngine"
    library.horoscale_mxnet_use((ctypes.c_void_p * 9)(*addresses, is_naive))
    library.horoscale_mxnet_set_runtime.argtypes = [ctypes.c_void_p]
    library.horoscale_mxnet_set_runtime.restype = None
    library.horoscale_mxnet_push.argtypes = [ctypes.c_void_p] * 3
    library.horoscale_mxnet_push.restype = ctypes.c_char_p
    job.at_start(lambda runtime: library.horoscale_mxnet_set_runtime(runtime.address))
    job.at_end(lambda: library.horoscale_mxnet_set_runtime(None))
    return library


def _check_layout() -> None:
    """Raise ImportError unless arrays expose their shared memory as the library expects."""
    array, other = mx.nd.zeros((2, 1)), mx.nd.zeros((2, 1))
    chunks = [
        ctypes.c_void_p.from_address(one.handle.value).value for one in (array, array[1], other)
    ]
    if chunks[0] != chunks[1] or chunks[0] == chunks[2]:
        raise ImportError(
            f"horoscale.mxnet works with MXNet 1.9.1 only: {mx.__version__} is built otherwise"
        )


_requests = Requests()
_unnamed: dict[tuple[int, str], int] = {}  # the number of each kind, by process set


def push(signature: Signature, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
    """Push a collective to the engine, which starts it when the arrays are ready.

    Args:
        signature: describes the operation; must have a name.
        inputs: one NDArray per tensor of the signature. The caller need not keep them.
        outputs: the arrays for the results. An output may be the input.

    Raises:
        MXNetError: the engine rejects the operation; with NaiveEngine also if the operation fails.
    """
    _push(_requests.get(signature), inputs, outputs)


def push_gather(signature: Signature, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
    """Run push() for an operation whose outputs have exactly the rows that will be received."""
    request = _requests.get(signature)
    for i, output in enumerate(outputs):
        request.place(i, 0, 0, output.shape[0])
    _push(request, inputs, outputs)


def _push(request: Request, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
    handles = ctypes.c_void_p * len(inputs)
    message = _library().horoscale_mxnet_push(
        request.address,
        handles(*[array.handle.value for array in inputs]),
        handles(*[array.handle.value for array in outputs]),
    )
    if message is not None:
        raise raised(message.decode(errors="replace"))


def name_of(kind: str, name: str | None, process_set: int) -> str:
    """Return the name of an operation; one without a name gets a number that counts calls.

    The engine starts operations in any order, so the runtime cannot match unnamed ones by order.
    """
    if name is not None:
        return name
    number = _unnamed.get((process_set, kind), 0)
    _unnamed[process_set, kind] = number + 1
    return f"{kind}.unnamed.{number}"


def _begin(_: Runtime) -> None:
    _unnamed.clear()


def _finish() -> None:
    """Wait for pushed operations, which peers need. Raises errors that nobody has waited for."""
    mx.nd.waitall()


def _forget(process_set: int) -> None:
    """Restart the counts, because the id of a removed set is reused."""
    for key in [key for key in _unnamed if key[0] == process_set]:
        del _unnamed[key]


job.at_start(_begin)
job.before_end(_finish)
before_removal(_finish)
at_removal(_forget)
