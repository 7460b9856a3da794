"""The allreduce that XLA calls directly, without Python, in a compiled JAX step.

The library shipped with horoscale registers with XLA through its foreign function interface. This
is versioned: one library supports all versions of JAX from 0.6 on. It is tested on first use. XLA
starts steps in program order. The ranks rely on this, because most operations have no names.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from horoscale._core import Runtime
from horoscale.common import job
from horoscale.common.arguments import check_reduction, resolve_op, set_id
from horoscale.common.process_sets import ProcessSet
from horoscale.keras.eager_step import Group
from horoscale.numpy.arrays import data_type
from horoscale.numpy.compression import divide

_LIBRARY = Path(__file__).with_name("libhoroscale_xla.so")
_ALLREDUCE = "horoscale_xla_allreduce"
_SELF_TEST = "horoscale_xla_self_test"
_TEST_SECONDS = 60.0


def load() -> None:
    """Register the library with XLA, test it, and let it track the jobs of this process.

    Raises:
        RuntimeError: XLA does not work with the library. The message gives the reason.
        OSError: the library cannot be loaded.
    """
    platform = jax.default_backend()
    if platform != "cpu":
        raise RuntimeError(f"gradients are on JAX's {platform} devices, and it knows host memory")
    library = ctypes.CDLL(str(_LIBRARY))
    try:
        for name in (_ALLREDUCE, _SELF_TEST):
            capsule = jax.ffi.pycapsule(getattr(library, name))
            jax.ffi.register_ffi_target(name, capsule, platform="cpu")
        _test()
    except (AttributeError, ValueError, jax.errors.JaxRuntimeError) as error:
        raise RuntimeError(f"JAX {jax.__version__}: {error}") from error
    set_runtime = library.horoscale_xla_set_runtime
    set_runtime.argtypes = [ctypes.c_void_p]
    set_runtime.restype = None

    def begin(runtime: Runtime) -> None:
        set_runtime(runtime.address)

    job.at_start(begin)
    job.at_end(lambda: set_runtime(None))


def allreduce_groups(
    groups: Sequence[Group],
    *,
    op: int,
    prescale_factor: float,
    postscale_factor: float,
    process_set: ProcessSet,
) -> list[list[Any]]:
    """Return the reduced arrays of each group, as values of the step that is being compiled.

    A single call starts all groups together and completes when all of them have.
    """
    encodings, compressors = zip(*(divide(group.compression) for group in groups), strict=True)
    pairs = [
        [compressor.compress(array) for array in group.tensors]
        for group, compressor in zip(groups, compressors, strict=True)
    ]
    arrays = [array for group in pairs for array, _ in group]
    for array in arrays:
        check_reduction(data_type(np.dtype(array.dtype)), resolve_op(op))
    call = jax.ffi.ffi_call(
        _ALLREDUCE,
        [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in arrays],
        has_side_effect=True,
        input_output_aliases={i: i for i in range(len(arrays))},
    )
    reduced = iter(
        call(
            *arrays,
            process_set=np.int64(set_id(process_set)),
            reduce_op=np.int64(op),
            prescale_factor=np.float64(prescale_factor),
            postscale_factor=np.float64(postscale_factor),
            groups=np.array([len(group.tensors) for group in groups], np.int64),
            encodings=np.array(encodings, np.int64),
            names="".join(f"{group.name or ''}\n" for group in groups),
        )
    )
    return [
        [compressor.decompress(next(reduced), context) for _, context in group]
        for group, compressor in zip(pairs, compressors, strict=True)
    ]


def _test() -> None:
    """Let another thread complete a successful and a failing call. Raises RuntimeError on failure.

    In a thread, because this one may be tracing a graph.
    """
    answers: list[object] = []

    def ask() -> None:
        test = jax.ffi.ffi_call(_SELF_TEST, jax.ShapeDtypeStruct((), np.int32))
        try:
            answers.append(int(test(np.int32(7), failure=np.int64(0))))
            test(np.int32(7), failure=np.int64(1)).block_until_ready()
        except Exception as error:  # the type depends on the version
            answers.append(str(error))

    thread = threading.Thread(target=ask, name="horoscale-self-test", daemon=True)
    thread.start()
    thread.join(_TEST_SECONDS)
    if len(answers) != 2 or answers[0] != 7 or "as asked for" not in str(answers[1]):
        raise RuntimeError(f"its test gave {answers}")
