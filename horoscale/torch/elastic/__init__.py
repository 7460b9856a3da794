"""hvd.elastic of PyTorch. See horoscale.common.elastic."""

from __future__ import annotations

from typing import Any

from horoscale.common.elastic import ObjectState, missing, run

__all__ = ["ElasticSampler", "ObjectState", "TorchState", "run"]


class TorchState(ObjectState):
    """Will hold models and optimizers that are committed, restored and sent to new ranks."""


class ElasticSampler:
    """Will deal out what is left of a data set when the job's ranks change."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Raise NotImplementedError."""
        missing(type(self).__name__)
