"""Layers as divided for the first rank of tp, without ranks. They record what would be sent.

par.tensor_parallel() creates layers that need a job. These have the same shapes, saved tensors and
amount of computation, so that one process can measure the memory and time of a divided model. Their
results are not those of the model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from horoscale.torch.parallel.division import split_sizes
from horoscale.torch.parallel.mesh import Axis
from horoscale.torch.parallel.plan import (
    divided_numbers,
    indivisible,
    match_styles,
    matrix_of,
    put_in_place,
)
from horoscale.torch.parallel.styles import Column, Input, Numbers, Plan, Row, Vocab


class Collective(NamedTuple):
    """The data that one collective of a layer transfers."""

    kind: str  # "allreduce" or "allgather"
    nbytes: int  # of the whole tensor, on each rank
    forward: bool  # False: in the backward pass


@dataclass(frozen=True)
class _Ranks:
    """The part of an Axis that the checks of a plan use."""

    name: str
    size: int
    rank: int = 0


class _Column(nn.Module):
    def __init__(
        self, weight: nn.Parameter, bias: nn.Parameter | None, sent: list[Collective]
    ) -> None:
        super().__init__()
        self.weight, self.bias = weight, bias
        self.is_counted = True  # whether it sums its input's gradient
        self.gathered: tuple[int, int] | None = None  # ranks and features of a gathered output
        self._sent = sent

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.linear(x, self.weight, self.bias)
        if self.is_counted and x.requires_grad:
            self._sent.append(Collective("allreduce", nbytes_of(x), False))
        if self.gathered is not None:
            ranks, features = self.gathered
            y = torch.cat([y] * ranks, -1)[..., :features]
            self._sent.append(Collective("allgather", nbytes_of(y), True))
        return y


class _Row(nn.Module):
    def __init__(
        self, weight: nn.Parameter, bias: nn.Parameter | None, sent: list[Collective]
    ) -> None:
        super().__init__()
        self.weight, self.bias = weight, bias
        self._sent = sent

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.linear(x, self.weight, self.bias)
        self._sent.append(Collective("allreduce", nbytes_of(y), True))
        return y


class _Embedding(nn.Module):
    def __init__(self, weight: nn.Parameter, sent: list[Collective]) -> None:
        super().__init__()
        self.weight = weight
        self._sent = sent

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        is_own = words < self.weight.shape[0]
        y = F.embedding(words.masked_fill(~is_own, 0), self.weight)
        y = y.masked_fill(~is_own.unsqueeze(-1), 0.0)
        self._sent.append(Collective("allreduce", nbytes_of(y), True))
        return y


def divide(
    model: nn.Module, plan: Plan, ranks: int, sent: list[Collective]
) -> dict[nn.Module, nn.Module]:
    """Replace the layers that a plan divides by the first rank's part of them, in place.

    The first rank has the largest part: the remainder of uneven divisions, and the biases of
    row-parallel layers.

    Args:
        model: a model on any device; par.memory() passes fake tensors.
        plan: a plan for par.tensor_parallel().
        ranks: the number of ranks.
        sent: collects the messages that each pass of a layer would send.

    Returns:
        The new modules by the ones that they replace.

    Raises:
        ValueError: as in par.tensor_parallel().
    """
    axis: Axis = _Ranks("tp", ranks)  # type: ignore[assignment]
    made: dict[nn.Module, nn.Module] = {}
    numbers: list[tuple[nn.Module, str, int]] = []
    shared: dict[tuple[int, tuple[int, ...]], nn.Parameter] = {}

    def share(whole: torch.Tensor, shape: tuple[int, ...]) -> nn.Parameter:
        key = (id(whole), shape)
        if key not in shared:
            own = torch.empty(shape, dtype=whole.dtype, device=whole.device)
            shared[key] = nn.Parameter(own, requires_grad=whole.requires_grad)
        return shared[key]

    styles = match_styles(model, plan, False)
    counted: set[str] = set()  # modules that sum their input's gradient once for all layers
    for name, style in styles.items():
        module = model.get_submodule(name)
        parent_name = name.rpartition(".")[0]
        parent = model.get_submodule(parent_name)
        if isinstance(style, Numbers):
            numbers += divided_numbers(name, module, style, axis)
        elif isinstance(style, Vocab):
            if not isinstance(module, nn.Embedding):
                raise ValueError(f"plan: {name} is a {type(module).__name__}, and no nn.Embedding")
            words, width = module.weight.shape
            own = split_sizes(words, ranks)[0]
            made[module] = _Embedding(share(module.weight, (own, width)), sent)
        elif isinstance(style, Column | Row):
            weight, bias = matrix_of(name, module)
            source: Any = module.weight  # the parameter, also if the weight is transposed
            out_features, in_features = weight.shape
            if isinstance(style, Column):
                first = out_features // sum(style.parts) * style.parts[0]
                unit = indivisible(name, parent, style.multiple_of, first, axis)
                own = split_sizes(first, ranks, unit)[0] * sum(style.parts) // style.parts[0]
                new_bias = None if bias is None else share(bias, (own,))
                new = _Column(share(source, (own, in_features)), new_bias, sent)
                new.is_counted = parent_name not in counted
                if isinstance(styles.get(parent_name), Input):
                    counted.add(parent_name)
                if style.gather_output:
                    new.gathered = ranks, out_features
                made[module] = new
            else:
                unit = indivisible(name, parent, style.multiple_of, in_features, axis)
                own = split_sizes(in_features, ranks, unit)[0]
                new_bias = None if bias is None else share(bias, (out_features,))
                made[module] = _Row(share(source, (out_features, own)), new_bias, sent)
    for old, new_module in made.items():
        new_module.train(old.training)
    put_in_place(model, made, numbers)
    return made


def nbytes_of(tensor: torch.Tensor) -> int:
    """Return the bytes of a tensor's values, whatever its layout."""
    return tensor.numel() * tensor.element_size()
