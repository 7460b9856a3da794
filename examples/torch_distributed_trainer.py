"""Trains a small vision transformer on handwritten digits with Hugging Face's Trainer.

Trainer supports only one backend for CPUs, Gloo, but uses an existing process group: only the call
of init_process_group() names horoscale. Requires transformers, accelerate and scikit-learn.

    torchrun --nproc-per-node 2 examples/torch_distributed_trainer.py
"""

from __future__ import annotations

import argparse
import tempfile

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification, set_seed

import horoscale.torch.distributed  # noqa: F401  # for torch before 2.5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="horoscale")
    parser.add_argument("--epochs", type=int, default=16)
    arguments = parser.parse_args()

    dist.init_process_group(arguments.backend)
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 8 - 1
    examples = [
        {"pixel_values": image, "labels": int(label)}
        for image, label in zip(images, digits.target, strict=True)
    ]
    set_seed(0)
    shape = ViTConfig(
        image_size=8,
        patch_size=2,
        num_channels=1,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        num_labels=10,
    )
    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            output_dir=folder,
            use_cpu=True,
            num_train_epochs=arguments.epochs,
            per_device_train_batch_size=16,
            per_device_eval_batch_size=60,
            learning_rate=3e-3,
            report_to="none",
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
        )
        trainer = Trainer(
            model=ViTForImageClassification(shape),
            args=settings,
            train_dataset=examples[360:],
            eval_dataset=examples[:360],
            compute_metrics=lambda given: {
                "accuracy": float((given.predictions.argmax(1) == given.label_ids).mean())
            },
        )
        trainer.train()
        accuracy = trainer.evaluate()["eval_accuracy"]
    weights = sum(parameter.double().sum() for parameter in trainer.model.parameters())
    if trainer.is_world_process_zero():
        print(f"{settings.world_size} ranks, accuracy {accuracy:.4f}, weights {weights:.12f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
