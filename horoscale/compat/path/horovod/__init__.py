"""Stands in for Horovod: `import horovod.torch as hvd` gives horoscale.torch."""

from horoscale import run
from horoscale.compat.aliases import HOROVOD_VERSION as __version__  # noqa: N811
from horoscale.compat.aliases import install

__all__ = ["__version__", "run"]

install()
