"""The version of Horovod with horoscale's interface, for horovod.version and .metadata."""

# Scripts compare it.
__version__ = "0.28.1"
