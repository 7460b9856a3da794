"""SplitBackward: a backward pass in two parts: gradients of inputs first, of weights later.

The first part runs only the graph between outputs and inputs. It keeps the gradients that arrive at
the nodes that use weights. The second part runs these nodes again, for their weights only. Each
gradient is thus computed once, by the same kernels as in a single pass, with bitwise equal results.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Any, TypeAlias

import torch
from torch.autograd.graph import GradientEdge

from horoscale._core import UnsupportedError

Node: TypeAlias = Any  # a node of autograd's graph


class SplitBackward:
    """The backward pass of one microbatch."""

    def __init__(
        self,
        outputs: Sequence[torch.Tensor],
        gradients: Sequence[torch.Tensor | None],
        inputs: Sequence[torch.Tensor],
    ) -> None:
        """Prepare gradients of `outputs` with respect to the leaves `inputs`, and to weights."""
        need_support()
        self._outputs = list(outputs)
        self._gradients = list(gradients)
        self._inputs = list(inputs)
        self._entries: dict[Node, list[torch.Tensor]] = {}  # nodes that use weights, and which
        self._arrived: dict[Node, Sequence[torch.Tensor | None]] = {}

    def run_inputs(self) -> None:
        """Accumulate the gradients of the inputs in their `grad`."""
        if not self._inputs:
            return  # run_weights() computes all gradients
        self._entries, at_once = _where_weights_enter(self._outputs, self._inputs)
        hooks = [node.register_prehook(self._keeper(node)) for node in self._entries]
        torch.autograd.backward(
            self._outputs,
            self._gradients,
            retain_graph=True,
            inputs=[*self._inputs, *at_once],
        )
        for hook in hooks:
            hook.remove()
        self._outputs, self._gradients = [], []

    def _keeper(self, node: Node) -> Any:
        def keep(gradients: Sequence[torch.Tensor | None]) -> None:
            self._arrived[node] = gradients

        return keep

    def run_weights(self) -> None:
        """Accumulate the gradients of the weights in their `grad`."""
        if not self._inputs:
            torch.autograd.backward(self._outputs, self._gradients)
            return
        # One by one, because a node may be reachable from another, and would run twice.
        for node, arrived in self._arrived.items():
            there = [(index, one) for index, one in enumerate(arrived) if one is not None]
            if there and self._entries[node]:
                torch.autograd.backward(
                    [GradientEdge(node, index) for index, _ in there],
                    [one for _, one in there],
                    inputs=self._entries[node],
                )
        self._arrived, self._entries = {}, {}


def _where_weights_enter(
    outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]
) -> tuple[dict[Node, list[torch.Tensor]], list[torch.Tensor]]:
    """Return the nodes between outputs and inputs that use weights, and which weights.

    Also return the weights whose gradients must be computed in the first part: several nodes use
    them, so none of these nodes can be run without the others.
    """
    roots = [one.grad_fn for one in outputs if one.grad_fn is not None]
    order = _children_first(roots)
    leaves = {id(one) for one in inputs}
    to_inputs: set[Node] = set()
    weights: dict[Node, dict[int, torch.Tensor]] = {}  # weights of nodes that lead to no input
    entries: dict[Node, dict[int, torch.Tensor]] = {}
    for node, children in order:
        beside = [weights[child] for child in children if child not in to_inputs]
        found = {key: one for some in beside for key, one in some.items()}
        variable = getattr(node, "variable", None)
        if id(variable) in leaves or any(child in to_inputs for child in children):
            to_inputs.add(node)
            if found:
                entries[node] = found
        else:
            weights[node] = found if variable is None else {id(variable): variable}
    uses = Counter(key for found in entries.values() for key in found)
    apart = {key: one for root in roots for key, one in weights.get(root, {}).items()}
    shared = {key: one for found in entries.values() for key, one in found.items() if uses[key] > 1}
    at_once = apart | shared
    later = {
        node: [one for key, one in found.items() if key not in at_once]
        for node, found in entries.items()
    }
    return later, list(at_once.values())


def _children_first(roots: Sequence[Node]) -> list[tuple[Node, list[Node]]]:
    """Return the nodes of a graph with their children, in post-order."""
    order: list[tuple[Node, list[Node]]] = []
    seen: set[Node] = set()
    stack: list[tuple[Node, list[Node] | None]] = [(root, None) for root in roots]
    while stack:
        node, children = stack.pop()
        if children is not None:
            order.append((node, children))
        elif node not in seen:
            seen.add(node)
            # Read only once: autograd creates new Python objects on each access.
            children = [child for child, _ in node.next_functions if child is not None]
            stack.append((node, children))
            stack += [(child, None) for child in children]
    return order


@cache
def need_support() -> None:
    """Raise UnsupportedError if PyTorch can't start a backward pass inside a graph."""
    weight = torch.ones((), requires_grad=True)
    with torch.enable_grad():
        node: Node = (weight * 2).grad_fn
    try:
        torch.autograd.backward([GradientEdge(node, 0)], [torch.ones(())], inputs=[weight])
    except (TypeError, AttributeError, RuntimeError) as error:
        raise UnsupportedError(
            f'schedule="zb-h1" needs a newer PyTorch than {torch.__version__}: this one has no '
            "backward() from a GradientEdge"
        ) from error
