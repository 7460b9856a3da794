"""hvd.elastic of TensorFlow. See horoscale.common.elastic."""

from __future__ import annotations

from horoscale.common.elastic import ObjectState, run

__all__ = ["ObjectState", "TensorFlowKerasState", "TensorFlowState", "run"]


class TensorFlowState(ObjectState):
    """Will hold variables that are committed, restored and sent to new ranks."""


class TensorFlowKerasState(ObjectState):
    """Will hold a model and its optimizer that are committed, restored and sent to new ranks."""
