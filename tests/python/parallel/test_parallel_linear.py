"""Linear layers divided among ranks, beside one process."""

from __future__ import annotations

import pytest
import torch
from support.parallel import MARKS, mesh, same_training
from torch import nn

import horoscale.torch as hvd
import horoscale.torch.parallel as par

pytestmark = MARKS


class Single(nn.Module):
    def __init__(self, width: int, hidden: int, bias: bool) -> None:
        super().__init__()
        self.up = nn.Linear(width, hidden, bias)
        self.down = nn.Linear(hidden, width, bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.tanh(self.up(x)))


class Divided(nn.Module):
    def __init__(
        self, width: int, hidden: int, bias: bool, axis: par.Axis, **options: object
    ) -> None:
        super().__init__()
        self.up = par.ColumnParallelLinear(width, hidden, axis, bias, **options)
        self.down = par.RowParallelLinear(hidden, width, axis, bias, **options)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.tanh(self.up(x)))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("sequence_dim", [None, 0, 1])
@pytest.mark.parametrize(("hidden", "multiple_of"), [(24, 1), (21, 1), (30, 6)])
def test_two_layers_train_as_one_process(
    bias: bool, sequence_dim: int | None, hidden: int, multiple_of: int
) -> None:
    with mesh(tp=hvd.size()) as made:
        single = Single(5, hidden, bias)
        options = {"multiple_of": multiple_of}
        if sequence_dim is not None:
            options |= {"sequence_parallel": True, "sequence_dim": sequence_dim}
        divided = Divided(5, hidden, bias, made.tp, **options)
        rows = 9 if sequence_dim else 4 * hvd.size()
        batches = [torch.randn(rows, 11, 5) for _ in range(3)]

        def loss_of(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
            return model(batch).square().mean()

        def divided_loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
            if sequence_dim is None:
                return loss_of(model, batch)
            own = par.sequence_scatter(batch, made.tp, sequence_dim)
            y = par.gather_from(model(own), made.tp, sequence_dim)
            return y.square().mean()

        same_training(single, divided, loss_of, batches, divided_loss)
