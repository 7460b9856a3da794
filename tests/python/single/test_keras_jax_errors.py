"""Which JAX errors mean a failed rank, after which elastic training continues."""

from __future__ import annotations

import os

import pytest

os.environ.setdefault("KERAS_BACKEND", "torch")  # irrelevant here
jax = pytest.importorskip("jax")
pytest.importorskip("keras")

from horoscale.common.exceptions import HorovodInternalError  # noqa: E402
from horoscale.keras.jax_errors import with_our_errors  # noqa: E402


@pytest.mark.parametrize(
    ("text", "is_failure"),
    [
        ("UNKNOWN: rank 1 failed: its process ended", True),
        ("UNKNOWN: ranks 1, 3-5 and 7 failed: their host is gone", True),
        ("UNKNOWN: rank 0 left the job", True),
        ("INTERNAL: CpuCallback error: Traceback ... errors.RankFailedError: it is gone", True),
        ("FAILED_PRECONDITION: rank 1 gives float32[4], rank 0 float32[3]", False),
        ("INTERNAL: CpuCallback error: Traceback ... errors.MismatchError: shapes", False),
        ("UNKNOWN: the disk of rank 1 is full", False),
        ("RESOURCE_EXHAUSTED: Out of memory", False),
    ],
)
def test_errors_of_a_step(text: str, is_failure: bool) -> None:
    @with_our_errors
    def train(state: str) -> None:
        raise jax.errors.JaxRuntimeError(f"{text}{state}")

    with pytest.raises(HorovodInternalError if is_failure else jax.errors.JaxRuntimeError) as met:
        train("!")
    assert str(met.value) == f"{text}!"


def test_values_and_other_errors_pass() -> None:
    @with_our_errors
    def train(state: int, data: int) -> int:
        """Its own words."""
        return state // data

    assert train(6, data=2) == 3
    assert train.__doc__ == "Its own words."
    with pytest.raises(ZeroDivisionError):
        train(1, 0)
