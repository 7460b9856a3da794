"""Maps errors of JAX that come from our operations in a compiled step."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

import jax

from horoscale.common.exceptions import HorovodInternalError

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")

# The wording of cpp/core/departures.cc, if XLA calls the library; the name of our exception in the
# text of JAX's, if it calls Python.
_RANK_FAILED = re.compile(
    r"\branks? \d[\d, and-]* (failed\b|left the job\b)"
    r"|\b(RankFailedError|HorovodInternalError): "
)


def with_our_errors(func: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """Make a function raise HorovodInternalError if JAX reports that a rank has failed."""

    @functools.wraps(func)
    def wrapper(state: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return func(state, *args, **kwargs)
        except jax.errors.JaxRuntimeError as error:
            if _RANK_FAILED.search(str(error)) is None:
                raise
            raise HorovodInternalError(str(error)) from error

    return wrapper
