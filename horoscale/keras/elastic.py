"""hvd.elastic of Keras. See horoscale.common.elastic."""

from __future__ import annotations

from horoscale.common.elastic import ObjectState, run

__all__ = [
    "CommitStateCallback",
    "KerasState",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "run",
]


class KerasState(ObjectState):
    """Will hold a model and its optimizer that are committed, restored and sent to new ranks."""


class CommitStateCallback(ObjectState):
    """Will commit a state every so many batches."""


class UpdateBatchStateCallback(ObjectState):
    """Will keep the number of the batch in a state."""


class UpdateEpochStateCallback(ObjectState):
    """Will keep the number of the epoch in a state."""
