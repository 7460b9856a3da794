"""A rank of a job of several hosts, all of which divide the training state of models."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from support.zero import Half, batch, make, reference, same, sharded, world

import horoscale.torch as hvd
import horoscale.torch.parallel as par
from horoscale.torch.parallel.zero import sharded_of


def check_bits() -> None:
    """Sharded models equal undivided ones."""
    for stage in (1, 2, 3):
        model = make()
        alone, averaging = reference(model, torch.optim.AdamW, lr=0.01)
        with sharded(model, stage):
            optimizer = par.ZeroOptimizer(torch.optim.AdamW, model, lr=0.01)
            for number in range(2):
                for one, of in ((alone, averaging), (model, optimizer)):
                    of.zero_grad()
                    one(batch(number)).backward()
                    of.step()
            state = sharded_of(model)
            assert not any(one.is_view for one in state.trained)  # no access to other hosts
            assert any(one.resident for one in state.trained) == (stage < 3)
            same(model, alone)


def trained(stage: int, compression: Any, passes: int = 1) -> tuple[float, dict[str, torch.Tensor]]:
    """The loss after some steps, and the parameters."""
    model = make()
    with sharded(model, stage, unit=Half, compression=compression):
        optimizer = par.ZeroOptimizer(torch.optim.AdamW, model, lr=0.01)
        for number in range(25):
            optimizer.zero_grad()
            for _ in range(passes):
                loss = model(batch(number % 4, samples=40))
                loss.backward()
            optimizer.step()
        return float(hvd.allreduce(loss.detach())), par.whole_state_dict(model)


def check_compression() -> None:
    """Models learn as well as without it, with the same bits in all stages."""
    plain, _ = trained(2, hvd.Compression.none)
    before = encoded()
    for passes in (1, 2):  # stage 1 adds up what both deliver
        results = [trained(stage, hvd.Compression.int8, passes) for stage in (1, 2, 3)]
        for loss, state in results:
            assert loss < 1.2 * plain + 0.02, (loss, plain)
            assert all(torch.equal(one, state[name]) for name, one in results[0][1].items())
    # Of host "aa", rank 0 encodes what rank 2 gets.
    assert before == {}
    assert ("int8" in encoded()) == (hvd.rank() != 1)
    loss, _ = trained(3, hvd.Compression.adaptive(0.1))
    assert loss < 1.2 * plain + 0.02, (loss, plain)
    chosen = hvd.metrics()["process_sets"]["0"]["adaptive"]
    assert all(name.startswith("zero.gradient.") for name in chosen), chosen
    assert chosen


def encoded() -> dict[str, Any]:
    """What this rank has encoded."""
    found: dict[str, Any] = hvd.metrics()["process_sets"]["0"]["encodings"]
    return found


def check_errors() -> None:
    """Compressors that ZeRO does not support, and compression= in the wrong place."""
    model = make()
    for compression in (hvd.Compression.powersgd(2), {"*": hvd.Compression.int8}, "int8"):
        with pytest.raises(ValueError, match=r"compress|powersgd"):
            par.shard(model, world(), compression=compression)
    with sharded(model, 2), pytest.raises(ValueError, match=r"give compression= to par.shard"):
        par.ZeroOptimizer(torch.optim.AdamW, model, compression=hvd.Compression.int8)


def main() -> None:
    hvd.init()
    torch.set_num_threads(1)
    check_bits()
    check_compression()
    check_errors()
    hvd.shutdown()


if __name__ == "__main__":
    sys.exit(main())
