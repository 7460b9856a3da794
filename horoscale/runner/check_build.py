"""horoscalerun --check-build: what this installation offers, and what to do about the rest."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from horoscale._version import __version__


@dataclass(frozen=True)
class Item:
    """A line of the table."""

    name: str
    available: bool
    note: str = ""  # how it is served; if it isn't available, why and what to do

    def __str__(self) -> str:
        """Format it as Horovod does."""
        mark = "X" if self.available else " "
        return f"    [{mark}] {self.name}" + (f": {self.note}" if self.note else "")


def describe() -> str:
    """Return the tables, as text."""
    core, problem = _core()
    sections = (
        ("Frameworks", _frameworks()),
        ("Controllers", _controllers(core, problem)),
        ("Tensor Operations", _operations(core, problem)),
    )
    lines = [f"horoscale v{__version__}:"]
    for title, items in sections:
        lines += ["", f"Available {title}:", *map(str, items)]
    if core:
        details = (f"    {name}: {_flat(value)}" for name, value in sorted(core.items()))
        lines += ["", "This build on this machine:", *details]
    return "\n".join(lines) + "\n"


def _core() -> tuple[dict[str, Any], str]:
    """What the core says of itself, or why it can't be asked."""
    try:
        from horoscale._core import build_info

        return build_info(), ""
    except (ImportError, RuntimeError, ValueError) as error:
        return {}, f"the core can't be loaded ({error}); install horoscale again: pip install ."


def _frameworks() -> Iterable[Item]:
    for name, module, binding, install in (
        ("PyTorch", "torch", "horoscale.torch", "pip install torch"),
        ("numpy", "numpy", "horoscale.numpy", "pip install numpy"),
        ("TensorFlow", "tensorflow", "horoscale.tensorflow", "pip install tensorflow"),
        ("Keras", "keras", "horoscale.keras", "pip install keras"),
    ):
        if importlib.util.find_spec(binding) is None:
            yield Item(name, False, "horoscale has no binding for it yet")
        elif importlib.util.find_spec(module) is None:
            yield Item(name, False, f"not installed; {install}")
        else:
            yield Item(name, True)


def _controllers(core: dict[str, Any], problem: str) -> Iterable[Item]:
    yield Item("MPI", False, "not available yet; use the native controller (default)")
    yield Item("Gloo", bool(core), problem or "the native controller serves under this name")


def _operations(core: dict[str, Any], problem: str) -> Iterable[Item]:
    yield Item("NCCL", False, "not available yet; tensors have to be in the host's memory")
    yield Item("MPI", False, "not available yet; the native operations don't need it")
    yield Item("Gloo", bool(core), problem or "the native operations serve under this name")


def _flat(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_flat(inner)}" for name, inner in value.items())
    if isinstance(value, list):
        return " ".join(map(_flat, value))
    return str(value)
