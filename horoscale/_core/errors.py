"""The exceptions of the runtime, and the one place that makes them of failed calls of the C ABI."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from horoscale import _journal
from horoscale._core._binding import ffi, lib


class HorovodInternalError(RuntimeError):
    """An operation could not be completed. Subclasses say why, where a program can act on it."""


class MismatchError(HorovodInternalError):
    """The members of a process set contradict each other about one operation. The job continues."""


class DuplicateNameError(ValueError):
    """An operation of the same name is still pending on the same process set.

    A mistake of the program, which elastic training must not retry.
    """


class UnsupportedError(NotImplementedError, ValueError):
    """The operation is not defined for this operator, element type or kind of tensor."""

    # TensorFlow, which traces functions, makes errors anew only if their class has this one.
    __init__ = Exception.__init__


class RankFailedError(HorovodInternalError):
    """A rank died or left: every process set that contains it is unusable from now on."""

    def __init__(
        self, message: str, ranks: Sequence[int] = (), process_set: int = -1, tensor: str = ""
    ) -> None:
        """Keep which global ranks failed and which operation of which process set met it."""
        super().__init__(message, tuple(ranks), process_set, tensor)  # all of it, for pickle
        self.ranks = tuple(ranks)
        self.process_set = process_set
        self.tensor = tensor

    def __str__(self) -> str:
        """Return the message alone."""
        return str(self.args[0])


_CLASSES: dict[int, type[Exception]] = {
    lib.HS_INVALID_ARGUMENT: ValueError,
    lib.HS_NOT_INITIALIZED: ValueError,
    lib.HS_MISMATCH: MismatchError,
    lib.HS_DUPLICATE_NAME: DuplicateNameError,
    lib.HS_UNSUPPORTED: UnsupportedError,
}


def last_error(code: int) -> Exception:
    """Return the exception that describes this thread's last failed call, which gave `code`."""
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
    if code in _CLASSES:  # whose messages name the tensor
        return _CLASSES[code](message)
    name = ffi.typeof("hs_code").elements[code].removeprefix("HS_").lower()
    return HorovodInternalError(f"{message}{_where(info)} [{name}]")


def _where(info: Any) -> str:
    tensor = text(info.tensor)
    return f'; so "{tensor}" on process set {info.process_set} is not done' if tensor else ""


def check(code: int) -> None:
    """Raise what a failed call means; do nothing after a call that succeeded."""
    if code != lib.HS_OK:
        raise last_error(code)


def text(string: object) -> str:
    """Return a C string as str; null as the empty one."""
    return "" if string == ffi.NULL else ffi.string(string).decode(errors="replace")


def c_string(value: str | None, what: str) -> object:
    """Return str as a C string, None as null. `what` names it in the error for an embedded NUL."""
    if value is None:
        return ffi.NULL
    if not isinstance(value, str):
        raise TypeError(f"{what} has to be a string, not {value!r}")
    encoded = value.encode()
    if b"\0" in encoded:
        raise ValueError(f"{what} contains a NUL character: {value!r}")
    return ffi.new("char[]", encoded)
