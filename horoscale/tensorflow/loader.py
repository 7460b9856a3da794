"""Loads and tests the kernel of TensorFlow's ops on first use.

It is not loaded at import, because the test makes TensorFlow initialize its devices, and scripts
select theirs after hvd.init().

The library shipped with horoscale uses TensorFlow's C API and works with every version. It relies
on one detail that this API does not guarantee, so it is tested when it is loaded. For TensorFlow
releases that horoscale's tests have not covered, this happens in a separate process, which may
crash. If the test fails, or if HOROSCALE_TENSORFLOW_KERNEL=compiled requests it, the sources are
compiled once for the installed version by the system's compiler (CXX, default c++) into
$XDG_CACHE_HOME/horoscale (default ~/.cache/horoscale).
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import subprocess
import tempfile
import threading
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.framework import auto_control_deps

from horoscale._core import Runtime
from horoscale.common import environment, job
from horoscale.runner.bootstrap import python_command

_HERE = Path(__file__).parent
_CORE = _HERE.parent / "_core"
_LIBRARY = _HERE / "libhoroscale_tensorflow.so"
_TEST_SECONDS = 30.0
_PROCESS_SECONDS = 120.0
# The releases covered by tests/python/wheels.
_TRIED = ("2.18.", "2.19.", "2.20.", "2.21.")
# The prefixes of the ops' names, in the shipped library and in a compiled one.
PREFIXES = ("Horoscale", "HoroscaleCompiled")
# Unlike the collectives, these run in program order, and even if the result is unused.
_IN_ORDER = ("Messages", "Join", "Topology", "SelfTest")
_COLLECTIVES = (
    *("Allreduce", "Allgather", "Broadcast", "Alltoall", "Reducescatter"),
    *("Reduce", "Gather", "Scatter"),
)


class Kernel:
    """A library with the ops, loaded into TensorFlow."""

    def __init__(self, path: Path, prefix: str) -> None:
        """Load the library. The names of its ops begin with `prefix`.

        Raises:
            tf.errors.OpError: the library cannot be loaded.
            RuntimeError: the library does not work with this TensorFlow.
        """
        self.prefix = prefix
        self._module = tf.load_op_library(str(path))
        self._set_runtime = ctypes.CDLL(str(path)).horoscale_tensorflow_set_runtime
        self._set_runtime.argtypes = [ctypes.c_void_p]
        self._set_runtime.restype = None
        missing = [one for one in _COLLECTIVES + _IN_ORDER if not self._has(one)]
        if missing:
            raise RuntimeError(f"TensorFlow did not take the ops {missing}")
        _test(self.op("SelfTest"))

    def op(self, name: str) -> Callable[..., Any]:
        """Return the function of an op, such as "Allreduce"."""
        function: Callable[..., Any] = getattr(self._module, _snake(self.prefix + name))
        return function

    def _has(self, name: str) -> bool:
        return hasattr(self._module, _snake(self.prefix + name))

    def use(self) -> None:
        """Track the jobs of this process, and let collectives of a tf.function run concurrently.

        TensorFlow runs stateful ops of a function sequentially in program order. Two ranks with
        different orders would then deadlock, and no operations could be fused.
        """
        auto_control_deps.ASYNC_STATEFUL_OPS = auto_control_deps.ASYNC_STATEFUL_OPS | {
            self.prefix + name for name in _COLLECTIVES
        }
        job.at_start(self._begin)
        job.at_end(self._end)

    def _begin(self, runtime: Runtime) -> None:
        self._set_runtime(runtime.address)

    def _end(self) -> None:
        self._set_runtime(None)


_kernel: Kernel | None = None
_lock = threading.Lock()


def op(name: str) -> Callable[..., Any]:
    """Return the function of an op, such as "Allreduce".

    Raises:
        ImportError: no kernel works with the installed TensorFlow. The message gives the reason.
    """
    global _kernel
    with _lock:
        if _kernel is None:
            _kernel = _load()
            _kernel.use()
        return _kernel.op(name)


def runs_in_order(name: str) -> bool:
    """Return whether TensorFlow always runs an op of a function, in program order."""
    return name in _IN_ORDER


def _load() -> Kernel:
    wanted = (environment.variable("TENSORFLOW_KERNEL")[1] or "auto").lower()
    if wanted not in ("auto", "compiled"):
        raise ValueError(f"HOROSCALE_TENSORFLOW_KERNEL={wanted!r} is neither auto nor compiled")
    if wanted == "auto":
        try:
            if not tf.__version__.startswith(_TRIED):
                _try_in_a_process()
            return Kernel(_LIBRARY, PREFIXES[0])
        except (tf.errors.OpError, RuntimeError, OSError) as error:
            warnings.warn(
                f"horoscale's kernel does not work with TensorFlow {tf.__version__} ({error}); "
                "compiling one for this version",
                RuntimeWarning,
                stacklevel=2,
            )
    try:
        return Kernel(_compile(), PREFIXES[1])
    except (tf.errors.OpError, RuntimeError, OSError) as error:
        raise ImportError(
            f"horoscale has no kernel for TensorFlow {tf.__version__}: {error}"
        ) from error


def _try_in_a_process() -> None:
    """Load the library in another process. Raises RuntimeError if that process fails.

    The result is valid for this TensorFlow and this library. It is cached next to compiled
    libraries.
    """
    key = hashlib.sha256(_LIBRARY.read_bytes()).hexdigest()[:16]
    passed = _cache() / f"tensorflow-{tf.__version__}-{key}.passed"
    if passed.exists():
        return
    try:
        outcome = subprocess.run(
            python_command("horoscale.tensorflow.loader", str(_LIBRARY), PREFIXES[0]),
            env=os.environ | {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "2"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_PROCESS_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"its test did not finish within {error.timeout} s") from error
    if outcome.returncode != 0:
        said = outcome.stderr.strip().rpartition("\n")[2]
        raise RuntimeError(f"its test exited with status {outcome.returncode}: {said}")
    with contextlib.suppress(OSError):  # the next process repeats the test
        passed.parent.mkdir(parents=True, exist_ok=True)
        passed.touch()


def main(arguments: Sequence[str]) -> None:
    """Load the library with this path and prefix, in the process that may crash."""
    Kernel(Path(arguments[0]), arguments[1])


def _snake(name: str) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_")


def _test(self_test: Callable[..., Any]) -> None:
    """Let another thread complete an op. Raises RuntimeError if the result is wrong."""
    answers: list[object] = []

    def ask() -> None:
        with context.eager_mode(), tf.device("CPU:0"):
            answers.extend(int(self_test(number)) for number in (7, -(2**31)))

    thread = threading.Thread(target=ask, name="horoscale-self-test", daemon=True)
    thread.start()
    thread.join(_TEST_SECONDS)
    if answers != [7, -(2**31)]:
        raise RuntimeError(f"its test gave {answers}")


def _compile() -> Path:
    """Return the library compiled for the installed TensorFlow, from the cache if possible."""
    sources = sorted(_HERE.glob("native/*.cc"))
    sources = [source for source in sources if source.name != "entry_c_api.cc"]
    flags = [
        *tf.sysconfig.get_compile_flags(),
        *("-std=c++20", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-w"),
        f'-DHOROSCALE_OP_PREFIX="{PREFIXES[1]}"',
        f"-I{_CORE / 'include'}",
    ]
    libraries = [
        *tf.sysconfig.get_link_flags(),
        f"-L{_CORE / 'lib'}",
        "-lhoroscale",
        f"-Wl,-rpath,{_CORE / 'lib'}",
    ]
    compiler = os.environ.get("CXX", "c++")
    text = b"".join(one.read_bytes() for one in sorted(_HERE.glob("native/*.[ch]*")))
    key = hashlib.sha256(repr((tf.__version__, compiler, flags, libraries)).encode() + text)
    result = _cache() / f"tensorflow-{tf.__version__}-{key.hexdigest()[:16]}.so"
    if result.exists():
        return result
    result.parent.mkdir(parents=True, exist_ok=True)
    # Ranks may compile concurrently. Each writes its own file, and the last rename wins.
    with tempfile.TemporaryDirectory(dir=result.parent) as folder:
        built = Path(folder) / result.name
        command = [compiler, *flags, *map(str, sources), "-o", str(built), *libraries]
        outcome = subprocess.run(command, capture_output=True, text=True, check=False)
        if outcome.returncode != 0:
            raise RuntimeError(f"{compiler} failed:\n{outcome.stderr[-2000:]}")
        built.rename(result)
    return result


def _cache() -> Path:
    """Return the folder of the cache shared by processes."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "horoscale"
