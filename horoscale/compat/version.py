"""The release of Horovod whose interface horoscale has: what horovod.version and .metadata tell."""

# Scripts compare it.
__version__ = "0.28.1"
