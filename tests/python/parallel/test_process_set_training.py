"""Training in process sets: parts of a model, and models, in their own sets."""

from __future__ import annotations

import pytest
from support.process_sets import all_registered, all_sets, registered, silent, some_sets

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import horoscale.torch as hvd  # noqa: E402

pytestmark = pytest.mark.usefixtures("need_ranks")

RATE = 0.1
STEPS = 3


def make_model(seed: int = 5) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def loss_of(model: nn.Module, step: int, rank: int) -> torch.Tensor:
    random = torch.Generator().manual_seed(1000 * step + rank)
    x, y = (torch.randn(4, n, generator=random, dtype=torch.float64) for n in (6, 3))
    return nn.functional.mse_loss(model(x), y)


def sgd(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), lr=RATE, momentum=0.9)


def wrap(module: nn.Module, process_set: hvd.ProcessSet) -> torch.optim.Optimizer:
    named = list(module.named_parameters())
    return hvd.DistributedOptimizer(sgd(module), named, process_set=process_set)


def alone(ranks_of_layer: dict[int, list[int]]) -> nn.Sequential:
    """This rank's model after STEPS, computed with one model per rank in this process."""
    models = [make_model() for _ in range(hvd.size())]
    optimizers = [sgd(model) for model in models]
    for step in range(STEPS):
        for rank, model in enumerate(models):
            optimizers[rank].zero_grad()
            loss_of(model, step, rank).backward()
        for layer, ranks in ranks_of_layer.items():
            for same in zip(*(models[rank][layer].parameters() for rank in ranks), strict=True):
                mean = sum(one.grad for one in same) / len(same)
                for one in same:
                    one.grad = mean.clone()
        for optimizer in optimizers:
            optimizer.step()
    return models[hvd.rank()]


def assert_same(model: nn.Module, expected: nn.Module) -> None:
    for one, other in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.conformance
def test_layers_of_one_model_in_different_sets() -> None:
    everyone = list(range(hvd.size()))
    layers = {0: everyone[:-1], 2: everyone[1:]}
    with all_registered(list(layers.values())) as sets:
        model = make_model()
        optimizers = [wrap(model[i], one) for i, one in zip(layers, sets, strict=True)]
        for step in range(STEPS):
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss_of(model, step, hvd.rank()).backward()
            for optimizer in optimizers:
                optimizer.step()
        assert_same(model, alone(layers))


@pytest.mark.conformance
def test_several_optimizers_with_overlapping_sets() -> None:
    """One model per set; ranks use them in different orders."""
    with all_registered(some_sets()) as sets:
        mine = [one for one in sets if one.included()]
        models = [make_model() for _ in mine]
        optimizers = [wrap(model, one) for model, one in zip(models, mine, strict=True)]
        order = list(range(len(mine)))[:: 1 if hvd.rank() % 2 else -1]
        for step in range(STEPS):
            for i in order:
                optimizers[i].zero_grad()
                loss_of(models[i], step, hvd.rank()).backward()
            for i in reversed(order):
                optimizers[i].step()
        for model, one in zip(models, mine, strict=True):
            assert_same(model, alone({0: one.ranks, 2: one.ranks}))


def test_training_goes_on_beside_a_rank_that_does_not_call() -> None:
    everyone = list(range(hvd.size()))
    with all_registered([everyone[:-1], [hvd.size() - 1]]) as (ours, other):
        model = make_model()
        optimizer = wrap(model, ours if ours.included() else other)
        with silent(hvd.size() - 1):
            if ours.included():
                for step in range(STEPS):
                    optimizer.zero_grad()
                    loss_of(model, step, hvd.rank()).backward()
                    optimizer.step()
        if ours.included():
            assert_same(model, alone({0: ours.ranks, 2: ours.ranks}))


def test_regrouped_while_training() -> None:
    """A set, its optimizer and its ID end; the next set with the same ID has other members."""
    everyone = list(range(hvd.size()))
    ids = set()
    for ranks in (everyone[:-1], everyone[1:], everyone[:-1], [hvd.size() - 1]):
        with registered(ranks) as process_set:
            ids.add(process_set.process_set_id)
            model = make_model()
            optimizer = wrap(model, process_set)
            for step in range(STEPS):
                optimizer.zero_grad()
                loss_of(model, step, hvd.rank()).backward()
                optimizer.step()
            expected = {0: ranks, 2: ranks} if process_set.included() else {}
            assert_same(model, alone(expected))
            del optimizer
    assert len(ids) <= 4


@pytest.mark.conformance
def test_states_are_sent_within_a_set() -> None:
    everyone = list(range(hvd.size()))
    with registered(everyone[1:]) as process_set, silent(0):
        if process_set.included():
            root = hvd.size() - 1
            model = make_model(seed=hvd.rank())
            optimizer = torch.optim.Adam(model.parameters(), lr=0.01 * (1 + hvd.rank()))
            if hvd.rank() == root:
                loss_of(model, 0, root).backward()
                optimizer.step()
            hvd.broadcast_parameters(model.state_dict(), root, process_set)
            hvd.broadcast_optimizer_state(optimizer, root, process_set=process_set)
            said = hvd.broadcast_object({"root": hvd.rank()}, root, process_set=process_set)
            assert said == {"root": root}
            assert optimizer.param_groups[0]["lr"] == 0.01 * (1 + root)
            sums = [
                one.detach().sum().item()
                for one in (*model.parameters(), *(s["exp_avg"] for s in optimizer.state.values()))
            ]
            everybody = hvd.allgather_object(sums, process_set=process_set)
            assert everybody == [sums] * process_set.size()


@pytest.mark.conformance
def test_batch_normalisation_over_two_sets_in_one_model() -> None:
    everyone = list(range(hvd.size()))
    layers = [everyone[:-1], everyone[1:]]
    batches = [
        torch.randn(5 + rank, 3, generator=torch.Generator().manual_seed(rank), dtype=torch.float64)
        for rank in everyone
    ]

    def over(ranks: list[int], inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """The plain layer on the batches of `ranks` combined, and on the others' individually."""
        normalise = nn.functional.batch_norm
        together = normalise(torch.cat([inputs[r] for r in ranks]), None, None, training=True)
        parts = iter(together.split([len(inputs[r]) for r in ranks]))
        return [
            next(parts) if r in ranks else normalise(one, None, None, training=True)
            for r, one in enumerate(inputs)
        ]

    with all_registered(layers) as sets:
        options = {"affine": False, "track_running_stats": False}
        own = batches[hvd.rank()].clone().requires_grad_()
        hidden = own
        for one in sets:
            # Outside of its set the layer acts like one with a set of this rank only.
            plain = nn.BatchNorm1d(3, **options)
            synced = hvd.SyncBatchNorm(3, **options, process_set=one)
            hidden = torch.tanh(synced(hidden) if one.included() else plain(hidden))
        hidden.pow(3).sum().backward()

        inputs = [one.clone().requires_grad_() for one in batches]
        expected = inputs
        for ranks in layers:
            expected = [torch.tanh(one) for one in over(ranks, expected)]
        sum(one.pow(3).sum() for one in expected).backward()
        torch.testing.assert_close(hidden, expected[hvd.rank()])
        torch.testing.assert_close(own.grad, inputs[hvd.rank()].grad)


def test_an_optimizer_for_each_set_that_the_ranks_can_form() -> None:
    with all_registered(all_sets(40)) as sets:
        mine = [one for one in sets if one.included()]
        models = [make_model() for _ in mine]
        optimizers = [wrap(model, one) for model, one in zip(models, mine, strict=True)]
        for model in models:
            loss_of(model, 0, hvd.rank()).backward()
        for optimizer in optimizers:
            optimizer.step()
        for one, model in zip(mine, models, strict=True):
            sums = [parameter.detach().sum().item() for parameter in model.parameters()]
            assert hvd.allgather_object(sums, process_set=one) == [sums] * one.size()
