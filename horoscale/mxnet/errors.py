"""Exceptions that are both MXNet's and horoscale's, for programs that catch either.

MXNet derives the class of an error from the name at the beginning of its message, which our library
writes there. The classes are therefore registered.
"""

from __future__ import annotations

from typing import TypeVar

from mxnet.base import MXNetError, c2pyerror
from mxnet.error import register

from horoscale.common import exceptions

_Class = TypeVar("_Class", bound=type[Exception])
_CLASSES: dict[str, type[Exception]] = {}


def _registered(cls: _Class) -> _Class:
    _CLASSES[cls.__name__] = cls
    register(cls.__name__, cls)
    return cls


@_registered
class InvalidArgumentError(MXNetError, ValueError):  # type: ignore[misc]
    """An invalid argument that this rank can detect alone."""


@_registered
class UnsupportedError(MXNetError, exceptions.UnsupportedError):  # type: ignore[misc]
    """The operation is not defined for this operator, dtype or kind of array."""


@_registered
class DuplicateNameError(MXNetError, exceptions.DuplicateNameError):  # type: ignore[misc]
    """An operation with this name is pending on the process set."""


@_registered
class HorovodInternalError(MXNetError, exceptions.HorovodInternalError):  # type: ignore[misc]
    """An operation could not be completed."""


@_registered
class MismatchError(MXNetError, exceptions.MismatchError):  # type: ignore[misc]
    """The ranks' calls of an operation do not match. The job continues."""


@_registered
class RankFailedError(MXNetError, exceptions.RankFailedError):  # type: ignore[misc]
    """A rank died or left. The message names it; `ranks` is empty here."""


def raised(message: str) -> Exception:
    """Return the exception that a message of our library describes."""
    text, name = c2pyerror(message)
    error: Exception = _CLASSES.get(name, MXNetError)(text)
    return error
