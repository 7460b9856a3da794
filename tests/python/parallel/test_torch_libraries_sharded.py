"""FSDP1 and FSDP2 over the backend of torch.distributed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.torch_libraries import MARKS, close, mesh, model, same_as_gloo, train, train_alone
from torch import nn

import horoscale.torch as hvd

pytestmark = MARKS

# For bfloat16, in which some of these compute.
BFLOAT16 = {"rtol": 5e-2, "atol": 2e-2}


def fully_sharded(on_mesh: Any, **options: Any) -> list[torch.Tensor]:
    """Train with FSDP2; return the whole parameters."""
    from torch.distributed.fsdp import fully_shard

    module = model()
    for layer in module:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=on_mesh, **options)
    fully_shard(module, mesh=on_mesh, **options)
    train(module)
    return [one.full_tensor() for one in module.parameters()]


@pytest.mark.parametrize("again", [True, False])
def test_fsdp2(again: bool) -> None:
    got = same_as_gloo(lambda: fully_sharded(mesh(), reshard_after_forward=again))
    close(got, train_alone())


@pytest.mark.parametrize("reduced_in", [torch.float32, torch.bfloat16])
def test_fsdp2_mixed_precision(reduced_in: torch.dtype) -> None:
    from torch.distributed.fsdp import MixedPrecisionPolicy

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=reduced_in)

    def case() -> list[torch.Tensor]:
        return fully_sharded(mesh(), mp_policy=policy)

    if hvd.size() == 2:
        close(same_as_gloo(case), train_alone(), **BFLOAT16)
    else:
        from support.torch_libraries import on

        close(on("horoscale", case), on("gloo", case), **BFLOAT16)


def test_fsdp2_offload() -> None:
    from torch.distributed.fsdp import CPUOffloadPolicy

    policy = CPUOffloadPolicy(pin_memory=False)
    got = same_as_gloo(lambda: fully_sharded(mesh(), offload_policy=policy))
    close(got, train_alone())


@pytest.mark.parametrize("replicas", [1, 2])
def test_fsdp2_hybrid(replicas: int) -> None:
    """Replicas, each of which is sharded."""
    shape = (replicas, hvd.size() // replicas)
    got = same_as_gloo(lambda: fully_sharded(mesh(*shape, names=("replicate", "shard"))))
    close(got, train_alone())


def test_fsdp2_accumulates_gradients() -> None:
    """Some backward passes reduce nothing."""
    from torch.distributed.fsdp import fully_shard

    def case() -> list[torch.Tensor]:
        module: Any = fully_shard(model(), mesh=mesh())
        given = torch.ones(2, 16) + hvd.rank()
        module.set_requires_gradient_sync(False)
        module(given).sum().backward()
        module.set_requires_gradient_sync(True)
        module(given).sum().backward()
        return [one.grad.full_tensor() for one in module.parameters()]

    same_as_gloo(case)


@pytest.mark.parametrize("strategy", ["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD"])
def test_fsdp1(strategy: str) -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

    def case() -> list[torch.Tensor]:
        hybrid = strategy == "HYBRID_SHARD"
        module = FullyShardedDataParallel(
            model(),
            sharding_strategy=ShardingStrategy[strategy],
            device_id=torch.device("cpu"),
            device_mesh=mesh(hvd.size() // 2, 2, names=("replicate", "shard")) if hybrid else None,
        )
        train(module)
        with FullyShardedDataParallel.summon_full_params(module):
            return [one.detach().clone() for one in module.parameters()]

    close(same_as_gloo(case), train_alone())


def test_fsdp1_state_dicts() -> None:
    """The whole state of a sharded model is gathered, and distributed again."""
    from torch.distributed.checkpoint.state_dict import (
        StateDictOptions,
        get_model_state_dict,
        set_model_state_dict,
    )
    from torch.distributed.fsdp import fully_shard

    def case() -> list[torch.Tensor]:
        module: Any = fully_shard(model(), mesh=mesh())
        train(module)
        whole = get_model_state_dict(module, options=StateDictOptions(full_state_dict=True))
        other: Any = fully_shard(model(), mesh=mesh())
        options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
        set_model_state_dict(other, whole if dist.get_rank() == 0 else {}, options=options)
        return [one.full_tensor() for one in other.parameters()]

    close(same_as_gloo(case), train_alone())
