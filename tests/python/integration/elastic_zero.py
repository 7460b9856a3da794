"""An elastic job whose training state is divided: elastic_zero.py FOLDER STEPS STAGE [STEP RANK]...

The first process with RANK at STEP kills itself before it commits. All ranks train on the same
samples, so that the weights do not depend on the number of ranks; rank 0 writes them to
FOLDER/weights.pt.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

import horoscale.torch as hvd
import horoscale.torch.parallel as par

WIDTH = 21


def model() -> nn.Module:
    torch.manual_seed(3)
    layers = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
    made = nn.Sequential(nn.BatchNorm1d(WIDTH), *layers).double()
    made[1].bias.requires_grad_(False)
    return made


def loss(of: nn.Module, step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(8, WIDTH, generator=generator, dtype=torch.float64)
    return (torch.tanh(of(x)) - x).square().mean()


def main() -> None:
    folder, steps, stage = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    kills = list(zip(map(int, sys.argv[4::2]), map(int, sys.argv[5::2]), strict=True))
    size = int(os.environ.get("FULL_SIZE", "0"))  # training continues with fewer ranks than this

    def make() -> tuple[nn.Module, Any]:
        mesh = par.init()
        sharded = par.shard(model(), mesh.dp, stage, unit=nn.Linear, shared=stage == 1)
        return sharded, par.ZeroOptimizer(torch.optim.AdamW, sharded, lr=0.01)

    hvd.init()
    state = par.ElasticState(make, step=0)

    @hvd.elastic.run
    def train(state: par.ElasticState) -> None:
        while state.step < steps or hvd.size() < size:
            loss(state.model, state.step).backward()
            state.optimizer.step()
            state.optimizer.zero_grad()
            state.step += 1
            mark = folder / f"killed-{state.step}"
            if (state.step, hvd.rank()) in kills and not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            if state.step >= steps and hvd.size() >= size:
                break  # not committed, but the last checkpoint contains this step
            state.commit()
            if hvd.size() < size:
                time.sleep(0.02)  # a replacement is starting
        whole = par.whole_state_dict(state.model)
        if hvd.rank() == 0:
            torch.save({"step": state.step, "weights": whole}, folder / "weights.pt")

    train(state)


if __name__ == "__main__":
    main()
