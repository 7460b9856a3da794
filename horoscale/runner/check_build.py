"""horoscalerun --check-build: the features of this installation, and how to get the others."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from horoscale._version import __version__


@dataclass(frozen=True)
class Item:
    """A line of the table."""

    name: str
    available: bool
    note: str = ""  # the implementation; if unavailable, the reason and a remedy

    def __str__(self) -> str:
        """Format it as Horovod does."""
        mark = "X" if self.available else " "
        return f"    [{mark}] {self.name}" + (f": {self.note}" if self.note else "")


# Backends: name in the core, name in the table, remedy if it is missing.
_CONTROLLERS = (
    ("mpi", "MPI", "pip install mpich, or start the ranks with horoscalerun, which needs no MPI"),
    ("native", "Gloo", "install horoscale again: pip install ."),
)
_OPERATIONS = (
    ("nccl", "NCCL", "CUDA tensors need an NVIDIA driver; they are fast only with NCCL"),
    ("mpi", "MPI", "the native operations need none"),
    ("native", "Gloo", "install horoscale again: pip install ."),
)


def describe() -> str:
    """Return the tables, as text."""
    core, problem = _core()
    backends = core.pop("backends", {})
    encryption = core.pop("encryption", {})
    sections = (
        ("Frameworks", _frameworks()),
        ("Engines", _engines()),
        ("Controllers", _from_core(_CONTROLLERS, backends, problem)),
        ("Tensor Operations", _from_core(_OPERATIONS, backends, problem)),
        ("Protection of traffic between hosts", _protection(encryption, problem)),
    )
    lines = [f"horoscale v{__version__}:"]
    for title, items in sections:
        lines += ["", f"Available {title}:", *map(str, items)]
    if core:
        details = (f"    {name}: {value}" for name, value in sorted(core.items()))
        lines += ["", "Core:", *details]
    return "\n".join(lines) + "\n"


def _protection(encryption: Mapping[str, Any], problem: str) -> Iterable[Item]:
    yield Item("authentication", not problem, problem)
    reason = " ".join(str(encryption.get("reason", problem)).split())
    yield Item("encryption", bool(encryption.get("available")), encryption.get("library", reason))


def _core() -> tuple[dict[str, Any], str]:
    """Return the core's description of itself, or the reason why it cannot be loaded."""
    try:
        from horoscale._core import build_info

        return build_info(), ""
    except (ImportError, RuntimeError, ValueError) as error:
        return {}, f"cannot load the core ({error})"


def _frameworks() -> Iterable[Item]:
    for name, module, binding, install in (
        ("PyTorch", "torch", "horoscale.torch", "pip install torch"),
        ("numpy", "numpy", "horoscale.numpy", "pip install numpy"),
        ("TensorFlow", "tensorflow", "horoscale.tensorflow", "pip install tensorflow"),
        ("Keras", "keras", "horoscale.keras", "pip install keras"),
        ("MXNet", "mxnet", "horoscale.mxnet", "pip install mxnet==1.9.1 'numpy<1.24'"),
    ):
        if importlib.util.find_spec(binding) is None:
            yield Item(name, False, "horoscale has no binding for it yet")
        elif not _is_installed(module):
            yield Item(name, False, f"not installed; {install}")
        else:
            yield Item(name, True)


def _engines() -> Iterable[Item]:
    """Yield what can start jobs: programs of batch systems, and packages."""
    for name, program in (("Slurm", "srun"), ("LSF", "blaunch"), ("PBS", "qsub")):
        found = shutil.which(program)
        yield Item(name, found is not None, found or f"{program} is not on the PATH")
    for name, module, install in (
        ("Ray", "ray", "pip install 'horoscale[ray]'"),
        ("Spark", "pyspark", "pip install 'horoscale[spark]'"),
        ("Dask", "distributed", "pip install 'horoscale[dask]'"),
        ("Kubernetes", "kubernetes", "pip install 'horoscale[kubernetes]', for elastic jobs"),
    ):
        if not _is_installed(module):
            yield Item(name, False, f"not installed; {install}")
        elif name == "Spark" and not _has_java():
            yield Item(name, False, "Java is missing; install a JRE, version 17 or newer")
        else:
            yield Item(name, True)


def _has_java() -> bool:
    home = os.environ.get("JAVA_HOME")
    return shutil.which("java", path=os.path.join(home, "bin") if home else None) is not None


def _is_installed(module: str) -> bool:
    try:
        spec = importlib.util.find_spec(module)
        return spec is not None and spec.origin is not None  # a folder of that name has none
    except ImportError:  # an import hook hides it
        return False


def _from_core(
    table: Sequence[tuple[str, str, str]], backends: dict[str, Any], problem: str
) -> Iterable[Item]:
    for key, name, remedy in table:
        backend = backends.get(key, {})
        if backend.get("available"):
            note = "the native backend, in Gloo's place" if key == "native" else _library(backend)
            if key == "nccl":
                note += f"; {_cuda(backend)}"
            yield Item(name, True, note)
        elif key == "nccl" and not problem:
            found = _library(backend) if "library" in backend else _reason(backend["reason"])
            yield Item(name, False, f"{found}; {_cuda(backend)}; {remedy}")
        else:
            yield Item(name, False, f"{_reason(backend.get('reason') or problem)}; {remedy}")


def _cuda(backend: dict[str, Any]) -> str:
    """Describe the NVIDIA driver, without which NCCL is useless."""
    if "cuda" in backend:
        return f"CUDA {backend['cuda_version']}, {backend['cuda']}"
    return _reason(backend.get("cuda_reason", ""))


def _library(backend: dict[str, Any]) -> str:
    """Describe the library and its location: MPICH 4.0.2, /usr/lib/libmpich.so.12."""
    # MPICH says "MPICH Version:\t4.0.2", Open MPI "Open MPI v5.0.11, package: …, …".
    version = " ".join(backend.get("version", "").partition(",")[0].replace("Version:", "").split())
    return ", ".join(filter(None, (version, backend.get("library", ""))))


_LIBRARY_VARIABLES = ("HOROSCALE_LIBMPI", "MPI4PY_LIBMPI", "HOROSCALE_LIBNCCL", "HOROSCALE_LIBCUDA")


def _reason(text: str) -> str:
    """Shorten an error to one line, with only those search paths that the user has set."""
    reason, _, tried = text.partition(" Tried:\n")
    if any(name in os.environ and name in text for name in _LIBRARY_VARIABLES):
        reason += " " + tried.partition("\n")[0]
    return " ".join(reason.split()).rstrip(".")
