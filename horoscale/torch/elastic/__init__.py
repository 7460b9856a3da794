"""hvd.elastic for PyTorch. See horoscale.elastic and docs/elastic.md."""

from horoscale.common.surviving_sets import surviving
from horoscale.elastic import DataPlan, ObjectState, ShardedStream, State, balance, run, status
from horoscale.torch.elastic import arrays as _arrays
from horoscale.torch.elastic.handlers import (
    ModelStateHandler,
    OptimizerStateHandler,
    SamplerStateHandler,
    StateHandler,
    get_handler_registry,
    set_handler_registry,
)
from horoscale.torch.elastic.sampler import ElasticSampler
from horoscale.torch.elastic.state import TorchState

__all__ = [
    "DataPlan",
    "ElasticSampler",
    "ModelStateHandler",
    "ObjectState",
    "OptimizerStateHandler",
    "SamplerStateHandler",
    "ShardedStream",
    "State",
    "StateHandler",
    "TorchState",
    "balance",
    "get_handler_registry",
    "run",
    "set_handler_registry",
    "status",
    "surviving",
]

_arrays.register()
