"""A rank of test_lightning.py: it trains in each of the given ways.

python rank.py FOLDER STRATEGY WAY... with the strategy horoscale, gloo (DDP over Gloo) or itself
(the Trainer starts the ranks). Every rank writes its results to a file in the folder.
"""

from __future__ import annotations

import csv
import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.fabric.strategies import DDPStrategy as FabricDDPStrategy
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.strategies import DDPStrategy
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import horoscale.lightning
import horoscale.torch as hvd

QUIET: dict[str, Any] = {
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "accelerator": "cpu",
}


class Network(lightning.LightningModule):
    """A small perceptron, which learns to add."""

    def __init__(self, layer: nn.Module | None = None) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layers = nn.Sequential(nn.Linear(8, 16), layer or nn.Tanh(), nn.Linear(16, 1))

    def loss(self, batch: Any) -> torch.Tensor:
        (inputs,) = batch
        return (self.layers(inputs) - inputs.sum(1, keepdim=True)).square().mean()

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        loss = self.loss(batch)
        self.log("loss", loss, sync_dist=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


class ByHand(Network):
    """The same with an optimizer that the module steps itself."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, index: int) -> None:
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(self.loss(batch))
        optimizer.step()


def data() -> DataLoader[Any]:
    inputs = torch.randn(96, 8, generator=torch.Generator().manual_seed(1))
    return DataLoader(TensorDataset(inputs), batch_size=8)


def fit(
    strategy: Any, network: Network | None = None, resume: Path | None = None, **options: Any
) -> tuple[lightning.Trainer, Network]:
    network = network or Network()
    trainer = lightning.Trainer(strategy=strategy, **QUIET | {"max_epochs": 2} | options)
    trainer.fit(network, data(), ckpt_path=resume)
    return trainer, network


def weights(network: nn.Module) -> list[str]:
    return [value.hex() for one in network.parameters() for value in one.flatten().tolist()]


def plain(strategy: Any, folder: Path) -> Any:
    trainer, network = fit(strategy)
    loss = trainer.callback_metrics["loss"].item()
    return [trainer.world_size, trainer.global_rank, loss, weights(network)]


def clipped(strategy: Any, folder: Path) -> Any:
    return weights(fit(strategy, gradient_clip_val=0.1)[1])


def accumulated(strategy: Any, folder: Path) -> Any:
    return weights(fit(strategy, accumulate_grad_batches=3)[1])


def mixed(strategy: Any, folder: Path) -> Any:
    return weights(fit(strategy, precision="bf16-mixed")[1])


def by_hand(strategy: Any, folder: Path) -> Any:
    return weights(fit(strategy, ByHand())[1])


def resumed(strategy: Any, folder: Path) -> Any:
    """Train in two parts; the checkpoint has the names of a model on one device."""
    trainer, _ = fit(strategy, max_epochs=1)
    checkpoint = folder / "checkpoint.ckpt"
    trainer.save_checkpoint(checkpoint)
    saved = torch.load(checkpoint, weights_only=False)
    assert list(saved["state_dict"]) == list(Network().state_dict())
    return weights(fit(strategy, resume=checkpoint)[1])


def normalised(strategy: Any, folder: Path) -> Any:
    """Normalize batches over the ranks, and restore the user's layers."""
    _, network = fit(strategy, Network(nn.BatchNorm1d(16)), sync_batchnorm=True)
    layer = network.layers[1]
    assert type(layer) is nn.BatchNorm1d
    return [weights(network), [value.hex() for value in layer.running_mean.tolist()]]


def runtime_metrics(folder: Path) -> dict[str, Any]:
    """Options of a Trainer that logs the runtime's metrics to a folder of this rank."""
    return {
        "callbacks": [horoscale.lightning.RuntimeMetrics(every_n_steps=2)],
        "logger": CSVLogger(folder / f"logs.{hvd.rank()}", name="", version=""),
        "log_every_n_steps": 1,
    }


def logged_steps(folder: Path) -> dict[str, list[int]]:
    """The steps at which this rank has logged each of the runtime's metrics."""
    found: dict[str, list[int]] = {}
    for file in (folder / f"logs.{hvd.rank()}").glob("**/metrics.csv"):
        for row in csv.DictReader(file.read_text().splitlines()):
            for name, value in row.items():
                if name.startswith("horoscale/") and value:
                    found.setdefault(name, []).append(int(row["step"]))
    return found


def logged(strategy: Any, folder: Path) -> Any:
    """Log the runtime's metrics, on rank 0."""
    fit(strategy, accumulate_grad_batches=2, **runtime_metrics(folder))
    return logged_steps(folder)


def in_sets(strategy: Any, folder: Path) -> Any:
    """Train a model on each pair of ranks."""
    hvd.init(process_sets="dynamic")
    mine = hvd.ProcessSet([0, 1] if hvd.rank() < 2 else [2, 3])
    torch.manual_seed(hvd.rank())
    network = Network()
    with torch.no_grad():
        network.layers[0].weight += hvd.rank() // 2
    trainer, network = fit(
        horoscale.lightning.HoroscaleStrategy(process_set=mine, compression=hvd.Compression.bf16),
        network,
        **runtime_metrics(folder),
    )
    steps = logged_steps(folder).get("horoscale/bytes", [])
    return [trainer.callback_metrics["loss"].item(), weights(network), steps]


def in_a_wrong_set(strategy: Any, folder: Path) -> Any:
    try:
        fit(horoscale.lightning.HoroscaleStrategy(process_set=hvd.ProcessSet([0])))
    except ValueError as error:
        return str(error)
    return None


def with_wrong_devices(strategy: Any, folder: Path) -> Any:
    try:
        fit(strategy, devices=3)
    except ValueError as error:
        return str(error)
    return None


def from_different_steps(strategy: Any, folder: Path) -> Any:
    """Rank 0 alone finds a checkpoint."""
    trainer, _ = fit(strategy, max_epochs=1)
    checkpoint = folder / "of rank 0.ckpt"
    trainer.save_checkpoint(checkpoint)
    callback = horoscale.lightning.ElasticCheckpoints(hvd.elastic.ObjectState())
    try:
        fit(strategy, resume=None if hvd.rank() else checkpoint, callbacks=[callback])
    except RuntimeError as error:
        return str(error)
    return None


def with_another_strategy(strategy: Any, folder: Path) -> Any:
    callback = horoscale.lightning.ElasticCheckpoints(hvd.elastic.ObjectState())
    try:
        fit("auto", callbacks=[callback])
    except TypeError as error:
        return str(error)
    return None


def fabric(strategy: Any, folder: Path) -> Any:
    if strategy != "horoscale":
        strategy = FabricDDPStrategy(process_group_backend="gloo")
    fabric = lightning.Fabric(strategy=strategy, accelerator="cpu", devices=QUIET["devices"])
    fabric.launch()
    network = nn.Linear(8, 1)
    nn.init.constant_(network.weight, 0.5)
    nn.init.zeros_(network.bias)
    model, optimizer = fabric.setup(network, torch.optim.SGD(network.parameters(), 0.05))
    for (inputs,) in fabric.setup_dataloaders(data()):
        optimizer.zero_grad()
        fabric.backward((model(inputs) - inputs.sum(1, keepdim=True)).square().mean())
        optimizer.step()
    return [fabric.world_size, fabric.global_rank, weights(network)]


WAYS: dict[str, Callable[[Any, Path], Any]] = {
    way.__name__: way
    for way in (
        *(plain, clipped, accumulated, mixed, by_hand, resumed, normalised, logged, in_sets),
        *(in_a_wrong_set, with_wrong_devices, from_different_steps, with_another_strategy, fabric),
    )
}


def main() -> None:
    folder, name, *ways = sys.argv[1:]
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    QUIET["devices"] = "auto"
    if name == "gloo":
        QUIET["devices"] = 2
    elif name == "itself":
        name, QUIET["devices"] = "horoscale", 2
    found = {}
    for way in ways:
        strategy = DDPStrategy(process_group_backend="gloo") if name == "gloo" else "horoscale"
        found[way] = WAYS[way](strategy, Path(folder))
    rank = torch.distributed.get_rank()
    (Path(folder) / f"rank.{rank}.json").write_text(json.dumps(found))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
