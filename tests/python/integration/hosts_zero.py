"""A rank of a job of several hosts, all of which divide the training state of models."""

from __future__ import annotations

import sys

import torch
from support.zero import batch, make, reference, same, sharded

import horoscale.torch as hvd
import horoscale.torch.parallel as par
from horoscale.torch.parallel.zero import sharded_of


def main() -> None:
    hvd.init()
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
    hvd.shutdown()


if __name__ == "__main__":
    sys.exit(main())
