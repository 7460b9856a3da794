"""CheckpointError: what can't be saved or loaded."""

from __future__ import annotations


class CheckpointError(RuntimeError):
    """A checkpoint can't be written or read; the message names file, tensor or rank.

    Where one rank alone has found that, the others raise it with that rank's message.
    """
