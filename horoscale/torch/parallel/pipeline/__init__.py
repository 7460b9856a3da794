"""Pipelines: a model in stages on several ranks, and microbatches that go through them."""

from horoscale.torch.parallel.pipeline.errors import PipelineError
from horoscale.torch.parallel.pipeline.pipeline import Pipeline
from horoscale.torch.parallel.pipeline.split import split

__all__ = ["Pipeline", "PipelineError", "split"]
