"""What a rank of test_elastic.py does: it trains in an elastic job, in which ranks are lost.

python elastic_rank.py FOLDER [SIGNAL]

Each process writes a line for each step into a file of its own. Rank 1 of the first ranks sends
itself a signal, SIGKILL by default. The training ends some steps
after the job has all its ranks again.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import horoscale.lightning
import horoscale.torch as hvd

FOLDER = Path(sys.argv[1])
SIGNAL = signal.Signals[sys.argv[2] if len(sys.argv) > 2 else "SIGKILL"]
SIZE = 3
KILLED_AT = 13
CHECKPOINT_STEPS = 5
LAST_STEPS = 7  # after the job is whole again
MOST_STEPS = 50_000


class Network(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layer = nn.Linear(8, 1)
        self.began = 0

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        if hvd.rank() == 1 and hvd.size() == SIZE and self.global_step == KILLED_AT:
            os.kill(os.getpid(), SIGNAL)
        (inputs,) = batch
        loss = (self.layer(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        self.log("loss", loss, sync_dist=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.001, momentum=0.9)


class Notes(lightning.Callback):
    """Writes down where the training is, and ends it."""

    def __init__(self) -> None:
        self.began = 0
        self.file = FOLDER / f"{os.getpid()}.jsonl"

    def note(
        self, what: str, trainer: lightning.Trainer, module: lightning.LightningModule
    ) -> None:
        line = {
            "what": what,
            "step": trainer.global_step,
            "rank": hvd.rank(),
            "size": hvd.size(),
            "world": torch.distributed.get_world_size(),
            "weights": [one.sum().item().hex() for one in module.parameters()],
        }
        with self.file.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def on_train_start(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        self.began = trainer.global_step
        self.note("start", trainer, module)

    def on_train_batch_end(
        self, trainer: lightning.Trainer, module: lightning.LightningModule, *batch: Any
    ) -> None:
        self.note("step", trainer, module)
        is_whole = hvd.size() == SIZE and self.began > KILLED_AT
        if is_whole and trainer.global_step == self.began + LAST_STEPS:
            trainer.should_stop = True

    def on_train_end(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        self.note("end", trainer, module)


def data() -> DataLoader:
    inputs = torch.randn(96, 8, generator=torch.Generator().manual_seed(1))
    return DataLoader(TensorDataset(inputs), batch_size=4)


@hvd.elastic.run
def train(state: hvd.elastic.State) -> None:
    checkpoints = ModelCheckpoint(
        FOLDER / "checkpoints", save_last=True, every_n_train_steps=CHECKPOINT_STEPS
    )
    trainer = lightning.Trainer(
        strategy="horoscale",
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        max_steps=MOST_STEPS,
        callbacks=[Notes(), checkpoints, horoscale.lightning.ElasticCheckpoints(state)],
    )
    trainer.fit(Network(), data(), ckpt_path="last")


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    hvd.init()
    train(hvd.elastic.ObjectState())
