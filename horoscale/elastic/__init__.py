"""Elastic training: a job continues while ranks fail, join and leave.

    import horoscale.torch as hvd

    hvd.init()
    state = hvd.elastic.TorchState(model, optimizer, epoch=0)

    @hvd.elastic.run
    def train(state):
        while state.epoch < 10:
            ...
            state.epoch += 1
            state.commit()

    train(state)

This package needs no framework. horoscale.torch.elastic, .tensorflow.elastic and .keras.elastic add
the states of their frameworks. For a guide, see docs/elastic.md.
"""

from horoscale.common.surviving_sets import surviving
from horoscale.elastic.buddies import ShardsLostError
from horoscale.elastic.data_plan import DataPlan
from horoscale.elastic.load_balance import balance
from horoscale.elastic.monitoring import status
from horoscale.elastic.objects import ObjectState
from horoscale.elastic.sharded_stream import ShardedStream
from horoscale.elastic.state import State
from horoscale.elastic.training import run

__all__ = [
    "DataPlan",
    "ObjectState",
    "ShardedStream",
    "ShardsLostError",
    "State",
    "balance",
    "run",
    "status",
    "surviving",
]
