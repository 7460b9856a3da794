"""megatron.core.tensor_parallel: mappings, layers, cross entropy, and random numbers.

The sequence is the first dimension. Layers return (output, bias) as Megatron's do, where the bias
is None. `config` may be any object; only `sequence_parallel` and `params_dtype` are used.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

from horoscale.torch import parallel as par
from horoscale.torch.parallel import rng

Init = Callable[[torch.Tensor], Any]


def _tp(group: Any) -> par.Axis:
    return par.current_mesh().tp if group is None else par.Axis.of(group)


def copy_to_tensor_model_parallel_region(input_: torch.Tensor, group: Any = None) -> torch.Tensor:
    """Return the input. The gradients are summed."""
    return par.copy_to(input_, _tp(group))


def reduce_from_tensor_model_parallel_region(
    input_: torch.Tensor, group: Any = None
) -> torch.Tensor:
    """Return the sum of the ranks' tensors. The gradient is the rank's own."""
    return par.reduce_from(input_, _tp(group))


def scatter_to_tensor_model_parallel_region(
    input_: torch.Tensor, group: Any = None
) -> torch.Tensor:
    """Return this rank's part of the last dimension. The gradients are joined."""
    return par.scatter_to(input_, _tp(group))


def gather_from_tensor_model_parallel_region(
    input_: torch.Tensor, group: Any = None
) -> torch.Tensor:
    """Join the parts of the last dimension. The gradient is the rank's part."""
    return par.gather_from(input_, _tp(group))


def scatter_to_sequence_parallel_region(input_: torch.Tensor, group: Any = None) -> torch.Tensor:
    """Return this rank's part of the first dimension. The gradients are joined."""
    return par.sequence_scatter(input_, _tp(group))


def gather_from_sequence_parallel_region(
    input_: torch.Tensor, tensor_parallel_output_grad: bool = True, group: Any = None
) -> torch.Tensor:
    """Join the parts of the first dimension. The gradients are summed, if they differ."""
    gather = par.sequence_gather if tensor_parallel_output_grad else par.gather_from
    return gather(input_, _tp(group), 0)


def reduce_scatter_to_sequence_parallel_region(
    input_: torch.Tensor, group: Any = None
) -> torch.Tensor:
    """Return this rank's part of the sum. The gradients are joined."""
    return par.sequence_reduce_scatter(input_, _tp(group))


def all_to_all_sp2hp(input_: torch.Tensor, group: Any = None) -> torch.Tensor:
    """Convert (own tokens, all features) to (all tokens, own features)."""
    return par.all_to_all(input_, _tp(group), scatter_dim=1, gather_dim=0)


def all_to_all_hp2sp(input_: torch.Tensor, group: Any = None) -> torch.Tensor:
    """Convert (all tokens, own features) to (own tokens, all features)."""
    return par.all_to_all(input_, _tp(group), scatter_dim=0, gather_dim=1)


def vocab_parallel_cross_entropy(
    vocab_parallel_logits: torch.Tensor, target: torch.Tensor, label_smoothing: float = 0.0
) -> torch.Tensor:
    """Return the loss of each token. All ranks must have logits for equal numbers of words."""
    return par.vocab_parallel_cross_entropy(
        vocab_parallel_logits, target, _tp(None), label_smoothing, reduction="none"
    )


class ColumnParallelLinear(par.ColumnParallelLinear):
    """A linear layer whose output features are divided among the ranks."""

    def __init__(
        self,
        input_size: int,
        output_size: int,
        *,
        config: Any = None,
        init_method: Init | None = None,
        bias: bool = True,
        gather_output: bool = False,
        skip_bias_add: bool = False,
        tp_group: Any = None,
    ) -> None:
        """Create this rank's shard. Raises NotImplementedError if the bias is to be returned."""
        _refuse_skipped_bias(skip_bias_add)
        super().__init__(
            input_size,
            output_size,
            _tp(tp_group),
            bias,
            getattr(config, "sequence_parallel", False),
            gather_output=gather_output,
            dtype=getattr(config, "params_dtype", None),
        )
        _begin(self, init_method)

    def forward(self, input_: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        """Return (the output, None)."""
        return super().forward(input_), None


class RowParallelLinear(par.RowParallelLinear):
    """A linear layer whose input features are divided among the ranks."""

    def __init__(
        self,
        input_size: int,
        output_size: int,
        *,
        config: Any = None,
        init_method: Init | None = None,
        bias: bool = True,
        input_is_parallel: bool = True,
        skip_bias_add: bool = False,
        tp_group: Any = None,
    ) -> None:
        """Create this rank's shard. Raises NotImplementedError if the bias is to be returned."""
        _refuse_skipped_bias(skip_bias_add)
        super().__init__(
            input_size,
            output_size,
            _tp(tp_group),
            bias,
            getattr(config, "sequence_parallel", False),
            dtype=getattr(config, "params_dtype", None),
        )
        self.input_is_parallel = input_is_parallel
        _begin(self, init_method)

    def forward(self, input_: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        """Return (the output, None)."""
        own = input_ if self.input_is_parallel else par.scatter_to(input_, self.axis)
        return super().forward(own), None


class VocabParallelEmbedding(par.VocabParallelEmbedding):
    """An embedding whose words are divided among the ranks."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        *,
        init_method: Init | None = None,
        reduce_scatter_embeddings: bool = False,
        config: Any = None,
        tp_group: Any = None,
    ) -> None:
        """Create this rank's rows of the table."""
        super().__init__(
            num_embeddings,
            embedding_dim,
            _tp(tp_group),
            reduction="scatter" if reduce_scatter_embeddings else "all",
            dtype=getattr(config, "params_dtype", None),
        )
        _begin(self, init_method)


def _begin(module: nn.Module, init_method: Init | None) -> None:
    """Initialize a weight as requested, each rank its own; set a bias to zeros."""
    weight, bias = module.weight, getattr(module, "bias", None)
    assert isinstance(weight, torch.Tensor)
    if init_method is not None:
        with rng.fork(module.axis):  # type: ignore[arg-type]
            init_method(weight)
    if isinstance(bias, torch.Tensor):
        nn.init.zeros_(bias)


def _refuse_skipped_bias(skip_bias_add: bool) -> None:
    if skip_bias_add:
        raise NotImplementedError("skip_bias_add=True: the layers add their biases here")


class _Tracker:
    """Replaces Megatron's tracker of random states; see rng.fork()."""

    def fork(self, name: str = "model-parallel-rng") -> AbstractContextManager[None]:
        """Use random numbers that differ along tp; the name is ignored."""
        return rng.fork(par.current_mesh().tp)


_tracker = _Tracker()


def get_cuda_rng_tracker() -> _Tracker:
    """Return an object with fork()."""
    return _tracker


def model_parallel_cuda_manual_seed(seed: int) -> None:
    """Seed torch equally on the ranks of tp, and differently on all others."""
    rng.seed(seed)
