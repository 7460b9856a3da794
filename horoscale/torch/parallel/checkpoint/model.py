"""The tensors of a model, or of this rank's stages, by their names in the whole model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

import torch
from torch import nn

from horoscale.torch.parallel.checkpoint.flat import as_owned
from horoscale.torch.parallel.checkpoint.layout import Layout
from horoscale.torch.parallel.checkpoint.model_tensor import ModelTensor
from horoscale.torch.parallel.pipeline import Pipeline
from horoscale.torch.parallel.state import shards_by_name

Model: TypeAlias = "nn.Module | Pipeline"
StageNames: TypeAlias = Callable[[int, str], str]  # (stage, name in it) to name in whole model


def tensors_of(model: Model, names: StageNames | None, stage: int) -> list[ModelTensor]:
    """Return the tensors of a model's state_dict(), each once.

    Args:
        model: a module, or a pipeline.
        names: maps names in a pipeline's stages to names in the whole model.
        stage: the stage of a module.

    Raises:
        ValueError: two stages use the same name, or the shape of a shard is not the one that its
            division gives. TypeError: the state_dict() has something that is not a tensor.
    """
    if not isinstance(model, Pipeline):
        return as_owned(model, list(_of_module(model, stage, set(), lambda name: name)))
    found: list[ModelTensor] = []
    owners: dict[str, int] = {}
    for number, module in model.stages.items():
        rename = _renamer(names, number)
        tied = {name for at, name in model.tied_names if at == number}
        for one in _of_module(module, number, tied, rename):
            for name in one.names:
                if name in owners and not one.is_tied:
                    raise ValueError(clash(name, owners[name], number))
                owners[name] = number
            found.append(one)
    return as_owned(module_of(model), found)


def module_of(model: Model) -> nn.Module:
    """Return the module with all of this rank's parameters."""
    return model.module if isinstance(model, Pipeline) else model


def clash(name: str, first: int, second: int) -> str:
    """Return the error message for stages whose tensors have the same name."""
    return (
        f"the stages {first} and {second} both have {name!r}: give names=, which returns the name "
        "that the whole model has for it (par.split keeps these names)"
    )


def _renamer(names: StageNames | None, stage: int) -> Callable[[str], str]:
    if names is None:
        return lambda name: name
    chosen = names
    return lambda name: chosen(stage, name)


def _of_module(
    module: nn.Module, stage: int, tied: set[str], rename: Callable[[str], str]
) -> Iterator[ModelTensor]:
    shards = shards_by_name(module)
    transposed = {
        f"{prefix}.{name}".lstrip(".")
        for prefix, one in module.named_modules(remove_duplicate=False)
        for name in getattr(one, "transposed", ())
    }
    found: dict[int, ModelTensor] = {}
    for name, tensor in _state_of(module):
        known = found.get(id(tensor))
        if known is not None:
            known.names.append(rename(name))
            known.is_tied |= name in tied
            continue
        try:
            layout = (
                Layout.of_shard(shards[name], tensor.shape)
                if name in shards
                else Layout.of_whole(tensor.shape)
            )
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
        found[id(tensor)] = ModelTensor(
            [rename(name)],
            tensor,
            tensor,
            layout.transposed() if name in transposed else layout,
            stage,
            name in tied,
            isinstance(tensor, nn.Parameter),
        )
    yield from found.values()


def _state_of(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the entries of state_dict() without its hooks, which would gather shards."""
    for prefix, one in module.named_modules(remove_duplicate=False):
        if type(one).get_extra_state is not nn.Module.get_extra_state:
            raise TypeError(f"{prefix or type(one).__name__} has extra state, which is no tensor")
        kept = {
            name: buffer
            for name, buffer in one._buffers.items()
            if name not in one._non_persistent_buffers_set
        }
        for name, tensor in (*one._parameters.items(), *kept.items()):
            if tensor is not None:
                yield f"{prefix}.{name}".lstrip("."), tensor
