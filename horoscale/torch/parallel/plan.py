"""tensor_parallel(): the layers of a model that knows nothing of ranks, divided by a plan."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal, TypeAlias

import torch
from torch import nn

from horoscale.torch.parallel.embedding import VocabParallelEmbedding
from horoscale.torch.parallel.linear import ColumnParallelLinear, RowParallelLinear
from horoscale.torch.parallel.mesh import Axis


@dataclass(frozen=True)
class Column:
    """How a linear layer's output features are divided.

    Attributes:
        parts: the shares of what they consist of: (1, 1, 1) for queries, keys and values.
        multiple_of: what of the features can't be divided, or the attribute of the parent module
            that says so, such as "head_dim"; of these, all ranks need the same number, unless a
            number is given. None: all ranks need the same number of features.
        gather_output: whether the output is whole on all ranks.
    """

    parts: tuple[int, ...] = (1,)
    multiple_of: int | str | None = None
    gather_output: bool = False


@dataclass(frozen=True)
class Row:
    """How a linear layer's input features are divided: as the output of the layer before it.

    Attributes:
        multiple_of: as Column has it.
    """

    multiple_of: int | str | None = None


@dataclass(frozen=True)
class Vocab:
    """The words of an embedding are divided."""


@dataclass(frozen=True)
class Numbers:
    """Attributes of a module that are divided by the number of ranks, such as its heads.

    Attributes:
        names: the attributes, which are integers.
    """

    names: tuple[str, ...]


Style: TypeAlias = Column | Row | Vocab | Numbers
_BY_NAME: dict[str, Style] = {"column": Column(), "row": Row(), "vocab": Vocab()}
Plan: TypeAlias = Mapping[str, Style | Literal["column", "row", "vocab"]]

# Of transformers' GPT2LMHeadModel and LlamaForCausalLM, and of models of their shape.
GPT2: Plan = {
    "*wte": "vocab",
    "*attn.c_attn": Column(parts=(1, 1, 1), multiple_of="head_dim"),
    "*attn.c_proj": Row(multiple_of="head_dim"),
    "*attn": Numbers(("num_heads", "split_size")),
    "*mlp.c_fc": "column",
    "*mlp.c_proj": "row",
    "*lm_head": Column(multiple_of=1, gather_output=True),
}
LLAMA: Plan = {
    "*embed_tokens": "vocab",
    "*self_attn.[qkv]_proj": Column(multiple_of="head_dim"),
    "*self_attn.o_proj": Row(multiple_of="head_dim"),
    "*mlp.gate_proj": "column",
    "*mlp.up_proj": "column",
    "*mlp.down_proj": "row",
    "*lm_head": Column(multiple_of=1, gather_output=True),
}


def tensor_parallel(model: nn.Module, axis: Any, plan: Plan) -> nn.Module:
    """Replace layers of a model by ones that are divided among ranks, in place.

    The model is to be whole, with the same parameters on all ranks; each keeps its shards of them.
    It takes the same inputs on all ranks, and returns the same outputs.

        model = GPT2LMHeadModel(GPT2Config())
        par.tensor_parallel(model, mesh.tp, par.GPT2)

    Args:
        model: any module. Linear layers may be nn.Linear or transformers' Conv1D, whose weights are
            transposed.
        axis: an Axis, a ProcessSet, or a group of torch.distributed's.
        plan: what is done with which modules, by patterns of their names, as of fnmatch ("*" for
            anything). The first pattern that matches counts. "column", "row" and "vocab" stand for
            Column(), Row() and Vocab().

    Returns:
        The model. Parameters that modules share remain shared.

    Raises:
        ValueError: a pattern matches nothing, a module is of another kind or can't be divided,
            or modules that share a parameter are not divided alike; nothing was changed.
    """
    axis = Axis.of(axis)
    styles = _match(model, plan)
    shared: dict[Any, nn.Parameter] = {}
    made: dict[nn.Module, nn.Module] = {}
    numbers: list[tuple[nn.Module, str, int]] = []
    for name, style in styles.items():
        module = model.get_submodule(name)
        if isinstance(style, Numbers):
            numbers += _divided_numbers(name, module, style, axis)
            continue
        parent = model.get_submodule(name.rpartition(".")[0])
        new = _divided(name, module, parent, style, axis)
        _share(module, new, style, shared)
        made[module] = new
    _check_shared(model, made, shared)
    for module, attribute, number in numbers:
        setattr(module, attribute, number)
    # Also where a module is at a second place, under another name.
    for name, module in list(model.named_modules(remove_duplicate=False)):
        if module in made:
            parent_name, _, own_name = name.rpartition(".")
            setattr(model.get_submodule(parent_name), own_name, made[module])
    return model


def _match(model: nn.Module, plan: Plan) -> dict[str, Style]:
    """Return the styles of modules by their names; ValueError for patterns that match none."""
    for pattern, style in plan.items():
        if isinstance(style, str) and style not in _BY_NAME:
            raise ValueError(f"plan[{pattern!r}] = {style!r} is none of {', '.join(_BY_NAME)}")
    names = [name for name, _ in model.named_modules() if name]
    unused = [one for one in plan if not any(fnmatchcase(name, one) for name in names)]
    if unused:
        raise ValueError(
            f"plan: {', '.join(map(repr, unused))} match no module. There are {', '.join(names)}"
        )
    styles: dict[str, Style] = {}
    for name in names:
        for pattern, style in plan.items():
            if fnmatchcase(name, pattern):
                styles[name] = _BY_NAME[style] if isinstance(style, str) else style
                break
    return styles


def _divided(
    name: str, module: nn.Module, parent: nn.Module, style: Style, axis: Axis
) -> nn.Module:
    """Return the divided layer that takes a module's place, with its shards of the parameters."""
    if isinstance(style, Vocab):
        return _divided_embedding(name, module, axis)
    weight, bias = _matrix(name, module)
    made: dict[str, Any] = {
        "bias": bias is not None,
        "device": weight.device,
        "dtype": weight.dtype,
    }
    out_features, in_features = weight.shape
    new: ColumnParallelLinear | RowParallelLinear
    if isinstance(style, Column):
        of_part = out_features // sum(style.parts) * style.parts[0]
        made["multiple_of"] = _unit(name, parent, style.multiple_of, of_part, axis)
        new = ColumnParallelLinear(
            in_features,
            out_features,
            axis,
            gather_output=style.gather_output,
            parts=style.parts,
            **made,
        )
    else:
        assert isinstance(style, Row)
        made["multiple_of"] = _unit(name, parent, style.multiple_of, in_features, axis)
        new = RowParallelLinear(in_features, out_features, axis, **made)
    new.load_whole(weight, bias)
    if not isinstance(module, nn.Linear):
        new.transposed = frozenset({"weight"})
    _keep_flags(module, new)
    return new


def _divided_embedding(name: str, module: nn.Module, axis: Axis) -> nn.Module:
    if not isinstance(module, nn.Embedding):
        raise ValueError(f"plan: {name} is a {type(module).__name__}, and no nn.Embedding")
    if module.max_norm is not None or module.sparse or module.scale_grad_by_freq:
        raise ValueError(f"plan: {name} has max_norm, sparse or scale_grad_by_freq")
    new = VocabParallelEmbedding(
        module.num_embeddings,
        module.embedding_dim,
        axis,
        module.padding_idx,
        device=module.weight.device,
        dtype=module.weight.dtype,
    )
    new.load_whole(module.weight)
    _keep_flags(module, new)
    return new


def _matrix(name: str, module: nn.Module) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the weight of a linear layer, (out, in), and its bias."""
    if isinstance(module, nn.Linear):
        return module.weight, module.bias
    if type(module).__name__ == "Conv1D" and hasattr(module, "nf"):  # of transformers
        weight, bias = module.weight, module.bias
        assert isinstance(weight, torch.Tensor)
        return weight.t(), bias if isinstance(bias, torch.Tensor) else None
    raise ValueError(f"plan: {name} is a {type(module).__name__}, and no linear layer")


def _unit(
    name: str, parent: nn.Module, multiple_of: int | str | None, features: int, axis: Axis
) -> int:
    """Return what can't be divided; ValueError if the ranks don't have the same number of it."""
    if isinstance(multiple_of, int):
        return multiple_of
    unit = 1 if multiple_of is None else getattr(parent, multiple_of, None)
    if not isinstance(unit, int):
        raise ValueError(f"plan: the parent of {name} has no number {multiple_of!r}")
    if features % unit or features // unit % axis.size:
        of = "" if unit == 1 else f" of {unit}"
        raise ValueError(
            f"plan: the {features // unit} features{of} of {name} can't be divided evenly among "
            f"the {axis.size} ranks of axis {axis.name}"
        )
    return unit


def _divided_numbers(
    name: str, module: nn.Module, style: Numbers, axis: Axis
) -> list[tuple[nn.Module, str, int]]:
    found = []
    for attribute in style.names:
        number = getattr(module, attribute, None)
        if not isinstance(number, int) or number % axis.size:
            raise ValueError(
                f"plan: {name}.{attribute} is {number!r}, which can't be divided by the "
                f"{axis.size} ranks of axis {axis.name}"
            )
        found.append((module, attribute, number // axis.size))
    return found


def _keep_flags(module: nn.Module, new: nn.Module) -> None:
    new.train(module.training)
    old = dict(module.named_parameters())
    for name, parameter in new.named_parameters():
        parameter.requires_grad_(old[name].requires_grad)


def _share(
    module: nn.Module, new: nn.Module, style: Style, shared: dict[Any, nn.Parameter]
) -> None:
    """Let a new module have the parameters that were made of the same ones."""
    for name, parameter in module.named_parameters(recurse=False):
        shard: Any = new.shards.get(name)  # type: ignore[operator, union-attr]
        own = getattr(new, name)
        if own is None:
            continue
        key = (id(parameter), shard, type(module).__name__ == "Conv1D")
        setattr(new, name, shared.setdefault(key, own))


def _check_shared(
    model: nn.Module, divided: Collection[nn.Module], shared: Mapping[Any, nn.Parameter]
) -> None:
    """Raise ValueError if modules share a parameter and are not divided alike."""
    owners: dict[int, list[tuple[nn.Module, str]]] = {}
    for name, module in model.named_modules():
        for own_name, parameter in module.named_parameters(recurse=False):
            owners.setdefault(id(parameter), []).append((module, f"{name}.{own_name}"))
    ways: dict[int, int] = {}
    for key in shared:
        ways[key[0]] = ways.get(key[0], 0) + 1
    for parameter_id, number in ways.items():
        modules = owners[parameter_id]
        if number > 1 or any(module not in divided for module, _ in modules):
            names = ", ".join(sorted(full for _, full in modules))
            raise ValueError(f"plan: {names} are one parameter, and have to be divided alike")
