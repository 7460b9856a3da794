"""Keras's JAX backend on ranks: how a compiled step calls the library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

keras = pytest.importorskip("keras")
if keras.backend.backend() != "jax":
    pytest.skip("for KERAS_BACKEND=jax", allow_module_level=True)

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402

import horoscale.keras as hvd  # noqa: E402
from horoscale.keras import jax_step, xla  # noqa: E402
from horoscale.keras.eager_step import Group  # noqa: E402

WAYS = {"xla": xla.allreduce_groups, "python": jax_step.through_python}
OPTIONS: dict[str, Any] = {
    "op": hvd.Sum,
    "prescale_factor": 1.0,
    "postscale_factor": 1.0,
    "process_set": hvd.global_process_set,
}
DTYPES = ["bool", "uint8", "int8", "uint16", "int16", "int32", "float16", "bfloat16", "float32"]


@pytest.fixture(scope="module", autouse=True)
def loaded(job: None) -> None:
    assert jax_step.way() is xla.allreduce_groups


def reduced(
    groups: Any,
    way: Any = xla.allreduce_groups,
    compression: Any = hvd.Compression.none,
    names: Any = None,
    **options: Any,
) -> list[list[np.ndarray]]:
    names = names or [None] * len(groups)

    def step(given: Any) -> Any:
        chosen = [Group(one, compression, name) for one, name in zip(given, names, strict=True)]
        return way(chosen, **OPTIONS | options)

    results = jax.jit(step)(groups)
    return [[np.asarray(one) for one in group] for group in results]


@pytest.mark.conformance
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_type(dtype: str, way: str) -> None:
    shapes: list[tuple[int, ...]] = [(2, 3), (), (0, 4), (5,)]
    given = [jnp.full(shape, hvd.rank() % 2, dtype) for shape in shapes]
    [results] = reduced([given], WAYS[way])
    ones = hvd.size() // 2
    for shape, result in zip(shapes, results, strict=True):
        assert result.dtype == jnp.dtype(dtype)
        np.testing.assert_array_equal(result, np.full(shape, ones, jnp.dtype(dtype)))


@pytest.mark.conformance
def test_many_tensors_in_groups_of_one_call() -> None:
    groups = [[jnp.full(3, hvd.rank() + 100 * g + i) for i in range(20)] for g in range(8)]
    everybodys = sum(range(hvd.size()))
    for g, group in enumerate(reduced(groups)):
        for i, result in enumerate(group):
            np.testing.assert_array_equal(result, everybodys + hvd.size() * (100 * g + i))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"prescale_factor": 2.0, "postscale_factor": 0.25}, 0.5 * 3),
        ({"op": hvd.Average}, 1.5),
        ({"op": hvd.Min}, 1.0),
        ({"op": hvd.Max}, 2.0),
        ({"op": hvd.Product}, 2.0),
        ({"compression": hvd.Compression.bf16}, 3.0),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_options(options: dict[str, Any], expected: float) -> None:
    if hvd.size() != 2:
        pytest.skip("for 2 ranks")
    for way in WAYS.values():
        [[result]] = reduced([[jnp.full(4, hvd.rank() + 1.0)]], way, **options)
        np.testing.assert_array_equal(result, np.full(4, expected))


def test_names_match_operations(need_ranks: None) -> None:
    """Whatever the order; operations without a name are matched by it."""
    names = ["one", "two", None]
    values = {"one": 1.0, "two": 2.0, None: 3.0}
    if hvd.rank() == 1:
        names[:2] = ["two", "one"]
    groups = [[jnp.full(4, values[name]), jnp.full(2, values[name])] for name in names]
    results = reduced(groups, names=names, compression=hvd.Compression.adaptive(0.1))
    for name, pair in zip(names, results, strict=True):
        for result in pair:
            np.testing.assert_array_equal(result, hvd.size() * values[name])


def test_the_memory_of_arguments_is_left_alone() -> None:
    given = jnp.arange(1000.0)
    reduced([[given]])
    np.testing.assert_array_equal(given, np.arange(1000.0))


def test_steps_begin_in_the_order_of_the_program(need_ranks: None) -> None:
    """A different order of computations on one rank changes nothing."""

    def reduce(value: Any) -> Any:
        return xla.allreduce_groups([Group([value])], **OPTIONS)[0][0]

    slow = jax.jit(lambda m: reduce((m @ m @ m)[0] * 0 + 1))
    quick = jax.jit(reduce)
    matrix, ones = jnp.ones((500, 500)), jnp.ones(500)
    for _ in range(5):
        first = slow(matrix) if hvd.rank() == 0 else quick(ones)
        second = quick(2 * ones)
        np.testing.assert_array_equal(first, np.full(500, hvd.size()))
        np.testing.assert_array_equal(second, np.full(500, 2 * hvd.size()))


def test_a_mismatch_is_told_on_every_rank(need_ranks: None) -> None:
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"FAILED_PRECONDITION.*float32\[4\]"):
        reduced([[jnp.ones(3 + hvd.rank() % 2)]])
    with pytest.raises(ValueError, match="Average of bool"):
        reduced([[jnp.ones(3, bool)]], op=hvd.Average)
    [[result]] = reduced([[jnp.ones(3)]])
    np.testing.assert_array_equal(result, np.full(3, hvd.size()))


def test_a_set_that_is_no_more(need_ranks: None) -> None:
    some = hvd.add_process_set(range(hvd.size() - 1))
    step = jax.jit(
        lambda given: xla.allreduce_groups([Group([given])] * 2, **OPTIONS | {"process_set": some})
    )
    included = some.included()
    if included:
        np.testing.assert_array_equal(step(jnp.ones(3))[1][0], np.full(3, hvd.size() - 1))
    hvd.remove_process_set(some)
    if included:
        with pytest.raises(jax.errors.JaxRuntimeError, match=r"INVALID_ARGUMENT: .*process set"):
            jax.block_until_ready(step(jnp.ones(3)))


def test_where_xla_cannot_call_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xla, "_LIBRARY", Path("/nowhere/libhoroscale_xla.so"))
    with pytest.warns(RuntimeWarning, match="nowhere.*call back into Python"):
        assert jax_step.way.__wrapped__() is jax_step.through_python
