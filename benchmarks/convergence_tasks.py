"""What benchmarks/convergence.py trains: a model, its data, and a measure on held-out data."""

from __future__ import annotations

from collections.abc import Callable
from pydoc_data.topics import topics
from typing import Protocol

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional

HELD_OUT = 360
LENGTH = 64  # characters of a sample
WIDTH = 128


class Task(Protocol):
    """A model and its data."""

    learning_rate: float  # of Adam

    def model(self) -> nn.Module:
        """A new model."""

    def loss(self, model: nn.Module, random: torch.Generator) -> torch.Tensor:
        """The loss of a random batch."""

    def measure(self, model: nn.Module) -> float:
        """How bad the model is on held-out data; the less the better."""


class Digits:
    """Scikit-learn's digits, for a network of three convolutions. The measure is the error."""

    learning_rate = 0.002
    batch = 96  # of a rank

    def __init__(self) -> None:
        images, labels = load_digits(return_X_y=True)
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
        self._images = torch.from_numpy(images.astype("float32") / 16)[order]
        self._labels = torch.from_numpy(labels)[order]

    def model(self) -> nn.Module:
        """The network of examples/torch_digits.py; 0.75 MB of gradients."""
        return nn.Sequential(
            *(nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 32, 3, padding=1), nn.ReLU()),
            *(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU()),
            *(nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
            *(nn.Linear(1024, 128), nn.ReLU(), nn.Linear(128, 10)),
        )

    def loss(self, model: nn.Module, random: torch.Generator) -> torch.Tensor:
        """The loss of a batch."""
        of = torch.randint(HELD_OUT, len(self._labels), (self.batch,), generator=random)
        return functional.cross_entropy(model(self._images[of]), self._labels[of])

    def measure(self, model: nn.Module) -> float:
        """The share of held-out digits that are not recognized."""
        wrong = model(self._images[:HELD_OUT]).argmax(1) != self._labels[:HELD_OUT]
        return float(wrong.float().mean())


class Characters:
    """Python's language reference, for a small GPT. The measure is the held-out loss."""

    learning_rate = 0.002
    batch = 8  # of a rank

    def __init__(self) -> None:
        text = "\n".join(topics[name] for name in sorted(topics))
        place = {character: number for number, character in enumerate(sorted(set(text)))}
        self._words = len(place)
        numbers = torch.tensor([place[character] for character in text])
        self._text, held_out = numbers[:-20000], numbers[-20000:]
        self._held_out = held_out[: len(held_out) // (LENGTH + 1) * (LENGTH + 1)].view(
            -1, LENGTH + 1
        )[:64]

    def model(self) -> nn.Module:
        """Four layers; 3.3 MB of gradients."""
        return Gpt(self._words)

    def loss(self, model: nn.Module, random: torch.Generator) -> torch.Tensor:
        """The mean loss of a batch's characters."""
        begins = torch.randint(len(self._text) - LENGTH, (self.batch,), generator=random)
        return self._mean_loss(model, self._text[begins[:, None] + torch.arange(LENGTH + 1)])

    def measure(self, model: nn.Module) -> float:
        """The mean loss of held-out characters."""
        return float(self._mean_loss(model, self._held_out))

    def _mean_loss(self, model: nn.Module, samples: torch.Tensor) -> torch.Tensor:
        logits = model(samples[:, :-1])
        return functional.cross_entropy(logits.flatten(0, 1), samples[:, 1:].flatten())


class Gpt(nn.Module):
    """Predict the next character."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, WIDTH)
        self.positions = nn.Parameter(torch.randn(LENGTH, WIDTH) * 0.02)
        layer = nn.TransformerEncoderLayer(
            WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, words)

    def forward(self, characters: torch.Tensor) -> torch.Tensor:
        """Return the logits of the next characters; int64 (samples, LENGTH)."""
        mask = nn.Transformer.generate_square_subsequent_mask(LENGTH)
        hidden = self.embedding(characters) + self.positions
        return self.head(self.layers(hidden, mask=mask, is_causal=True))


TASKS: dict[str, Callable[[], Task]] = {"digits": Digits, "gpt": Characters}
