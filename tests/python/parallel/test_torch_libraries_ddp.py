"""DistributedDataParallel and its optimizers over the backend of torch.distributed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.torch_libraries import MARKS, batch, close, model, on, same_as_gloo, train, train_alone
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import horoscale.torch as hvd

pytestmark = MARKS

MANY_BUCKETS = 0.001  # megabytes


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bucket_cap_mb": MANY_BUCKETS},
        {"static_graph": True},
        {"find_unused_parameters": True},
        {"gradient_as_bucket_view": True, "bucket_cap_mb": MANY_BUCKETS},
        {"broadcast_buffers": False, "init_sync": False},
    ],
    ids=lambda options: "-".join(options) or "plain",
)
def test_ddp(options: dict[str, Any]) -> None:
    close(same_as_gloo(lambda: train(DistributedDataParallel(model(), **options))), train_alone())


def test_ddp_of_integers() -> None:
    """Sums without rounding have Gloo's bits on any number of ranks."""

    def case() -> list[torch.Tensor]:
        module = DistributedDataParallel(nn.Linear(16, 8), bucket_cap_mb=MANY_BUCKETS)
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.fill_(float(hvd.rank()))
        given = torch.arange(64.0).view(4, 16) + hvd.rank()
        for _ in range(2):
            module(given).sum().backward()
        return [parameter.grad for parameter in module.parameters()]

    same_as_gloo(case, integers=True)


class Branches(nn.Module):
    """Even ranks use one of its layers, odd ranks the other."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.branches = nn.ModuleList([nn.Linear(16, 2), nn.Linear(16, 2)])

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return self.branches[hvd.rank() % 2](given)  # type: ignore[no-any-return]


def test_no_sync_and_unused_parameters() -> None:
    def case() -> list[torch.Tensor]:
        module = DistributedDataParallel(Branches(), find_unused_parameters=True)
        with module.no_sync():
            module(batch()).sum().backward()
        module(batch()).sum().backward()
        return [parameter.grad for parameter in module.parameters()]

    same_as_gloo(case)


def test_join_of_uneven_inputs() -> None:
    def case() -> list[torch.Tensor]:
        module = DistributedDataParallel(model(), bucket_cap_mb=MANY_BUCKETS)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        with module.join():
            for _ in range(1 + hvd.rank()):
                optimizer.zero_grad()
                module(batch()).square().mean().backward()
                optimizer.step()
        return list(module.parameters())

    same_as_gloo(case)


def hooked(hook: str) -> list[torch.Tensor]:
    """Train with a communication hook."""
    from torch.distributed.algorithms.ddp_comm_hooks import (
        default_hooks,
        post_localSGD_hook,
        powerSGD_hook,
    )

    # PowerSGD's callbacks start allreduces at any time: buckets would be mixed.
    megabytes = 25 if hook == "powerSGD" else MANY_BUCKETS
    module = DistributedDataParallel(model(), bucket_cap_mb=megabytes)
    group = module.process_group
    if hook == "powerSGD":
        state = powerSGD_hook.PowerSGDState(group, start_powerSGD_iter=2)
        module.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    elif hook == "post_localSGD":
        some = dist.new_subgroups(group_size=hvd.size() // 2)[0]
        state = post_localSGD_hook.PostLocalSGDState(group, some, start_localSGD_iter=2)
        module.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)
    elif hook == "bf16_compress":
        # Without NCCL, PyTorch rejects it by name, whatever the backend.
        def compress(state, bucket):  # type: ignore[no-untyped-def]
            return default_hooks.bf16_compress_hook(state, bucket)

        module.register_comm_hook(group, compress)
    else:
        module.register_comm_hook(group, getattr(default_hooks, f"{hook}_hook"))
    return train(module)


@pytest.mark.parametrize(
    "hook", ["allreduce", "fp16_compress", "bf16_compress", "powerSGD", "post_localSGD"]
)
def test_communication_hooks(hook: str) -> None:
    if hvd.size() == 2 or hook not in ("fp16_compress", "bf16_compress"):
        same_as_gloo(lambda: hooked(hook))
    else:  # Gloo rounds each sum to half precision, in its own order
        close(
            on("horoscale", lambda: hooked(hook)),
            on("gloo", lambda: hooked(hook)),
            atol=1e-2,
            rtol=0,
        )


def zero_redundancy(overlap: bool, steps: int) -> list[torch.Tensor]:
    """Train with an optimizer whose state is divided among the ranks."""
    from torch.distributed.algorithms.ddp_comm_hooks.ddp_zero_hook import hook_with_zero_step
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
    from torch.distributed.optim import ZeroRedundancyOptimizer

    module = DistributedDataParallel(model())
    sharded = ZeroRedundancyOptimizer(
        module.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9, overlap_with_ddp=overlap
    )
    if overlap:
        module.register_comm_hook(None, hook_with_zero_step(allreduce_hook, module, sharded))
    for _ in range(steps):
        sharded.zero_grad()
        module(batch()).square().mean().backward()
        sharded.step()
    if not overlap:
        sharded.consolidate_state_dict(0)
    return list(module.parameters())


def test_zero_redundancy_optimizer() -> None:
    close(same_as_gloo(lambda: zero_redundancy(False, 3)), train_alone())


def test_zero_redundancy_optimizer_that_steps_in_the_backward_pass() -> None:
    """PyTorch rejects it over Gloo. The first two steps only build buckets."""
    close(on("horoscale", lambda: zero_redundancy(True, 5)), train_alone())
