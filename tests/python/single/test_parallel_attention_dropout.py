"""Which function is a model's attention, if it has no name of its own."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from horoscale.torch.parallel.attention_dropout import _eager  # noqa: E402


def test_attention_that_inherits_from_a_librarys(monkeypatch: pytest.MonkeyPatch) -> None:
    """The function is in the module of the base class, not in that of the class."""
    library: Any = ModuleType("modeling_of_a_library")
    library.eager_attention_forward = lambda module, x, scale: (type(module).__name__, x * scale)
    monkeypatch.setitem(sys.modules, library.__name__, library)
    base = type("Attention", (torch.nn.Module,), {"__module__": library.__name__})

    class Own(base):  # type: ignore[misc, valid-type]
        pass

    assert _eager(Own(), 3, scale=2) == ("Own", 6)
    assert _eager(base(), 3, scale=2) == ("Attention", 6)
