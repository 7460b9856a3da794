"""Local SGD with lossy compression, in a rank whose host is given by HOROSCALE_HOSTNAME."""

from __future__ import annotations

import copy
from typing import Any

import torch
from small_training import model, same_everywhere, train, weights_of

import horoscale.torch as hvd

COMPRESSIONS = (
    hvd.Compression.fp16,
    hvd.Compression.int8,
    hvd.Compression.int4,
    {"0.*": hvd.Compression.topk(0.25)},
)
OUTER = (
    None,
    lambda tensors: torch.optim.SGD(tensors, lr=0.7, momentum=0.9, nesterov=True),
)


def local(network: torch.nn.Module, compression: Any, outer: Any = None) -> Any:
    """An optimizer with it, with rounds of four steps."""
    return hvd.DistributedOptimizer(
        torch.optim.SGD(network.parameters(), lr=0.2),
        named_parameters=network.named_parameters(),
        compression=compression,
        sync_every=4,
        outer_optimizer=outer,
    )


def check_training() -> None:
    """Models learn as well as without compression, with fewer bytes sent."""
    for outer in OUTER:
        losses, sent = [], []
        for compression in (hvd.Compression.none, *COMPRESSIONS):
            network = model()
            before = hvd.metrics()["network_bytes_sent"]
            losses.append(train(local(network, compression, outer), network, 160))
            sent.append(hvd.metrics()["network_bytes_sent"] - before)
            assert same_everywhere(network), compression
        assert max(losses) < losses[0] * 1.5 + 0.02, losses
        if sent[0]:  # not every rank of a host sends
            assert max(sent[1:]) < 0.75 * sent[0], sent


def check_state() -> None:
    """Residuals are part of the state: resumed training is identical."""
    network = model()
    optimizer = local(network, hvd.Compression.int4)
    train(optimizer, network, 8)
    weights = copy.deepcopy(network.state_dict())
    state = copy.deepcopy(optimizer.state_dict())
    train(optimizer, network, 4, seed=50)
    expected = weights_of(network)

    def go_on() -> torch.Tensor:
        network.load_state_dict(weights)
        optimizer.load_state_dict(state)
        train(optimizer, network, 4, seed=50)
        return weights_of(network)

    assert torch.equal(go_on(), expected)
    del state["horoscale_residuals"]
    assert not torch.equal(go_on(), expected)


hvd.init()
torch.set_num_threads(1)
check_training()
check_state()
hvd.shutdown()
