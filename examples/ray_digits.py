"""Trains on scikit-learn's digits with Ray Train and Ray Data.

    python examples/ray_digits.py --workers 4                    # starts a cluster on this machine
    python examples/ray_digits.py --address HOST:6379 --workers 4

Ray Train starts the workers, distributes the rows among them, and collects metrics and checkpoints.
The workers are the ranks of a job, whose optimizer averages gradients.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import ray
import ray.data
import ray.train
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

import horoscale.torch as hvd
from horoscale.ray.train import HoroscaleTrainer


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--address", help="address of an existing cluster; default: start one on this machine"
    )
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--cpus-per-worker", type=float, default=1)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=32, help="samples per rank and step")
    return parser.parse_args()


def train(config: dict) -> None:
    """Train on a worker."""
    hvd.init()
    torch.set_num_threads(1)  # the ranks share the cores
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.Adam(model.parameters(), 0.003), named_parameters=model.named_parameters()
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    rows = ray.train.get_dataset_shard("train")
    for _epoch in range(config["epochs"]):
        total = torch.zeros(())
        for batch in rows.iter_torch_batches(batch_size=config["batch_size"], drop_last=False):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(batch["image"]), batch["label"])
            loss.backward()
            optimizer.step()
            total += loss.detach()
        hvd.join()  # some ranks may have one batch more than others
        mean = hvd.allreduce(total, name="loss").item()
        metrics = {"loss": mean, "ranks": hvd.size(), "nodes": hvd.cross_size()}
        with tempfile.TemporaryDirectory() as folder:
            checkpoint = None
            if hvd.rank() == 0:
                torch.save(model.state_dict(), Path(folder) / "model.pt")
                checkpoint = ray.train.Checkpoint.from_directory(folder)
            ray.train.report(metrics, checkpoint=checkpoint)
    hvd.shutdown()


def main() -> None:
    arguments = parse_arguments()
    ray.init(address=arguments.address, logging_level="warning")
    images, labels = load_digits(return_X_y=True)
    train_x, test_x, train_y, test_y = train_test_split(
        images.astype("float32") / 16, labels, test_size=0.2, random_state=0
    )
    data = ray.data.from_items(
        [
            {"image": image, "label": int(label)}
            for image, label in zip(train_x, train_y, strict=True)
        ]
    )
    with tempfile.TemporaryDirectory() as storage:
        trainer = HoroscaleTrainer(
            train,
            train_loop_config={"epochs": arguments.epochs, "batch_size": arguments.batch_size},
            scaling_config=ray.train.ScalingConfig(
                num_workers=arguments.workers,
                resources_per_worker={"CPU": arguments.cpus_per_worker},
                placement_strategy="SPREAD",
            ),
            run_config=ray.train.RunConfig(storage_path=storage, name="digits"),
            datasets={"train": data},
        )
        result = trainer.fit()
        model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
        with result.checkpoint.as_directory() as folder:
            model.load_state_dict(torch.load(Path(folder) / "model.pt"))
    with torch.no_grad():
        right = model(torch.from_numpy(test_x)).argmax(1) == torch.from_numpy(test_y)
    shape = f"{result.metrics['ranks']} ranks on {result.metrics['nodes']} nodes"
    print(f"{shape}: accuracy {right.float().mean().item():.4f}", flush=True)


if __name__ == "__main__":
    main()
