"""Parameters of which stages on several ranks have copies.

Before they exchange values or gradients, the ranks notify each other over links that they are
ready, so a rank that fails before can notify those that wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any, TypeAlias

import torch
from torch import nn

from horoscale.common.batches import P2POp
from horoscale.common.process_sets import ProcessSet
from horoscale.torch.messages import batch, recv, send
from horoscale.torch.parallel.mesh import Axis
from horoscale.torch.parallel.pipeline.links import Link

TiedNames: TypeAlias = Sequence[tuple[int, str]]  # stages, and the parameter's name in each


class Ties:
    """All tied parameters of a pipeline."""

    def __init__(
        self,
        tied: Sequence[TiedNames],
        modules: Mapping[int, nn.Module],
        stages: int,
        axis: Axis,
    ) -> None:
        """Find this rank's copies in `modules`, its stages by number.

        Raises:
            ValueError: there is no such stage or parameter, or copies have different shapes.
        """
        self._modules = modules
        self._axis = axis
        self._all = [_positive(names, stages) for names in tied]
        self.said: dict[str, Any] = {  # must be equal on all ranks
            "tied": self._all,
            **{f"the shape of tied {names}": self._shape(names) for names in self._all},
        }
        self._parameters: list[TiedParameter] = []

    @property
    def frozen(self) -> dict[str, Any]:
        """What must also be equal on all ranks before the first step."""
        return {f"frozen tied {names}": self._is_frozen(names) for names in self._all}

    @property
    def names(self) -> set[tuple[int, str]]:
        """The stages and names of all copies."""
        return {(stage, name) for names in self._all for stage, name in names}

    @property
    def counted_elsewhere(self) -> list[nn.Parameter]:
        """The copies on this rank, except first ones."""
        copies: list[nn.Parameter] = []
        for names in self._all:
            own = self._own(names)
            copies += own[1:] if self._positions(names)[0] == self._axis.rank else own
        return copies

    def connect(self, link: Callable[[int, int], Link], first_tag: int) -> None:
        """Link this rank to the others that have copies.

        `link` creates a link to a position on the axis, with a tag.
        """
        ranks = self._axis.ranks
        own = ranks[self._axis.rank]
        for tag, names in zip(count(first_tag, 2), self._all, strict=False):
            copies, positions = self._own(names), self._positions(names)
            if copies:
                others = [one for one in positions if one != self._axis.rank]
                links = {ranks[one]: link(one, tag) for one in others}
                source = ranks[positions[0]]
                one = TiedParameter(copies, links, own, source, tag + 1, self._axis.set)
                self._parameters.append(one)

    def spread_values(self) -> None:
        """Set all copies to the values of the first ones.

        Raises:
            ValueError: this rank has several copies of a parameter, of which some are frozen.
        """
        for names in self._all:
            if self._is_frozen(names) == "some":
                raise ValueError(f"tied={names!r}: of these parameters some are frozen, not all")
        for one in self._parameters:
            one.spread_value()

    def begin(self) -> None:
        """Put existing gradients aside: they have already been summed."""
        for one in self._parameters:
            one.begin()

    def end(self) -> None:
        """Sum the gradients, and add those that begin() has put aside."""
        for one in self._parameters:
            one.end()

    def sum_gradients(self) -> None:
        """Set the gradient of each copy to the sum over all copies."""
        for one in self._parameters:
            one.sum_gradients()

    def _positions(self, names: TiedNames) -> list[int]:
        """Return the positions on the axis that have copies, that of the first copy first."""
        return list(dict.fromkeys(stage % self._axis.size for stage, _ in names))

    def _own(self, names: TiedNames) -> list[nn.Parameter]:
        """Return this rank's parameters among these names, each once."""
        own = [
            self._modules[stage].get_parameter(name)
            for stage, name in names
            if stage in self._modules
        ]
        return list({id(one): one for one in own}.values())

    def _shape(self, names: TiedNames) -> list[int] | None:
        """Return a tied parameter's shape, if on this rank; raise ValueError if it is invalid."""
        for stage, name in names:
            if stage not in self._modules:
                continue
            if name not in dict(self._modules[stage].named_parameters(remove_duplicate=False)):
                raise ValueError(f"tied={(stage, name)!r}: stage {stage} has no such parameter")
        shapes = [list(one.shape) for one in self._own(names)]
        if any(one != shapes[0] for one in shapes):
            raise ValueError(f"tied={names!r}: the parameters have other shapes: {shapes}")
        return shapes[0] if shapes else None

    def _is_frozen(self, names: TiedNames) -> bool | str | None:
        """Return whether this rank has frozen its copies; None if it has none."""
        kinds = {not one.requires_grad for one in self._own(names)}
        return kinds.pop() if len(kinds) == 1 else "some" if kinds else None


class TiedParameter:
    """This rank's copies of a tied parameter, which remain equal to those of the other ranks.

    All ranks sum the gradients in the order of the ranks, so the results are bitwise equal.
    """

    def __init__(
        self,
        copies: Sequence[nn.Parameter],
        links: Mapping[int, Link],
        rank: int,
        source: int,
        tag: int,
        process_set: ProcessSet | None,
    ) -> None:
        """Manage the copies on this global `rank`.

        `links` lead to the other ranks with copies; `source` is the rank of the first copy.
        """
        self._copies = list(copies)
        self._links = links
        self._source = source
        self._ranks = sorted([rank, *links])
        self._rank = rank
        self._tag = tag
        self._process_set = process_set
        self._before: list[torch.Tensor | None] = []

    def spread_value(self) -> None:
        """Set all copies to the value of the first one. All ranks with copies must call it."""
        is_source = self._rank == self._source
        value = self._copies[0].detach()
        if not is_source:
            value = torch.empty_like(value)
        peers = self._links if is_source else [self._source]
        op = send if is_source else recv
        self._exchange([self._message(op, value, peer) for peer in peers])
        with torch.no_grad():
            for copy in self._copies:
                copy.copy_(value)

    def _message(self, op: Callable[..., Any], tensor: torch.Tensor, rank: int) -> P2POp:
        assert self._process_set is not None  # there is another rank
        return P2POp(op, tensor, rank, self._tag, self._process_set)

    def _exchange(self, operations: Sequence[P2POp]) -> None:
        """Exchange messages once all ranks are ready; raise PipelineError if one has failed."""
        for link in self._links.values():
            link.send((), ())
        for link in self._links.values():
            link.receive()
        batch(operations)

    def begin(self) -> None:
        """Put existing gradients aside: they have already been summed."""
        self._before = [one.grad for one in self._copies]
        for copy in self._copies:
            copy.grad = None

    def end(self) -> None:
        """Sum the gradients, and add those that begin() has put aside."""
        self.sum_gradients()
        for copy, before in zip(self._copies, self._before, strict=True):
            if before is not None:
                copy.grad = before if copy.grad is None else before.add_(copy.grad)
        self._before = []

    def sum_gradients(self) -> None:
        """Set the gradient of each copy to the sum over all. All ranks with copies must call it.

        Frozen copies get no gradient.
        """
        trained = [copy for copy in self._copies if copy.requires_grad]
        own = torch.zeros_like(self._copies[0])
        for copy in trained:
            if copy.grad is not None:
                own += copy.grad
        total = self._sum(own)
        for copy in trained:
            if copy.grad is None:
                copy.grad = total.clone()
            else:
                copy.grad.copy_(total)

    def _sum(self, own: torch.Tensor) -> torch.Tensor:
        if not self._links:
            return own
        parts = {rank: torch.empty_like(own) for rank in self._links} | {self._rank: own}
        self._exchange(
            [self._message(send, own, rank) for rank in self._links]
            + [self._message(recv, parts[rank], rank) for rank in self._links]
        )
        total = parts[self._ranks[0]].clone()
        for rank in self._ranks[1:]:
            total += parts[rank]
        return total


def _positive(names: TiedNames, stages: int) -> list[tuple[int, str]]:
    """Return names with stages counted from 0; raise ValueError for an unknown stage."""
    for stage, name in names:
        if not -stages <= stage < stages:
            raise ValueError(f"tied={(stage, name)!r}: there are {stages} stages")
    return [(stage % stages, name) for stage, name in names]
