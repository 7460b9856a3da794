"""DTensor, tensor, sequence and context parallelism over the backend of torch.distributed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.torch_libraries import MARKS, batch, close, mesh, model, same_as_gloo
from torch import nn

import horoscale.torch as hvd

pytestmark = MARKS


def test_dtensor_moves_between_placements() -> None:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    whole = torch.arange(30.0).view(10, 3)  # uneven shards

    def case() -> list[torch.Tensor]:
        ranks = mesh()
        by_row = distribute_tensor(whole, ranks, [Shard(0)])
        by_column = by_row.redistribute(ranks, [Shard(1)])
        close([by_column.full_tensor()], [whole])
        close([by_row.redistribute(ranks, [Replicate()]).to_local()], [whole])
        product = (
            by_row @ distribute_tensor(whole.T.contiguous(), ranks, [Shard(1)])
        ).full_tensor()
        close([product], [whole @ whole.T])
        total = by_row.sum()  # partial sums
        return [by_row.to_local(), by_column.to_local(), product, total.full_tensor()]

    same_as_gloo(case, integers=True)


def test_dtensor_on_a_mesh_of_two_dimensions() -> None:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    whole = torch.arange(64.0).view(8, 8)

    def case() -> list[torch.Tensor]:
        ranks = mesh(2, hvd.size() // 2, names=("rows", "columns"))
        sharded = distribute_tensor(whole, ranks, [Shard(0), Shard(1)])
        turned = sharded.redistribute(ranks, [Shard(1), Replicate()])
        close([turned.full_tensor()], [whole])
        return [sharded.to_local(), turned.to_local(), sharded.sum(0).full_tensor()]

    same_as_gloo(case, integers=True)


def test_tensor_parallel() -> None:
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    def case() -> list[torch.Tensor]:
        split = model()
        parallelize_module(split, mesh(), {"0": ColwiseParallel(), "2": RowwiseParallel()})
        output = split(batch(0))
        output.square().sum().backward()
        gradients: list[Any] = [split[0].weight.grad, split[2].weight.grad]
        return [output, *(one.full_tensor() for one in gradients)]

    output, *gradients = same_as_gloo(case)
    reference: Any = model()
    wanted = reference(batch(0))
    wanted.square().sum().backward()
    close([output], [wanted])
    close(gradients, [reference[0].weight.grad, reference[2].weight.grad])


class Block(nn.Module):
    """A norm, and two layers between which the sequence is whole."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.norm = nn.LayerNorm(16)
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return self.down(self.up(self.norm(given)).relu())  # type: ignore[no-any-return]


def test_sequence_parallel() -> None:
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        PrepareModuleOutput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    given = torch.randn(2, 8, 16, generator=torch.Generator().manual_seed(2))

    def case() -> list[torch.Tensor]:
        ranks = mesh()
        block: Any = Block()
        plan: dict[str, Any] = {
            "": PrepareModuleInput(input_layouts=(Replicate(),), desired_input_layouts=(Shard(1),)),
            "norm": SequenceParallel(),
            "up": ColwiseParallel(input_layouts=Shard(1)),
            "down": RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
        }
        block = parallelize_module(block, ranks, plan)
        whole = PrepareModuleOutput(
            output_layouts=(Shard(1),), desired_output_layouts=(Replicate(),)
        )
        block = parallelize_module(block, ranks, whole)
        output = block(given)
        output.square().sum().backward()
        return [
            output,
            block.up.weight.grad.full_tensor(),
            block.down.weight.grad.full_tensor(),
            block.norm.weight.grad.full_tensor(),
        ]

    got = same_as_gloo(case)
    reference = Block()
    wanted = reference(given)
    wanted.square().sum().backward()
    weights = (reference.up.weight, reference.down.weight, reference.norm.weight)
    close(got, [wanted, *(one.grad for one in weights)], rtol=1e-4, atol=1e-4)


def test_fsdp2_of_a_tensor_parallel_model() -> None:
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    def case() -> list[torch.Tensor]:
        ranks = mesh(2, hvd.size() // 2, names=("data", "tensor"))
        plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
        module: Any = parallelize_module(model(), ranks["tensor"], plan)
        fully_shard(module, mesh=ranks["data"])
        module(batch(ranks["data"].get_local_rank())).square().mean().backward()
        return [one.grad.full_tensor() for one in module.parameters() if one.grad is not None]

    same_as_gloo(case)


SEQUENCE = 16


def attention_inputs() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(4)
    return [torch.randn(1, 2, SEQUENCE, 8, generator=generator) for _ in range(3)]


@pytest.mark.parametrize("rotate", ["allgather", "alltoall"])
@pytest.mark.parametrize("is_causal", [False, True])
def test_context_parallel(rotate: str, is_causal: bool) -> None:
    """PyTorch's ring of context_parallel(), with the CPU's attention inserted.

    context_parallel() itself only replaces the attention of accelerators.
    """
    ring = pytest.importorskip("torch.distributed.tensor.experimental._attention")
    ring = pytest.importorskip("torch.distributed.tensor.experimental._context_parallel._attention")
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward

    def attend(q: Any, k: Any, v: Any, is_causal: bool) -> Any:
        return flash(q.contiguous(), k.contiguous(), v.contiguous(), 0.0, is_causal)

    def attend_back(
        grad_out: Any, query: Any, key: Any, value: Any, out: Any, logsumexp: Any, is_causal: bool
    ) -> Any:
        return backward(grad_out, query, key, value, out, logsumexp, 0.0, is_causal)

    whole = attention_inputs()

    def case() -> list[torch.Tensor]:
        ring.set_rotate_method(rotate)
        ring._cp_options.enable_load_balance = False
        group, rank = dist.group.WORLD, dist.get_rank()
        q, k, v = (one.chunk(hvd.size(), dim=2)[rank].contiguous() for one in whole)
        out, logsumexp, *_ = ring._templated_ring_attention(
            group, 2, attend, query=q, key=k, value=v, is_causal=is_causal
        )
        gradients = ring._templated_ring_attention_backward(
            group,
            2,
            attend_back,
            grad_out=torch.ones_like(out),
            grad_out_name="grad_out",
            query=q,
            key=k,
            value=v,
            out=out,
            logsumexp=logsumexp,
            is_causal=is_causal,
        )[:3]
        parts = [torch.empty_like(out) for _ in range(hvd.size())]
        results = []
        for one in (out, *gradients):
            dist.all_gather(parts, one.contiguous())
            results.append(torch.cat(parts, dim=2))
        return results

    got = same_as_gloo(case)
    inputs = [one.clone().requires_grad_() for one in whole]
    wanted = nn.functional.scaled_dot_product_attention(*inputs, is_causal=is_causal)
    wanted.sum().backward()
    close(got, [wanted, *(one.grad for one in inputs)], rtol=1e-4, atol=1e-5)


def test_context_parallel_of_sharded_buffers() -> None:
    from torch.distributed.tensor.experimental import context_parallel

    def case() -> list[torch.Tensor]:
        buffer = torch.arange(float(SEQUENCE)).view(1, SEQUENCE).clone()
        with context_parallel(mesh(), buffers=[buffer], buffer_seq_dims=[1]):
            inside = buffer.clone()
        close([buffer], [torch.arange(float(SEQUENCE)).view(1, SEQUENCE)])
        return [inside]

    same_as_gloo(case, integers=True)
