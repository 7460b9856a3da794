"""The choices of adaptive compression, in a rank whose host is given by HOROSCALE_HOSTNAME.

Argument: the host of each rank, as one letter. Loops of blocking calls hide no communication, so
compression is needed on any network, where the error bound permits it and it is worthwhile. That
depends on the machine; these checks hold on all machines.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch

import horoscale.numpy as arrays
import horoscale.torch as hvd

HOSTS = sys.argv[1]
IS_ENCODED = len(set(HOSTS)) > 1
ELEMENTS = 100_001
STEPS = 60


def chosen() -> dict[str, Any]:
    """The metrics of adaptive tensors."""
    adaptive: dict[str, Any] = hvd.metrics()["process_sets"]["0"]["adaptive"]
    return adaptive


def calls() -> int:
    """How often this rank has called an encoder."""
    encodings = hvd.metrics()["process_sets"]["0"]["encodings"]
    return sum(one["calls"] for one in encodings.values())


def check_sums(error: float) -> None:
    """All ranks have the same results, and losses are made up later."""
    torch.manual_seed(hvd.rank())
    values = torch.randn(ELEMENTS)
    compression = hvd.Compression.adaptive(error)
    exact = hvd.allreduce(values, name="exact", op=hvd.Sum)
    name = f"sum {error}"
    total = torch.zeros(ELEMENTS)
    for _ in range(STEPS):
        result = hvd.allreduce(values, name=name, compression=compression, op=hvd.Sum)
        total += result
        everybodys = hvd.allgather(result[None])
        assert all(torch.equal(one, result) for one in everybodys)
    assert float((total / STEPS - exact).norm() / exact.norm()) < 0.02
    if not IS_ENCODED:
        assert chosen() == {}
        assert calls() == 0
        return
    one = chosen()[name]
    assert one["bytes_before"] == STEPS * 4 * ELEMENTS
    assert one["bytes_after"] <= one["bytes_before"]
    assert one["ratio"] >= 1
    # The choices are the same on all ranks.
    after = hvd.allgather(torch.tensor([one["bytes_after"]]))
    assert len(set(after.tolist())) == 1
    # Where a lossy encoding is used, its error is measured, and is within the bound.
    assert one["relative_error"] <= error


def check_training() -> None:
    """An optimizer supports it, including tables, and all ranks have the same weights."""
    adaptive = hvd.Compression.adaptive()
    for compression in (adaptive, {"*.weight": adaptive}):
        torch.manual_seed(1)
        network = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Linear(256, 16))
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(network.parameters(), lr=0.1),
            named_parameters=network.named_parameters(),
            compression=compression,
        )
        data = torch.Generator().manual_seed(hvd.rank())
        for _ in range(20):
            optimizer.zero_grad()
            network(torch.randn(8, 64, generator=data)).square().mean().backward()
            optimizer.step()
        weights = torch.cat([one.detach().flatten() for one in network.parameters()])
        assert all(torch.equal(one, weights) for one in hvd.allgather(weights[None]))
        assert "horoscale_residuals" in optimizer.state_dict()


def check_arrays() -> None:
    """Also on arrays; without a name residuals can't be kept, so no lossy encoding is used."""
    values = np.linspace(-1, 1, 3000, dtype=np.float32)
    compression = arrays.Compression.adaptive(1)
    for _ in range(5):
        result = arrays.allreduce(values, compression=compression, op=arrays.Average)
        assert np.allclose(result, values, atol=1e-6)


def main() -> None:
    """Run all checks."""
    hvd.init()
    torch.set_num_threads(1)
    check_sums(0.02)
    check_sums(0.3)
    check_training()
    check_arrays()
    hvd.shutdown()


main()
