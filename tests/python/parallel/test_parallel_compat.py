"""Programs that use other libraries' names of the same layers."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from support.parallel import EXACT, MARKS, mesh

import horoscale.torch as hvd
import horoscale.torch.parallel as par

pytestmark = MARKS


def test_a_layer_with_mambas_names() -> None:
    from horoscale.compat.mamba.distributed.distributed_utils import (
        all_gather,
        all_gather_raw,
        all_reduce,
        all_reduce_raw,
        allreduce_sequence_parallel_grad,
        reduce_scatter,
        reduce_scatter_raw,
        sync_shared_params,
    )
    from horoscale.compat.mamba.distributed.tensor_parallel import (
        ColumnParallelLinear,
        ParallelEmbeddings,
        RowParallelLinear,
    )

    group, size, rank = hvd.global_process_set, hvd.size(), hvd.rank()
    with mesh():  # for comparing numbers in double precision
        embeddings = ParallelEmbeddings(8, 11, 6, group)
        up, down = (
            ColumnParallelLinear(8, 10, group, multiple_of=2),
            RowParallelLinear(10, 8, group, multiple_of=2),
        )
        whole_up, whole_down = torch.randn(10, 8), torch.randn(8, 10)
        up.load_whole(whole_up, torch.ones(10))
        down.load_whole(whole_down, torch.ones(8))
        words = torch.randint(11, (2 * size, 3))
        x = embeddings(words, combine_batch_seqlen_dim=True)
        assert x.shape == (6, 8)
        everything = all_gather(x.detach(), group)
        expected = (torch.tanh(everything @ whole_up.T + 1) @ whole_down.T + 1)[6 * rank :][:6]
        torch.testing.assert_close(down(torch.tanh(up(x))), expected, **EXACT)
        rows = torch.randn(2 * size, 3)
        torch.testing.assert_close(reduce_scatter(rows, group), size * rows[2 * rank :][:2])
        torch.testing.assert_close(all_reduce(rows, group), size * rows)
        for raw, value in (
            (all_gather_raw, torch.cat([rows] * size)),
            (reduce_scatter_raw, size * rows[2 * rank :][:2]),
            (all_reduce_raw, size * rows),
        ):
            out, handle = raw(rows.clone(), group, async_op=True)
            handle.wait()
            torch.testing.assert_close(out, value)
            assert raw(rows.clone(), group)[1] is None
        layer = torch.nn.Linear(3, 1)
        layer.weight._shared_params = layer.weight._sequence_parallel = True
        layer.weight.data.fill_(rank)
        layer.weight.grad = torch.ones(1, 3)
        sync_shared_params(layer, group)
        allreduce_sequence_parallel_grad(layer, group)
        assert torch.equal(layer.weight.detach(), torch.zeros(1, 3))
        assert torch.equal(layer.weight.grad, torch.full((1, 3), float(size)))


def test_a_layer_with_megatrons_names(need_ranks: None) -> None:
    from horoscale.compat.megatron.core import parallel_state, tensor_parallel

    torch.manual_seed(0)
    with pytest.raises(NotImplementedError, match="no expert_model_parallel_size here"):
        parallel_state.initialize_model_parallel(1, expert_model_parallel_size=2)
    assert not parallel_state.model_parallel_is_initialized()
    parallel_state.initialize_model_parallel(hvd.size())
    try:
        axis = parallel_state.get_tensor_model_parallel_group()
        assert axis.size == parallel_state.get_tensor_model_parallel_world_size() == hvd.size()
        assert parallel_state.get_data_parallel_world_size(with_context_parallel=True) == 1
        assert parallel_state.is_pipeline_first_stage()
        assert parallel_state.is_pipeline_last_stage()
        tensor_parallel.model_parallel_cuda_manual_seed(3)
        config = SimpleNamespace(sequence_parallel=True, params_dtype=torch.float64)
        init = torch.nn.init.normal_
        up = tensor_parallel.ColumnParallelLinear(4, 12, config=config, init_method=init)
        down = tensor_parallel.RowParallelLinear(12, 4, config=config, init_method=init)
        weights = [par.whole_state_dict(layer)["weight"] for layer in (up, down)]
        x = torch.randn(2 * axis.size, 4, dtype=torch.float64)
        own = tensor_parallel.scatter_to_sequence_parallel_region(x)
        y, bias = down(torch.relu(up(own)[0]))
        assert bias is None
        y = tensor_parallel.gather_from_sequence_parallel_region(y, False)
        torch.testing.assert_close(y, torch.relu(x @ weights[0].T) @ weights[1].T, **EXACT)
        heads = tensor_parallel.all_to_all_sp2hp(own.repeat(1, axis.size))
        assert heads.shape == (2 * axis.size, 4)
        assert tensor_parallel.all_to_all_hp2sp(heads).shape == (2, 4 * axis.size)
        with tensor_parallel.get_cuda_rng_tracker().fork():
            drawn = hvd.allgather_object(float(torch.rand(())))
        assert len(set(drawn)) == axis.size
        with pytest.raises(NotImplementedError, match="skip_bias_add"):
            tensor_parallel.ColumnParallelLinear(4, 12, skip_bias_add=True)
    finally:
        parallel_state.destroy_model_parallel()
