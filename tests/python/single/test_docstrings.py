"""Every public module, class and function has a docstring."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import pkgutil
from types import ModuleType

import pytest

import horoscale

# Modules that the bindings need, which may not be installed.
NEEDED = (
    "torch",
    "tensorflow",
    "keras",
    "jax",
    "lightning",
    "mxnet",
    "pyspark",
    "ray",
    "horoscale.sim._sim",
)
os.environ.setdefault(  # importing Keras requires one of its backends
    "KERAS_BACKEND", "tensorflow" if importlib.util.find_spec("tensorflow") else "torch"
)


def module_names() -> list[str]:
    names = ["horoscale"]
    for module in pkgutil.walk_packages(horoscale.__path__, "horoscale.", onerror=lambda _: None):
        is_python = not module.name.rpartition(".")[2].startswith("libhoroscale")
        if is_python and not module.name.endswith(("._binding", ".__main__")):
            names.append(module.name)
    return names


def load(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        missing = [one for one in NEEDED if one in str(error) and not importlib.util.find_spec(one)]
        if missing or "is for Keras with TensorFlow" in str(error):
            pytest.skip(str(error))
        raise


@pytest.mark.parametrize("module_name", module_names())
def test_docstrings(module_name: str) -> None:
    module = load(module_name)
    assert module.__doc__, module_name
    missing = []
    for name, value in vars(module).items():
        if name.startswith("_") or getattr(value, "__module__", None) != module_name:
            continue
        if inspect.isfunction(value) and not value.__doc__:
            missing.append(name)
        if inspect.isclass(value):
            missing += [f"{name}.{one}" for one in undocumented(value)]
    assert not missing, f"{module_name}: no docstring on {', '.join(missing)}"


def undocumented(cls: type) -> list[str]:
    missing = [] if cls.__doc__ else ["(class)"]
    for name, value in vars(cls).items():
        function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        if (
            not name.startswith("_")
            and inspect.isfunction(function)
            and not inspect.getdoc(function)
        ):
            missing.append(name)
    return missing
