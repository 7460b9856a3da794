"""Replaces Horovod: `import horovod.torch as hvd` imports horoscale.torch."""

from typing import Any

from horoscale.compat.aliases import install
from horoscale.compat.version import __version__

__all__ = ["__version__", "run"]


def __getattr__(name: str) -> Any:
    # Lazily: ranks do not need the launcher.
    if name == "run":
        from horoscale import run

        return run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


install()
