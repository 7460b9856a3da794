"""The binding of the C ABI. Only this package loads the library.

It is a thin layer without framework dependencies: it takes addresses, element types and shapes, and
returns handles, memory and exceptions.
"""

from horoscale._core import loader  # first: checks the library before anything uses it
from horoscale._core._in_flight import Template
from horoscale._core.errors import (
    DuplicateNameError,
    HorovodInternalError,
    MismatchError,
    RankFailedError,
    UnsupportedError,
)
from horoscale._core.handle import Handle
from horoscale._core.memory import DeviceBuffer, JoinedBuffer, OwnedBuffer, address_of
from horoscale._core.message import ANY_RANK, MessageArg, MessageView, PreparedMessage
from horoscale._core.request import Device, Request, Signature
from horoscale._core.runtime import (
    Runtime,
    build_info,
    check_reduction,
    config_variables,
    library_version,
)
from horoscale._core.store import StoreClient, StoreServer, job_secret
from horoscale._core.types import (
    DataType,
    Encoding,
    OpKind,
    ReduceOp,
    SetFlags,
    TensorArg,
    Topology,
)

__all__ = [
    "ANY_RANK",
    "DataType",
    "Device",
    "DeviceBuffer",
    "DuplicateNameError",
    "Encoding",
    "Handle",
    "HorovodInternalError",
    "JoinedBuffer",
    "MessageArg",
    "MessageView",
    "MismatchError",
    "OpKind",
    "OwnedBuffer",
    "PreparedMessage",
    "RankFailedError",
    "ReduceOp",
    "Request",
    "Runtime",
    "SetFlags",
    "Signature",
    "StoreClient",
    "StoreServer",
    "Template",
    "TensorArg",
    "Topology",
    "UnsupportedError",
    "address_of",
    "build_info",
    "check_reduction",
    "config_variables",
    "job_secret",
    "library_version",
    "loader",
]
