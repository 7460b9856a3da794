"""The collectives as PyTorch operators for torch.compile: torch.ops.horoscale.*.

The compiler cannot trace calls into a library. It can insert an operator into a graph if the
operator declares the shapes of its results and its derivative. When the graph runs, the operator
calls the collective as eager code does. Compiled and eager ranks can therefore take part in the
same operation.

All arguments are tensors or plain values, and results depend only on the arguments: a compiled
graph is cached on disk, and another job may load it. A process set is therefore passed as its id
and, if shapes depend on it, its size.

The operators have side effects. The compiler keeps such operators in program order and runs each
exactly once, even if its results are unused. Ranks that compile different graphs (for example, for
different shapes) therefore still make the same calls in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from horoscale._core import Encoding, ReduceOp
from horoscale.common.arguments import check_has_rows
from horoscale.common.process_sets import registered
from horoscale.torch import collectives
from horoscale.torch.collectives import Call, Reduction, Tensors

try:
    from torch._higher_order_ops.effects import _EffectType, _register_effectful_op
except ImportError:
    _register_effectful_op = None  # type: ignore[assignment]

# The oldest tested version. Earlier compilers support effects only in part; some break backward
# passes.
NEEDED = "2.13"

# The reason why the operators are not available, or None.
PROBLEM = (
    None
    if torch.__version__ >= NEEDED and _register_effectful_op is not None
    else f"collectives inside torch.compile need PyTorch {NEEDED} or newer, and this is "
    f"{torch.__version__}: exclude the function that calls them with @torch.compiler.disable"
)

_LIBRARY: Any = torch.library.Library("horoscale", "DEF")  # type: ignore[no-untyped-call]
_REDUCTION = "int op, float prescale, float postscale, int encoding"
_CALL = "int set_id, str? name, int priority"

Implementation = Callable[..., Any]


def _arguments_context(ctx: Any, inputs: Any, output: Tensors) -> None:
    _, *ctx.arguments = inputs


def _define(
    schema: str,
    run: Implementation,
    fake: Implementation,
    backward: Implementation | None = None,
    context: Implementation = _arguments_context,
) -> None:
    """Define an operator: its implementation, the shapes of its results, and its derivative."""
    if PROBLEM is not None:
        return

    def without_autograd(*arguments: Any) -> Any:
        with torch.no_grad():
            return run(*arguments)

    name = schema.partition("(")[0]
    qualified = f"horoscale::{name}"
    _LIBRARY.define(schema)
    _LIBRARY.impl(name, without_autograd, "CompositeExplicitAutograd")
    torch.library.register_fake(qualified, fake, lib=_LIBRARY)
    if backward is not None:
        torch.library.register_autograd(qualified, backward, setup_context=context, lib=_LIBRARY)
    _register_effectful_op(getattr(torch.ops.horoscale, name).default, _EffectType.ORDERED)


def _reduction(op: int, prescale: float, postscale: float, encoding: int) -> Reduction:
    return Reduction(ReduceOp(op), prescale, postscale, Encoding(encoding))


def _call(set_id: int, name: str | None, priority: int) -> Call:
    return Call(name, registered(set_id), will_wait=True, priority=priority)


def _alike(tensors: Tensors, *_: Any) -> list[torch.Tensor]:
    return [tensor.new_empty(tensor.shape) for tensor in tensors]


def _rows_replaced(tensor: torch.Tensor, rows: Any) -> torch.Tensor:
    return tensor.new_empty((rows, *tensor.shape[1:]))


def _unknown_rows(tensor: torch.Tensor) -> torch.Tensor:
    return _rows_replaced(tensor, torch.library.get_ctx().new_dynamic_size())


# ------------------------------------------------------------------------------------- allreduce


def _allreduce(tensors: Tensors, *arguments: Any) -> list[torch.Tensor]:
    reduction, call = _reduction(*arguments[:4]), _call(*arguments[4:])
    return list(collectives.allreduce(tensors, reduction, call).wait())


def _allreduce_gradient(gradients: Tensors, *arguments: Any) -> list[torch.Tensor]:
    reduction, call = _reduction(*arguments[:4]), _call(*arguments[4:])
    return list(collectives.allreduce_gradient(gradients, reduction, call))


def _allreduce_backward(ctx: Any, gradients: Tensors) -> tuple[Any, ...]:
    results = torch.ops.horoscale.allreduce_gradient(list(gradients), *ctx.arguments)
    return results, *[None] * len(ctx.arguments)


_define(
    f"allreduce(Tensor[] tensors, {_REDUCTION}, {_CALL}) -> Tensor[]",
    _allreduce,
    _alike,
    _allreduce_backward,
)
_define(
    f"allreduce_gradient(Tensor[] gradients, {_REDUCTION}, {_CALL}) -> Tensor[]",
    _allreduce_gradient,
    _alike,
)


# ------------------------------------------------------------------------------------- broadcast


def _broadcast(tensors: Tensors, root: int, *call: Any) -> list[torch.Tensor]:
    return list(collectives.broadcast(tensors, root, _call(*call)).wait())


def _broadcast_gradient(gradients: Tensors, root: int, *call: Any) -> list[torch.Tensor]:
    return list(collectives.broadcast_gradient(gradients, root, _call(*call)))


def _broadcast_backward(ctx: Any, gradients: Tensors) -> tuple[Any, ...]:
    results = torch.ops.horoscale.broadcast_gradient(list(gradients), *ctx.arguments)
    return results, *[None] * len(ctx.arguments)


_define(
    f"broadcast(Tensor[] tensors, int root, {_CALL}) -> Tensor[]",
    _broadcast,
    _alike,
    _broadcast_backward,
)
_define(
    f"broadcast_gradient(Tensor[] gradients, int root, {_CALL}) -> Tensor[]",
    _broadcast_gradient,
    _alike,
)


# ------------------------------------------------------------------------------------- allgather


def _allgather(tensors: Tensors, members: int, *call: Any) -> list[torch.Tensor]:
    results, rows = collectives.allgather_with_rows(tensors, _call(*call)).wait()
    return [*results, torch.tensor(rows)]


def _allgather_fake(tensors: Tensors, members: int, *_: Any) -> list[torch.Tensor]:
    for tensor in tensors:
        check_has_rows(tensor.shape, "allgather")
    rows = torch.empty((len(tensors), members), dtype=torch.int64)
    return [*map(_unknown_rows, tensors), rows]


def _allgather_context(ctx: Any, inputs: Any, output: Tensors) -> None:
    tensors, ctx.members, *ctx.call = inputs
    ctx.own_rows = [tensor.shape[0] for tensor in tensors]
    ctx.save_for_backward(output[-1])


def _allgather_backward(ctx: Any, gradients: Tensors) -> tuple[Any, ...]:
    [rows] = ctx.saved_tensors
    results = torch.ops.horoscale.allgather_gradient(
        list(gradients[:-1]), rows, ctx.own_rows, *ctx.call
    )
    return results, None, *[None] * len(ctx.call)


def _allgather_gradient(
    gradients: Tensors, rows: torch.Tensor, own_rows: Sequence[int], *call: Any
) -> list[torch.Tensor]:
    return list(collectives.allgather_gradient(gradients, rows.tolist(), _call(*call)))


def _allgather_gradient_fake(
    gradients: Tensors, rows: torch.Tensor, own_rows: Sequence[int], *_: Any
) -> list[torch.Tensor]:
    return [_rows_replaced(*pair) for pair in zip(gradients, own_rows, strict=True)]


_define(
    f"allgather(Tensor[] tensors, int members, {_CALL}) -> Tensor[]",
    _allgather,
    _allgather_fake,
    _allgather_backward,
    _allgather_context,
)
_define(
    f"allgather_gradient(Tensor[] gradients, Tensor rows, SymInt[] own_rows, {_CALL}) -> Tensor[]",
    _allgather_gradient,
    _allgather_gradient_fake,
)


# -------------------------------------------------------------------------------------- alltoall


def _alltoall(
    tensor: torch.Tensor, splits: torch.Tensor | None, members: int, *call: Any
) -> list[torch.Tensor]:
    to_each = None if splits is None else splits.tolist()
    result, received = collectives.alltoall(tensor, to_each, _call(*call)).wait()
    return [result, torch.tensor(received)]


def _alltoall_fake(
    tensor: torch.Tensor, splits: torch.Tensor | None, members: int, *_: Any
) -> list[torch.Tensor]:
    check_has_rows(tensor.shape, "alltoall")
    return [_unknown_rows(tensor), torch.empty(members, dtype=torch.int64)]


def _alltoall_context(ctx: Any, inputs: Any, output: Tensors) -> None:
    tensor, _, _, *ctx.call = inputs
    ctx.rows = tensor.shape[0]
    ctx.save_for_backward(output[1])


def _alltoall_backward(ctx: Any, gradients: Tensors) -> tuple[Any, ...]:
    [received] = ctx.saved_tensors
    result = torch.ops.horoscale.alltoall_gradient(gradients[0], received, ctx.rows, *ctx.call)
    return result, None, None, *[None] * len(ctx.call)


def _alltoall_gradient(
    gradient: torch.Tensor, received: torch.Tensor, rows: int, *call: Any
) -> torch.Tensor:
    return collectives.alltoall_gradient(gradient, received.tolist(), rows, _call(*call))


def _alltoall_gradient_fake(
    gradient: torch.Tensor, received: torch.Tensor, rows: int, *_: Any
) -> torch.Tensor:
    return _rows_replaced(gradient, rows)


_define(
    f"alltoall(Tensor tensor, Tensor? splits, int members, {_CALL}) -> Tensor[]",
    _alltoall,
    _alltoall_fake,
    _alltoall_backward,
    _alltoall_context,
)
_define(
    f"alltoall_gradient(Tensor gradient, Tensor received, SymInt rows, {_CALL}) -> Tensor",
    _alltoall_gradient,
    _alltoall_gradient_fake,
)


# --------------------------------------------------------------------------------- reducescatter


def _reducescatter(
    tensors: Tensors, members: int, position: int, splits: Sequence[int] | None, *arguments: Any
) -> list[torch.Tensor]:
    reduction, call = _reduction(*arguments[:4]), _call(*arguments[4:])
    return list(collectives.reducescatter(tensors, reduction, call, splits).wait())


def _reducescatter_fake(
    tensors: Tensors, members: int, position: int, splits: Sequence[int] | None, *_: Any
) -> list[torch.Tensor]:
    for tensor in tensors:
        check_has_rows(tensor.shape, "reducescatter")
    if splits is not None:
        return [_rows_replaced(one, splits[position]) for one in tensors]
    # Like scattered_rows(), in a form that also works for symbolic sizes.
    return [
        _rows_replaced(one, (one.shape[0] + members - 1 - position) // members) for one in tensors
    ]


def _reducescatter_context(ctx: Any, inputs: Any, output: Tensors) -> None:
    tensors, _, _, _, *ctx.arguments = inputs
    ctx.rows = [tensor.shape[0] for tensor in tensors]


def _reducescatter_backward(ctx: Any, gradients: Tensors) -> tuple[Any, ...]:
    results = torch.ops.horoscale.reducescatter_gradient(list(gradients), ctx.rows, *ctx.arguments)
    return results, None, None, None, *[None] * len(ctx.arguments)


def _reducescatter_gradient(
    gradients: Tensors, rows: Sequence[int], *arguments: Any
) -> list[torch.Tensor]:
    reduction, call = _reduction(*arguments[:4]), _call(*arguments[4:])
    return list(collectives.reducescatter_gradient(gradients, reduction, call))


def _reducescatter_gradient_fake(
    gradients: Tensors, rows: Sequence[int], *_: Any
) -> list[torch.Tensor]:
    return [_rows_replaced(*pair) for pair in zip(gradients, rows, strict=True)]


_define(
    "reducescatter(Tensor[] tensors, int members, int position, SymInt[]? splits, "
    f"{_REDUCTION}, {_CALL}) -> Tensor[]",
    _reducescatter,
    _reducescatter_fake,
    _reducescatter_backward,
    _reducescatter_context,
)
_define(
    f"reducescatter_gradient(Tensor[] gradients, SymInt[] rows, {_REDUCTION}, {_CALL}) -> Tensor[]",
    _reducescatter_gradient,
    _reducescatter_gradient_fake,
)
