"""Models to plan, one of each kind, which can be split between children, and a machine."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from horoscale.torch.parallel import Column, Numbers, Row
from horoscale.torch.parallel.planning.machine import Link, Machine

CLASSES, ROWS, LENGTH, WIDTH, HEADS = 5, 32, 6, 16, 4
PLAN = {
    "*up": "column",
    "*down": "row",
}
TRANSFORMER_PLAN = PLAN | {
    "*.attention.qkv": Column(parts=(1, 1, 1), multiple_of="head_dim"),
    "*.attention.out": Row(multiple_of="head_dim"),
    "*.attention": Numbers(("heads",)),
}
MACHINE = Machine(
    flops=1e10,
    memory_bandwidth=1e10,
    slots=8,
    message=Link(1e-5, 1e9),
    collective=Link(1e-5, 1e9),
    message_between=Link(1e-4, 1e8),
    collective_between=Link(1e-4, 1e8),
    overlap=0.5,
)


class Half(nn.Module):
    """An MLP behind a norm."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


def cross_entropy(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(output.flatten(0, -2), target.flatten())


class Attention(nn.Module):
    """With several heads, causal."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads, self.head_dim = HEADS, width // HEADS
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.qkv(x).chunk(3, -1)
        q, k, v = (one.unflatten(-1, (self.heads, -1)).transpose(1, 2) for one in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention and an MLP of four times the width, each behind a norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = Attention(width)
        self.mlp = Half(width, 4 * width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.mlp(x + self.attention(self.norm(x)))


def make_model(kind: str, layers: int = 3) -> nn.Sequential:
    """A model with the same weights each time."""
    torch.manual_seed(5)
    if kind == "mlp":
        return nn.Sequential(*(Half(8, 16) for _ in range(layers)), nn.Linear(8, CLASSES))
    if kind == "transformer":
        return nn.Sequential(
            nn.Embedding(CLASSES, WIDTH), *(Block(WIDTH) for _ in range(layers)),
            nn.Linear(WIDTH, CLASSES),
        )  # fmt: skip
    assert kind == "convolutions"
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2),
        nn.Flatten(), nn.Dropout(0.1), nn.Linear(36, CLASSES),
    )  # fmt: skip


def make_batch(kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    """A batch with the same values each time."""
    generator = torch.Generator().manual_seed(6)
    words = torch.randint(CLASSES, (ROWS, LENGTH), generator=generator)
    if kind == "transformer":
        return words, words.roll(-1, 1)
    shape = (ROWS, 8) if kind == "mlp" else (ROWS, 1, 8, 8)
    return torch.randn(shape, generator=generator), words[:, 0].contiguous()
