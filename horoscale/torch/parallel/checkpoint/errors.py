"""CheckpointError: a checkpoint cannot be saved or loaded."""

from __future__ import annotations


class CheckpointError(RuntimeError):
    """A checkpoint cannot be written or read. The message names the file, tensor or rank.

    If only one rank detects the error, the others raise it with that rank's message.
    """
