"""horoscale: collective communication for deep learning, with process sets.

Import your framework's binding: `import horoscale.torch as hvd`, or `horoscale.numpy` for arrays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from horoscale._version import __version__

if TYPE_CHECKING:
    from horoscale.runner import run

__all__ = ["__version__", "run"]


def __getattr__(name: str) -> Any:
    # Lazily: a rank needs no launcher.
    if name == "run":
        from horoscale.runner import run

        return run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
