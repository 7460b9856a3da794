"""The exceptions of the runtime, and their creation from failed calls of the C ABI."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from horoscale import _journal
from horoscale._core._binding import ffi, lib


class HorovodInternalError(RuntimeError):
    """An operation could not be completed. Subclasses tell causes that a program can handle."""


class MismatchError(HorovodInternalError):
    """The members of a process set disagree about one operation. The job continues."""


class DuplicateNameError(ValueError):
    """An operation of the same name is still pending on the same process set.

    This is a programming error, which elastic training must not retry.
    """


class UnsupportedError(NotImplementedError, ValueError):
    """The operation is not defined for this operator, element type or kind of tensor."""

    # TensorFlow re-creates exceptions in traced functions only if their class has this __init__.
    __init__ = Exception.__init__


class RankFailedError(HorovodInternalError):
    """A rank died or left. Every process set that contains it becomes unusable."""

    def __init__(
        self, message: str, ranks: Sequence[int] = (), process_set: int = -1, tensor: str = ""
    ) -> None:
        """Store the failed global ranks, and the operation and process set that detected it."""
        super().__init__(message, tuple(ranks), process_set, tensor)  # all arguments, for pickle
        self.ranks = tuple(ranks)
        self.process_set = process_set
        self.tensor = tensor

    def __str__(self) -> str:
        """Return only the message."""
        return str(self.args[0])


_CLASSES: dict[int, type[Exception]] = {
    lib.HS_INVALID_ARGUMENT: ValueError,
    lib.HS_NOT_INITIALIZED: ValueError,
    lib.HS_MISMATCH: MismatchError,
    lib.HS_DUPLICATE_NAME: DuplicateNameError,
    lib.HS_UNSUPPORTED: UnsupportedError,
}


def last_error(code: int) -> Exception:
    """Return the exception for this thread's last failed call, which returned `code`."""
    info = lib.hs_error()
    message = text(info.message)
    if code == lib.HS_NOT_INITIALIZED:
        message += " (a process that was forked after hvd.init() takes no part in the job)"
    if code == lib.HS_RANK_FAILED:
        ranks = [info.ranks[i] for i in range(info.num_ranks)]
        tensor = text(info.tensor)
        return RankFailedError(message + _where(info), ranks, info.process_set, tensor)
    if code == lib.HS_MISMATCH:
        _journal.note("mismatch", message)
    if code in _CLASSES:  # their messages name the tensor
        return _CLASSES[code](message)
    name = ffi.typeof("hs_code").elements[code].removeprefix("HS_").lower()
    return HorovodInternalError(f"{message}{_where(info)} [{name}]")


def _where(info: Any) -> str:
    tensor = text(info.tensor)
    return f'; so "{tensor}" on process set {info.process_set} is not done' if tensor else ""


def check(code: int) -> None:
    """Raise the exception for a failed call; do nothing if the call succeeded."""
    if code != lib.HS_OK:
        raise last_error(code)


def text(string: object) -> str:
    """Return a C string as str; null becomes the empty string."""
    return "" if string == ffi.NULL else ffi.string(string).decode(errors="replace")


def c_string(value: str | None, what: str) -> object:
    """Return str as a C string; None becomes null. `what` names it if it contains a NUL."""
    if value is None:
        return ffi.NULL
    if not isinstance(value, str):
        raise TypeError(f"{what} has to be a string, not {value!r}")
    encoded = value.encode()
    if b"\0" in encoded:
        raise ValueError(f"{what} contains a NUL character: {value!r}")
    return ffi.new("char[]", encoded)
