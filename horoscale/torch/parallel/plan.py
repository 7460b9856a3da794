"""tensor_parallel(): divides the layers of an ordinary model according to a plan."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn

from horoscale._core import MismatchError
from horoscale.common.objects import allgather_object
from horoscale.torch.parallel.attention_dropout import fork_attention_dropout
from horoscale.torch.parallel.division import get_dim_for_local_rank
from horoscale.torch.parallel.embedding import VocabParallelEmbedding
from horoscale.torch.parallel.inputs import take_input
from horoscale.torch.parallel.linear import ColumnParallelLinear, RowParallelLinear
from horoscale.torch.parallel.mesh import Axis
from horoscale.torch.parallel.sequence import (
    Modules,
    check_chain,
    divide_sequence,
    modules_within,
)
from horoscale.torch.parallel.styles import (
    BY_NAME,
    Column,
    Input,
    Numbers,
    Plan,
    Row,
    Sequence,
    Style,
    Unit,
    Vocab,
)


def tensor_parallel(
    model: nn.Module, axis: Any, plan: Plan, sequence_parallel: bool = False
) -> nn.Module:
    """Replace layers of a model by layers that are divided among ranks, in place. Collective.

    The model must be whole, with the same parameters on all ranks. Each rank keeps its shards of
    them. Afterwards the model takes the same inputs on all ranks and returns the same outputs. If a
    transformers model has attention dropout, each rank draws the numbers for its own heads.

        model = GPT2LMHeadModel(GPT2Config())
        par.tensor_parallel(model, mesh.tp, par.GPT2)

    Args:
        model: any module. Linear layers may be nn.Linear or transformers' Conv1D, whose weights are
            transposed.
        axis: an Axis, a ProcessSet, or a torch.distributed process group.
        plan: a dict from patterns of module names, as in fnmatch ("*" for anything), to styles. The
            first matching pattern applies. "column", "row", "vocab", "input" and "sequence" stand
            for Column(), Row(), Vocab(), Input() and Sequence().
        sequence_parallel: whether each rank has a part of the sequence between the modules with
            style Sequence. Otherwise, these entries are ignored.

    Returns:
        The model. Parameters that modules share remain shared.

    Raises:
        ValueError: a pattern matches nothing, a module is of the wrong kind or cannot be divided,
            or modules that share a parameter are divided differently. The model is not changed.
        MismatchError: the ranks' models or plans differ; raised on all ranks.
    """
    axis = Axis.of(axis)
    _agree(model, axis, plan, sequence_parallel)
    styles = match_styles(model, plan, sequence_parallel)
    chain, sequence = _chain(model, styles)
    inside = modules_within(chain)
    dims = {name: sequence.dim if name in inside else None for name in styles}
    shared: dict[Any, nn.Parameter] = {}
    made: dict[nn.Module, nn.Module] = {}
    numbers: list[tuple[nn.Module, str, int]] = []
    for name, style in styles.items():
        module = model.get_submodule(name)
        if isinstance(style, Numbers):
            numbers += divided_numbers(name, module, style, axis)
        elif isinstance(style, Input):
            _check_input(name, module, styles, is_gathered=dims[name] is not None)
        elif not isinstance(style, Sequence):
            new = _divided(name, model, styles, axis, dims[name])
            _share(module, new, shared)
            made[module] = new
    _check_shared(model, made, shared)
    if chain:
        check_chain(model, chain, made)
    put_in_place(model, made, numbers)
    if chain:  # first, because the sequence is divided before an Input at its beginning gathers it
        divide_sequence(chain, axis, sequence.dim, sequence.argument)
    for name, style in styles.items():
        if isinstance(style, Input):
            take_input(name, model.get_submodule(name), style.argument, axis, dims[name])
    if axis.size > 1:
        fork_attention_dropout(model)
    return model


def _agree(model: nn.Module, axis: Axis, plan: Plan, sequence_parallel: bool) -> None:
    """Raise MismatchError on all ranks if their models or plans differ."""
    if axis.set is None:
        return
    said = {"sequence_parallel": repr(sequence_parallel), "the plan": repr(dict(plan))}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        said[name] = f"{parameter.dtype} of {tuple(parameter.shape)}"
    answers = allgather_object(said, process_set=axis.set)
    for rank, other in zip(axis.ranks, answers, strict=True):
        for key in {**answers[0], **other}:
            ours, theirs = (one.get(key, "nothing") for one in (answers[0], other))
            if ours != theirs:
                raise MismatchError(
                    f"tensor_parallel on axis {axis.name}: {key} is {ours} on rank "
                    f"{axis.ranks[0]}, {theirs} on rank {rank}"
                )


def put_in_place(
    model: nn.Module,
    made: Mapping[nn.Module, nn.Module],
    numbers: Iterable[tuple[nn.Module, str, int]],
) -> None:
    """Replace modules of the model by the new ones, and set integer attributes."""
    for module, attribute, number in numbers:
        setattr(module, attribute, number)
    # Includes duplicates: a module may occur at several places, under several names.
    for name, module in list(model.named_modules(remove_duplicate=False)):
        if module in made:
            parent_name, _, own_name = name.rpartition(".")
            setattr(model.get_submodule(parent_name), own_name, made[module])


def match_styles(model: nn.Module, plan: Plan, sequence_parallel: bool) -> dict[str, Style]:
    """Return the styles of modules by name; raise ValueError for patterns that match none."""
    named: dict[str, Style] = {}
    for pattern, style in plan.items():
        if isinstance(style, str) and style not in BY_NAME:
            raise ValueError(f"plan[{pattern!r}] = {style!r} is not one of {', '.join(BY_NAME)}")
        named[pattern] = BY_NAME[style] if isinstance(style, str) else style
    of_sequence = [one for one, style in named.items() if isinstance(style, Sequence)]
    if sequence_parallel and not of_sequence:
        raise ValueError(
            "sequence_parallel=True, but the plan does not define between which modules the "
            'sequence is divided: it has no "sequence"'
        )
    if not sequence_parallel:
        named = {one: style for one, style in named.items() if one not in of_sequence}
    names = [name for name, _ in model.named_modules() if name]
    unused = [one for one in named if not any(fnmatchcase(name, one) for name in names)]
    if unused:
        raise ValueError(
            f"plan: {', '.join(map(repr, unused))} match no module. The modules are "
            f"{', '.join(names)}"
        )
    styles: dict[str, Style] = {}
    for name in names:
        for pattern, style in named.items():
            if fnmatchcase(name, pattern):
                styles[name] = style
                break
    return styles


def _chain(model: nn.Module, styles: Mapping[str, Style]) -> tuple[Modules, Sequence]:
    """Return the modules between which the sequence is divided, and its style, if it is."""
    chain: Modules = {}
    ways = {style: name for name, style in styles.items() if isinstance(style, Sequence)}
    if len(ways) > 1:
        raise ValueError(f"plan: {' and '.join(ways.values())} divide the sequence differently")
    for name, style in styles.items():
        if isinstance(style, Sequence):
            module = model.get_submodule(name)
            children = [("", module)]
            if isinstance(module, nn.ModuleList):  # named_children() has each module once
                children = [(str(index), child) for index, child in enumerate(module)]
            chain |= {f"{name}.{own}".rstrip("."): child for own, child in children}
    for name in modules_within(chain):
        inner = styles.get(name)
        if isinstance(inner, Vocab) or (isinstance(inner, Column) and inner.gather_output):
            raise ValueError(f"plan: {name} cannot be {inner} where the sequence is divided")
        if name in chain and isinstance(inner, Column | Row):
            raise ValueError(f"plan: {name} is both {inner} and Sequence()")
    return chain, next(iter(ways), Sequence())


def _check_input(
    name: str, module: nn.Module, styles: Mapping[str, Style], is_gathered: bool
) -> None:
    children = {f"{name}.{own}": child for own, child in module.named_children()}
    columns = [one for one in children if isinstance(styles.get(one), Column)]
    if not columns:
        raise ValueError(
            f"plan: {name} is Input(), but none of its layers is divided by columns: "
            f"it has {', '.join(children) or 'none'}"
        )
    if is_gathered:
        features = {matrix_of(one, children[one])[0].shape[1] for one in columns}
        _check_whole(name, module, styles, features)


def _check_whole(
    name: str, module: nn.Module, styles: Mapping[str, Style], features: set[int]
) -> None:
    """Raise ValueError if a module may multiply its input by a parameter that is not divided.

    The gradients of a gathered input are summed over the ranks. Gradients from an undivided layer,
    such as a router of experts, would be counted once per rank.
    """
    for inner, child in module.named_modules():
        full = f"{name}.{inner}".rstrip(".")
        if isinstance(styles.get(full), Column | Row | Vocab):
            continue
        for own, parameter in child.named_parameters(recurse=False):
            if parameter.dim() > 1 and not features.isdisjoint(parameter.shape):
                raise ValueError(
                    f"plan: {full}.{own} is not divided, and may multiply the input of {name}, "
                    f"whose gradient would be counted once for each rank. Omit Input() for "
                    f"{name}, so that each of its layers gathers the sequence itself"
                )


def _divided(
    name: str, model: nn.Module, styles: Mapping[str, Style], axis: Axis, dim: int | None
) -> nn.Module:
    """Return the divided layer that replaces a module, with its shards of the parameters.

    With a `dim`, the sequence is divided along it between such layers.
    """
    module, style = model.get_submodule(name), styles[name]
    parent = model.get_submodule(name.rpartition(".")[0])
    if isinstance(style, Vocab):
        return _divided_embedding(name, module, axis)
    weight, bias = matrix_of(name, module)
    made: dict[str, Any] = {
        "bias": bias is not None,
        "device": weight.device,
        "dtype": weight.dtype,
        "sequence_parallel": dim is not None,
        "sequence_dim": dim or 0,
    }
    out_features, in_features = weight.shape
    new: ColumnParallelLinear | RowParallelLinear
    if isinstance(style, Column):
        of_part = out_features // sum(style.parts) * style.parts[0]
        made["multiple_of"] = indivisible(name, parent, style.multiple_of, of_part, axis)
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
        made["multiple_of"] = indivisible(name, parent, style.multiple_of, in_features, axis)
        new = RowParallelLinear(in_features, out_features, axis, **made)
    new.load_whole(weight, bias)
    if not isinstance(module, nn.Linear):
        new.transposed = frozenset({"weight"})
    _keep_flags(module, new)
    return new


def _divided_embedding(name: str, module: nn.Module, axis: Axis) -> nn.Module:
    if not isinstance(module, nn.Embedding):
        raise ValueError(f"plan: {name} is a {type(module).__name__}, not an nn.Embedding")
    if module.max_norm is not None or module.sparse or module.scale_grad_by_freq:
        raise ValueError(
            f"plan: {name} uses max_norm, sparse or scale_grad_by_freq, which are not supported"
        )
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


def matrix_of(name: str, module: nn.Module) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the weight of a linear layer, (out, in), and its bias."""
    if isinstance(module, nn.Linear):
        return module.weight, module.bias
    if type(module).__name__ == "Conv1D" and hasattr(module, "nf"):  # of transformers
        weight, bias = module.weight, module.bias
        assert isinstance(weight, torch.Tensor)
        return weight.t(), bias if isinstance(bias, torch.Tensor) else None
    raise ValueError(f"plan: {name} is a {type(module).__name__}, not a linear layer")


def indivisible(
    name: str,
    parent: nn.Module,
    multiple_of: Unit,
    extent: int,
    axis: Axis,
    what: str = "features",
) -> int:
    """Return the size of the indivisible unit; raise ValueError if a rank would get none."""
    unit = 1
    for factor in multiple_of if isinstance(multiple_of, tuple) else (multiple_of,):
        number = getattr(parent, factor, None) if isinstance(factor, str) else factor
        if not isinstance(number, int) or number < 1:
            raise ValueError(f"plan: the parent of {name} has no number {factor!r}")
        unit *= number
    if extent % unit:
        raise ValueError(f"plan: the {extent} {what} of {name} are not a multiple of {unit}")
    if extent // unit < axis.size:
        times = "" if unit == 1 else f" of {unit}"
        raise ValueError(
            f"plan: the {extent // unit} {what}{times} of {name} can't be divided among the "
            f"{axis.size} ranks of axis {axis.name}"
        )
    return unit


def divided_numbers(
    name: str, module: nn.Module, style: Numbers, axis: Axis
) -> list[tuple[nn.Module, str, int]]:
    """Return this rank's values of attributes that count divided units."""
    found = []
    for one in style.names:
        attribute, multiple_of = (one, 1) if isinstance(one, str) else one
        number = getattr(module, attribute, None)
        full = f"{name}.{attribute}"
        if not isinstance(number, int):
            raise ValueError(f"plan: {full} is {number!r}, which is not a number to divide")
        unit = indivisible(full, module, multiple_of, number, axis, "units")
        own = get_dim_for_local_rank(number, axis.size, axis.rank, unit)
        found.append((module, attribute, own))
    return found


def _keep_flags(module: nn.Module, new: nn.Module) -> None:
    new.train(module.training)
    old = dict(module.named_parameters())
    for name, parameter in new.named_parameters():
        parameter.requires_grad_(old[name].requires_grad)


def _share(module: nn.Module, new: nn.Module, shared: dict[Any, nn.Parameter]) -> None:
    """Let a new module share the parameters that derive from the same originals."""
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
            raise ValueError(f"plan: {names} are one parameter and must be divided in the same way")
