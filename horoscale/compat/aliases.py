"""Makes `horovod.X` an alias of `horoscale.X`: the same module object, imported once.

Scripts and pickles that use either package therefore share classes. A module that only Horovod has
(horovod.torch.mpi_ops) maps to the module of ours that exports its names. find_spec() finds modules
that we lack (horovod.tensorflow.data.compute_service), but importing them raises ImportError, as
importing Horovod's subpackages does if the framework is missing. Programs therefore try the import.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

ALIAS = "horovod"
TARGET = "horoscale"

# Horovod's modules that have no counterpart of the same name, below horoscale.
_SERVED_BY = {
    "torch.mpi_ops": "torch",
    "tensorflow.mpi_ops": "tensorflow",
    "mxnet.mpi_ops": "mxnet",
    "common.elastic": "compat.elastic",
    "common.util": "compat.util",
    "version": "compat.version",
    "metadata": "compat.version",
    "spark.common": "spark",
    "spark.common.store": "spark.store",
    "ray.runner": "ray.executor",
}

# Missing features, by the module that would provide them.
_ABSENT = {
    "tensorflow.data.compute_service": "service for tf.data",
    "tensorflow.data.compute_worker": "service for tf.data",
}


class AliasFinder(MetaPathFinder):
    """Finds every module below `horovod`. It must precede the finder for folders."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of an alias, or None if no module of ours serves it."""
        if not fullname.startswith(ALIAS + "."):
            return None
        name = fullname.removeprefix(ALIAS + ".")
        served_by = _module_for(name)
        if served_by is not None:
            return ModuleSpec(fullname, _AliasLoader(served_by), is_package=True)
        for absent, what in _ABSENT.items():
            if f"{name}.".startswith(f"{absent}."):
                return ModuleSpec(fullname, _AbsentLoader(what))
        return None


class _AliasLoader(Loader):
    def __init__(self, target: str) -> None:
        self._target = target

    def exec_module(self, module: ModuleType) -> None:
        # The import system reads sys.modules after the call, so the module keeps its own name and
        # spec.
        sys.modules[module.__name__] = importlib.import_module(self._target)


class _AbsentLoader(Loader):
    def __init__(self, what: str) -> None:
        self._what = what

    def exec_module(self, module: ModuleType) -> None:
        raise ImportError(
            f"{module.__name__}: horoscale has no {self._what} yet. "
            "`horoscalerun --check-build` lists what there is.",
            name=module.__name__,
        )


def install() -> None:
    """Serve `horovod.*` in this process. Later calls do nothing."""
    if not any(isinstance(finder, AliasFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, AliasFinder())


def _module_for(name: str) -> str | None:
    for candidate in (name, _SERVED_BY.get(name)):
        if candidate is None:
            continue
        target = f"{TARGET}.{candidate}"
        try:
            if importlib.util.find_spec(target) is not None:
                return target
        except ModuleNotFoundError:  # its parent doesn't exist or is no package
            continue
    return None
