"""Pipelines: a model divided into stages on several ranks, which process microbatches."""

from horoscale.torch.parallel.pipeline.errors import PipelineError
from horoscale.torch.parallel.pipeline.pipeline import Pipeline
from horoscale.torch.parallel.pipeline.split import split

__all__ = ["Pipeline", "PipelineError", "split"]
