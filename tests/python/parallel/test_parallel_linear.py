"""Linear layers divided among ranks, compared with one process."""

from __future__ import annotations

import pytest
import torch
from support.parallel import EXACT, MARKS, mesh, same_training
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


def test_random_shapes() -> None:
    """Random layer sizes one after the other, with both divisions of the sequence."""
    with mesh(tp=hvd.size()) as made:
        for seed in range(12):
            torch.manual_seed(seed)
            width, unit, units, rows = (int(n) for n in torch.randint(1, 9, (4,)))
            bias, sequence_dim = bool(seed % 2), (None, 0, 1)[seed % 3]
            options = {"multiple_of": unit}
            if sequence_dim is not None:
                options |= {"sequence_parallel": True, "sequence_dim": sequence_dim}
            single = Single(width, unit * units, bias)
            divided = Divided(width, unit * units, bias, made.tp, **options)
            par.load_whole_state_dict(divided, single.state_dict())
            whole = torch.randn(rows, rows + 3, width, requires_grad=True)
            y = single(whole)
            gradient = torch.randn_like(y)
            expected = torch.autograd.grad(y, [whole, *single.parameters()], gradient)
            own = whole.detach().requires_grad_()
            x = own if sequence_dim is None else par.sequence_scatter(own, made.tp, sequence_dim)
            got = divided(x)
            if sequence_dim is not None:
                got = par.gather_from(got, made.tp, sequence_dim)
            torch.testing.assert_close(got, y, **EXACT)
            got.backward(gradient)
            torch.testing.assert_close(own.grad, expected[0], **EXACT)
            names = [name for name, _ in single.named_parameters()]
            gradients = dict(zip(names, expected[1:], strict=True))
            for name, one in par.whole_gradients(divided).items():
                torch.testing.assert_close(one, gradients[name], **EXACT)


def test_output_that_is_gathered() -> None:
    with mesh(tp=hvd.size()) as made:
        single = nn.Linear(4, 3 * hvd.size() + 1)
        layer = par.ColumnParallelLinear(4, 3 * hvd.size() + 1, made.tp, gather_output=True)
        layer.load_whole(single.weight, single.bias)
        x = torch.randn(5, 4, requires_grad=True)
        loss, expected = layer(x).square().sum(), single(x).square().sum()
        torch.testing.assert_close(loss, expected, **EXACT)
        [of_x] = torch.autograd.grad(loss, x)
        torch.testing.assert_close(of_x, torch.autograd.grad(expected, x)[0], **EXACT)


def test_only_the_ranks_own_rows_are_kept(need_ranks: None) -> None:
    with mesh(tp=hvd.size()) as made:
        layer = par.ColumnParallelLinear(8, 4 * hvd.size(), made.tp, sequence_parallel=True)
        kept = []
        with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
            layer(torch.randn(16, 8, requires_grad=True))
        assert sorted(one.shape[0] for one in kept) == [4, 16]  # the weight and this rank's rows


def test_frozen_weights_and_inputs_without_gradients() -> None:
    with mesh(tp=hvd.size()) as made:
        for sequence_parallel in (False, True):
            model = Divided(4, 6, True, made.tp, sequence_parallel=sequence_parallel)
            model.up.weight.requires_grad_(False)
            model(torch.randn(2, 4)).sum().backward()
            assert model.up.weight.grad is None
            assert model.down.weight.grad is not None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_autocast_leaves_float64(dtype: torch.dtype) -> None:
    """As in one process."""
    with mesh(tp=hvd.size()) as made, torch.autocast("cpu", torch.bfloat16):
        single = nn.Linear(4, 6, dtype=dtype)
        divided = par.ColumnParallelLinear(4, 6, made.tp, gather_output=True, dtype=dtype)
        divided.load_whole(single.weight, single.bias)
        x = torch.randn(3, 4, dtype=dtype)
        y, expected = divided(x), single(x)
        assert y.dtype == expected.dtype
        torch.testing.assert_close(y, expected)
        down = par.RowParallelLinear(4 * made.tp.size, 6, made.tp, dtype=dtype)
        assert down(x).dtype == expected.dtype


def test_errors_name_the_layer_and_the_sizes(need_ranks: None) -> None:
    with mesh(tp=hvd.size()) as made:
        with pytest.raises(ValueError, match="ColumnParallelLinear on axis tp: out_features=10 is"):
            par.ColumnParallelLinear(4, 10, made.tp, multiple_of=4)
        with pytest.raises(ValueError, match="RowParallelLinear on axis tp: in_features=10 is not"):
            par.RowParallelLinear(10, 4, made.tp, multiple_of=4)
        with pytest.raises(ValueError, match=r"out_features=10 can't be divided into parts"):
            par.ColumnParallelLinear(4, 10, made.tp, parts=(1, 1, 1))
        with pytest.raises(ValueError, match="cannot be combined with several parts"):
            par.ColumnParallelLinear(4, 9, made.tp, parts=(1, 1, 1), gather_output=True)
        layer = par.ColumnParallelLinear(4, 10, made.tp)
        with pytest.raises(ValueError, match=r"takes 4 features, but the input has shape \(2, 3\)"):
            layer(torch.zeros(2, 3))
        with pytest.raises(ValueError, match="dim=12, heads=7, kv_heads=7: each must be"):
            par.ParallelAttention(12, 7, made.tp)
        with pytest.raises(ValueError, match="kv_heads=1 can't be divided among the"):
            par.ParallelAttention(12, 6, made.tp, kv_heads=1)
        with pytest.raises(ValueError, match="sequence_dim=2 must be"):
            par.ParallelAttention(12 * hvd.size(), hvd.size(), made.tp, sequence_dim=2)


def test_ranks_with_different_inputs_hear_of_both(need_ranks: None) -> None:
    with mesh(tp=hvd.size()) as made:
        last = hvd.rank() == hvd.size() - 1
        down = par.RowParallelLinear(2 * hvd.size(), 3, made.tp)
        with pytest.raises(hvd.MismatchError, match=r"\[4, 3\].*\[5, 3\]|\[5, 3\].*\[4, 3\]"):
            down(torch.ones(5 if last else 4, 2))
        up = par.ColumnParallelLinear(3, 2 * hvd.size(), made.tp)
        x = torch.ones(5 if last else 4, 3, requires_grad=True)
        with pytest.raises(hvd.MismatchError, match=r"\[4, 3\].*\[5, 3\]|\[5, 3\].*\[4, 3\]"):
            up(x).sum().backward()
        parts = par.ColumnParallelLinear(3, 2 * hvd.size(), made.tp, sequence_parallel=True)
        with pytest.raises(hvd.MismatchError):
            parts(torch.ones(2, 5 if last else 4, 3))
