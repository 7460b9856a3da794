"""Models with divided training state train like undivided ones, bit for bit."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.parallel import MARKS
from support.zero import FEATURES, Half, Model, batch, make, reference, same, sharded, world
from torch import nn

import horoscale.torch as hvd
import horoscale.torch.parallel as par
from horoscale.torch.parallel.zero import sharded_of
from horoscale.torch.parallel.zero.units import find_units

pytestmark = MARKS

OPTIMIZERS: dict[str, tuple[Callable[..., torch.optim.Optimizer], dict[str, Any]]] = {
    "adamw": (torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1}),
    "momentum": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
    "rmsprop": (torch.optim.RMSprop, {"lr": 0.01}),
}
STAGES = pytest.mark.parametrize("stage", [1, 2, 3])
SHARED = pytest.mark.parametrize("shared", [True, False], ids=["shared", "own memory"])


def step(model: nn.Module, optimizer: Any, number: int) -> None:
    optimizer.zero_grad()
    model(batch(number)).backward()
    optimizer.step()


@STAGES
@SHARED
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("kind", list(OPTIMIZERS))
def test_same_bits(stage: int, shared: bool, dtype: torch.dtype, kind: str) -> None:
    """With tied, frozen and unused parameters, and a block that is used twice."""
    factory, options = OPTIMIZERS[kind]
    model = make(dtype)
    alone, averaging = reference(model, factory, **options)
    with sharded(model, stage, shared=shared, bucket_bytes=20_000):
        assert model.head.weight is model.table.weight
        optimizer = par.ZeroOptimizer(factory, model, **options)
        assert isinstance(optimizer, factory)
        for number in range(3):
            step(alone, averaging, number)
            step(model, optimizer, number)
        same(model, alone)
    same(model, alone)  # in separate memory


@STAGES
@SHARED
def test_a_rank_has_its_part_alone(stage: int, shared: bool) -> None:
    model = make()
    trained = sum(one.numel() for one in model.parameters() if one.requires_grad)
    with sharded(model, stage, shared=shared):
        optimizer = par.ZeroOptimizer(torch.optim.AdamW, model)
        step(model, optimizer, 0)
        state = sharded_of(model)
        moments = sum(
            value.numel()
            for of_one in optimizer.state.values()
            for value in of_one.values()
            if value.dim()
        )
        room = sum(one.length for one in state.trained)  # whole pages
        assert moments <= 2 * room
        owned = [one for shards in state.trained for one in shards.owned()]
        counted = hvd.allreduce(
            torch.tensor([sum(one.end - one.begin for one in owned)]), op=hvd.Sum
        )
        assert int(counted) == trained
        for one in (*state.trained, *state.frozen):
            assert one.resident == (shared or stage < 3)
            if shared:
                assert one.is_view
                assert one.parameters[0].data_ptr() >= one.whole.data_ptr()
        assert all(one.grad is None for one in model.parameters())


@STAGES
def test_groups_with_options_of_their_own_and_a_scheduler(stage: int) -> None:
    model = make()
    alone = copy.deepcopy(model)

    def groups(of: Model) -> list[dict[str, Any]]:
        trained = [one for one in of.parameters() if one.requires_grad]
        return [
            {"params": [one for one in trained if one.dim() > 1], "weight_decay": 0.5},
            {"params": [one for one in trained if one.dim() <= 1], "lr": 0.3},
        ]

    averaging = hvd.DistributedOptimizer(
        torch.optim.AdamW(groups(alone), lr=0.01, weight_decay=0.0), alone.named_parameters()
    )
    with sharded(model, stage):
        optimizer = par.ZeroOptimizer(
            torch.optim.AdamW, model, params=groups(model), lr=0.01, weight_decay=0.0
        )
        schedulers = [
            torch.optim.lr_scheduler.StepLR(one, 1, gamma=0.5) for one in (averaging, optimizer)
        ]
        for number in range(3):
            step(alone, averaging, number)
            step(model, optimizer, number)
            for scheduler in schedulers:
                scheduler.step()
        assert [group["lr"] for group in optimizer.param_groups] == [0.01 / 8, 0.3 / 8]
        same(model, alone)


@STAGES
@SHARED
def test_gradients_that_add_up_before_a_step(stage: int, shared: bool) -> None:
    """On each rank, with no_sync() or by counting; or after the reduction."""
    model = make(torch.float64)
    alone, averaging = reference(model, torch.optim.AdamW, lr=0.01)
    with sharded(model, stage, shared=shared):
        optimizer = par.ZeroOptimizer(torch.optim.AdamW, model, lr=0.01)
        for number in range(2):
            for one, of in ((alone, averaging), (model, optimizer)):
                of.zero_grad()
                with of.no_sync():
                    one(batch(number)).backward()
                one(batch(number + 10)).backward()
                of.step()
        same(model, alone)
        # The bits differ: averages are accumulated, not gradients.
        optimizer.zero_grad()
        averaging.zero_grad()
        with averaging.no_sync():
            alone(batch(5)).backward()
        alone(batch(6)).backward()
        averaging.synchronize()
        model(batch(5)).backward()
        model(batch(6)).backward()
        gradients = par.whole_gradients(model)
        for name, parameter in alone.named_parameters():
            if parameter.requires_grad:
                torch.testing.assert_close(gradients[name], parameter.grad)
        optimizer.zero_grad()


@STAGES
def test_passes_that_are_counted(stage: int) -> None:
    model = make()
    alone = copy.deepcopy(model)
    averaging = hvd.DistributedOptimizer(
        torch.optim.SGD([one for one in alone.parameters() if one.requires_grad], 0.1),
        alone.named_parameters(),
        backward_passes_per_step=3,
    )
    with sharded(model, stage, backward_passes_per_step=3):
        optimizer = par.ZeroOptimizer(torch.optim.SGD, model, lr=0.1)
        for one, of in ((alone, averaging), (model, optimizer)):
            of.zero_grad()
            for number in range(3):
                one(batch(number)).backward()
            of.step()
        same(model, alone)


@pytest.mark.parametrize(
    ("stage", "shared"), [(1, True), (1, False), (2, True), (2, False), (3, True)]
)
def test_parameters_that_some_ranks_do_not_use(stage: int, shared: bool) -> None:
    """They delay the reductions behind them until the step, without a deadlock.

    Where units must be gathered (stage 3 without shared memory), all ranks must use them.
    """
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(9, 9) for _ in range(4)))
    alone, averaging = reference(model, torch.optim.AdamW, lr=0.01)

    def loss(of: nn.Module, number: int) -> torch.Tensor:
        x = torch.full((2, 9), 0.1 * (number + 1 + hvd.rank()))
        for index, layer in enumerate(of):
            if index != (hvd.rank() + number) % 4:
                x = layer(x)
        return x.square().sum()

    with sharded(model, stage, shared=shared, unit=nn.Linear):
        optimizer = par.ZeroOptimizer(torch.optim.AdamW, model, lr=0.01)
        for number in range(4):
            for one, of in ((alone, averaging), (model, optimizer)):
                of.zero_grad()
                with of.no_sync():
                    loss(one, number + 1).backward()
                loss(one, number).backward()
                of.step()
        same(model, alone)
        for number in range(2):  # two rounds of reductions that begin at different layers
            loss(model, number).backward()
        optimizer.step()
        optimizer.zero_grad()


@STAGES
def test_master_weights(stage: int) -> None:
    """bfloat16 for computing, gathering and storing; float32 for the optimizer."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 50), nn.Tanh(), nn.Linear(50, 8))
    masters = copy.deepcopy(model)
    with sharded(model, stage, unit=nn.Linear, dtype=torch.bfloat16, reduce_dtype=torch.float32):
        alone = copy.deepcopy(masters).bfloat16()
        inner = torch.optim.AdamW(masters.parameters(), lr=0.01)
        optimizer = par.ZeroOptimizer(torch.optim.AdamW, model, lr=0.01)
        for number in range(3):
            x = torch.randn(4, 40, generator=torch.Generator().manual_seed(number + hvd.rank()))
            optimizer.zero_grad()
            loss = model(x).float().square().mean()
            assert model[0].weight.dtype == torch.bfloat16
            loss.backward()
            optimizer.step()
            alone.zero_grad()
            alone(x.bfloat16()).float().square().mean().backward()
            for master, one in zip(masters.parameters(), alone.parameters(), strict=True):
                master.grad = hvd.allreduce(one.grad.float())
            inner.step()
            with torch.no_grad():
                for master, one in zip(masters.parameters(), alone.parameters(), strict=True):
                    one.copy_(master)
        same(model, alone)
        state = optimizer.whole_state_dict()["state"]
        for name, master in masters.named_parameters():
            assert torch.equal(state[name]["master"], master), name


@STAGES
def test_what_is_frozen_computes_with_the_same_dtype(stage: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6).requires_grad_(False))
    with sharded(model, stage, unit=nn.Linear, dtype=torch.bfloat16):
        optimizer = par.ZeroOptimizer(torch.optim.SGD, model, lr=1.0)
        before = par.whole_state_dict(model)
        model(torch.ones(2, 6)).float().square().mean().backward()
        optimizer.step()
        after = par.whole_state_dict(model)
        assert {one.dtype for one in after.values()} == {torch.bfloat16}
        assert torch.equal(after["1.weight"], before["1.weight"])
        assert not torch.equal(after["0.weight"], before["0.weight"])


@pytest.mark.parametrize("prefetch", [0, 1, 2])
def test_units_have_memory_only_while_they_compute(prefetch: int) -> None:
    model = make()
    alone, averaging = reference(model, torch.optim.AdamW, lr=0.01)
    most = []
    with sharded(model, 3, shared=False, prefetch=prefetch):
        optimizer = par.ZeroOptimizer(torch.optim.AdamW, model, lr=0.01)
        state = sharded_of(model)
        blocks = [one for one in state.trained if one.places[0].name.startswith("blocks.")]

        def look(*_: object) -> None:
            most.append(sum(one.resident for one in blocks))

        for block in model.blocks:
            block.up.register_forward_hook(look)
            block.up.register_full_backward_hook(look)
        for number in range(2):
            step(alone, averaging, number)
            step(model, optimizer, number)
            assert not any(one.resident for one in (*state.trained, *state.frozen))
        assert max(most[8:]) == 1 + prefetch  # the first step records the order
        with torch.no_grad():
            model(batch(0))
        assert not any(one.resident for one in state.trained)
        same(model, alone)


def test_units_are_fetched_ahead_in_a_model_that_has_nothing_else() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))
    seen = []
    with sharded(model, 3, unit=nn.Linear, shared=False):
        state = sharded_of(model)
        model[0].register_forward_hook(
            lambda *_: seen.append(sum(one.resident for one in state.trained)), prepend=True
        )
        for _ in range(3):
            with torch.no_grad():
                model(torch.ones(2, 4))
    assert seen == [1, 2, 2]  # the first pass records the order


@pytest.mark.parametrize("reentrant", [True, False])
def test_activations_that_are_computed_again(reentrant: bool) -> None:
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(Model):
        def forward(self, words: torch.Tensor) -> torch.Tensor:
            x = self.table(words)
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=reentrant)
            return nn.functional.cross_entropy(self.head(x), words)

    torch.manual_seed(0)
    model = Checkpointed()
    alone, averaging = reference(model, torch.optim.AdamW, lr=0.01)
    with sharded(model, 3, shared=False):
        optimizer = par.ZeroOptimizer(torch.optim.AdamW, model, lr=0.01)
        for number in range(2):
            step(alone, averaging, number)
            step(model, optimizer, number)
        same(model, alone)


def test_what_is_gathered_to_compute_again_is_freed() -> None:
    """Even if a backward pass sees no unit's outputs, as with reentrant checkpoints."""
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(nn.Sequential):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self:
                x = checkpoint(layer, x, use_reentrant=True)
            return x

    torch.manual_seed(0)
    model = Checkpointed(nn.Linear(4, 4), nn.Linear(4, 4))
    with sharded(model, 3, unit=nn.Linear, shared=False):
        optimizer = par.ZeroOptimizer(torch.optim.SGD, model, lr=0.1)
        model(torch.ones(2, 4, requires_grad=True)).sum().backward()
        assert not any(one.resident for one in sharded_of(model).trained)
        optimizer.step()


def test_a_changed_parameter_is_an_error_in_backward() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    with sharded(model, 1):
        optimizer = par.ZeroOptimizer(torch.optim.SGD, model, lr=0.1)
        loss = model(torch.ones(1, 4)).sum()
        loss.backward(retain_graph=True)
        optimizer.step()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
        optimizer.zero_grad()


def test_a_pattern_is_of_names_and_not_of_what_is_inside() -> None:
    model = make()
    by_name, by_class = (find_units(model, one) for one in ("blocks.*", Half))
    assert [one.name for one in by_class] == ["", "blocks.0", "blocks.1", "blocks.2"]
    assert [one.name for one in by_name] == [one.name for one in by_class]


def test_a_parameter_is_not_read_where_it_is_not() -> None:
    """In stage 3 it has no memory outside of its unit's passes; metadata is still available."""
    model = make()
    weight = model.blocks[1].up.weight
    with sharded(model, 3, shared=False):
        optimizer = par.ZeroOptimizer(torch.optim.AdamW, model)
        step(model, optimizer, 0)
        for read in (
            lambda: weight.sum(),
            lambda: nn.functional.linear(torch.ones(FEATURES), weight),
            lambda: weight.T,
            lambda: weight.data,
            lambda: weight[0],
            lambda: torch.ones(2, 2 * FEATURES) @ weight,
        ):
            with pytest.raises(
                RuntimeError, match=r"blocks\.1\.up\.weight is not there: in stage 3"
            ):
                read()
        assert isinstance(weight, nn.Parameter)
        assert weight.shape == (2 * FEATURES, FEATURES)
        assert weight.numel() == 2 * FEATURES * FEATURES
        assert weight.requires_grad
        assert weight.grad is None
        assert "blocks.1.up.weight" in repr(weight)
        with par.gathered(model):
            assert torch.isfinite(weight.sum())
    assert type(weight) is nn.Parameter


def test_wrong_arguments() -> None:
    model = make()
    with pytest.raises(ValueError, match="stage=4: there are the stages 1, 2 and 3"):
        par.shard(model, world(), 4)
    with pytest.raises(ValueError, match="stage=3 needs unit="):
        par.shard(model, world(), 3)
    with pytest.raises(ValueError, match=r"unit='layers.\*' matches no module of Model, which has"):
        par.shard(model, world(), 3, unit="layers.*")
    with pytest.raises(ValueError, match="unit=Conv2d matches no module"):
        par.shard(model, world(), 3, unit=(Half, nn.Conv2d))
    with pytest.raises(ValueError, match="no parameter requires a gradient"):
        par.shard(copy.deepcopy(model).requires_grad_(False), world())
    sparse = copy.deepcopy(model)
    sparse.unused.weight = nn.Parameter(torch.eye(3).to_sparse())
    with pytest.raises(ValueError, match=r"weight is on cpu with layout torch.sparse_coo"):
        par.shard(sparse, world())
    model.unused.weight.grad = torch.ones(3, 5)
    with pytest.raises(ValueError, match=r"unused\.weight has a gradient"):
        par.shard(model, world())
    model.unused.weight.grad = None
    with pytest.raises(ValueError, match="needs axis="):
        par.ZeroOptimizer(torch.optim.SGD, model, lr=0.1)
    with sharded(model, 1):
        with pytest.raises(TypeError, match="a sharded model can't be copied"):
            copy.deepcopy(model)
        with pytest.raises(ValueError, match="is sharded already"):
            par.shard(model, world(), 1)
        with pytest.raises(ValueError, match="Adafactor is not elementwise"):
            par.ZeroOptimizer(torch.optim.Adafactor, model)
        with pytest.raises(ValueError, match="LBFGS can't be an optimizer of shards"):
            par.ZeroOptimizer(torch.optim.LBFGS, model)
        weight = model.head.weight
        groups = [{"params": weight}, {"params": [weight]}]
        with pytest.raises(ValueError, match=r"table.weight is in group 0 and in group 1"):
            par.ZeroOptimizer(torch.optim.SGD, model, params=groups, lr=0.1)
        with pytest.raises(ValueError, match="none of the model's trained ones"):
            par.ZeroOptimizer(torch.optim.SGD, model, params=[nn.Parameter(weight)], lr=0.1)
        optimizer = par.ZeroOptimizer(torch.optim.SGD, model, lr=0.1)
        with pytest.raises(ValueError, match="can't be added"):
            optimizer.add_param_group({"params": []})
        with pytest.raises(TypeError, match="can't be copied"):
            copy.deepcopy(optimizer)
        model.unused.weight.requires_grad_(False)
        with pytest.raises(ValueError, match=r"unused.weight was frozen after par.shard"):
            optimizer.step()
        model.unused.weight.requires_grad_(True)
        model.unused.weight.grad = torch.ones(3, 5)
        with pytest.raises(ValueError, match=r"unused.weight.grad was set"):
            optimizer.step()
        model.unused.weight.grad = None
        model.unused.double()
        with pytest.raises(ValueError, match=r"unused.weight was converted to torch.float64"):
            optimizer.step()
    with pytest.raises(ValueError, match="is not sharded"):
        par.unshard(model)


def test_parameters_that_no_forward_pass_would_gather_are_refused() -> None:
    """A container of a pipeline's stages is never called."""
    torch.manual_seed(0)
    stages = nn.ModuleDict({"0": nn.Sequential(nn.Linear(4, 4), Half(4))})
    with pytest.raises(ValueError, match=r"0\.0\.weight is in no unit, but the ModuleDict"):
        par.shard(stages, world(), 3, unit=Half, shared=False)


def test_sparse_gradients_are_refused() -> None:
    model = nn.Embedding(4, 3, sparse=True)
    nn.init.ones_(model.weight)
    with sharded(model, 1), pytest.raises(ValueError, match="the gradient of weight is sparse"):
        model(torch.tensor([1])).sum().backward()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda model: {"stage": 2}, r"stage: rank 0: 1, rank 1: 2"),
        (lambda model: {"prefetch": 2}, "prefetch: rank 0: 1, rank 1: 2"),
        (lambda model: {"dtype": torch.bfloat16}, "dtype: rank 0: None, rank 1: torch.bfloat16"),
        (lambda model: model.unused.requires_grad_(False) and {}, r"frozen"),
        (lambda model: model.unused.bias.data.fill_(7) is None or {}, r"checksum .* unused.bias"),
    ],
)
def test_ranks_that_disagree(change: Any, told: str) -> None:
    model = make()
    options = {"stage": 1} | (change(model) if hvd.rank() == 1 else {})
    if not isinstance(options, dict):
        options = {"stage": 1}
    with pytest.raises(hvd.MismatchError, match=told):
        par.shard(model, world(), **options)
    hvd.barrier()


def test_alone() -> None:
    """An axis with a single rank needs no communication."""
    model = make()
    alone = copy.deepcopy(model)
    model.unused, alone.unused = nn.Identity(), nn.Identity()
    for stage in (1, 2, 3):
        par.shard(model, None, stage, unit=Half)
        optimizer = par.ZeroOptimizer(torch.optim.AdamW, model, lr=0.1)
        fresh = torch.optim.AdamW([one for one in alone.parameters() if one.requires_grad], lr=0.1)
        for number in range(2):
            step(alone, fresh, number)
            step(model, optimizer, number)
        same(model, alone)
        par.unshard(model)
