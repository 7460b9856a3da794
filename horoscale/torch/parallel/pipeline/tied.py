"""Parameters that stages of several ranks have copies of.

Before values or gradients are exchanged the ranks tell each other over links that they are ready:
so a rank that fails before can tell those that wait for it.
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

TiedNames: TypeAlias = Sequence[tuple[int, str]]  # numbers of stages, names of parameters there


class Ties:
    """All tied parameters of a pipeline."""

    def __init__(
        self,
        tied: Sequence[TiedNames],
        modules: Mapping[int, nn.Module],
        stages: int,
        axis: Axis,
    ) -> None:
        """Find this rank's copies among the `modules` of its stages, which it has by number.

        Raises:
            ValueError: there is no such stage or parameter, or copies have other shapes.
        """
        self._modules = modules
        self._axis = axis
        self._all = [_positive(names, stages) for names in tied]
        self.said: dict[str, Any] = {  # what all ranks have to say alike
            "tied": self._all,
            **{f"the shape of tied {names}": self._shape(names) for names in self._all},
        }
        self._parameters: list[TiedParameter] = []

    @property
    def frozen(self) -> dict[str, Any]:
        """What ranks have to say alike, too, before the first step."""
        return {f"frozen tied {names}": self._is_frozen(names) for names in self._all}

    @property
    def names(self) -> set[tuple[int, str]]:
        """The stages and names of all copies."""
        return {(stage, name) for names in self._all for stage, name in names}

    @property
    def counted_elsewhere(self) -> list[nn.Parameter]:
        """Copies of this rank that are not the first one."""
        copies: list[nn.Parameter] = []
        for names in self._all:
            own = self._own(names)
            copies += own[1:] if self._positions(names)[0] == self._axis.rank else own
        return copies

    def connect(self, link: Callable[[int, int], Link], first_tag: int) -> None:
        """Link this rank to the others that have copies.

        `link` makes a link to a position of the axis, with a tag.
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
        """Give all copies the values of the first ones.

        Raises:
            ValueError: this rank has several copies of a parameter, of which some are frozen.
        """
        for names in self._all:
            if self._is_frozen(names) == "some":
                raise ValueError(f"tied={names!r}: of these parameters some are frozen, not all")
        for one in self._parameters:
            one.spread_value()

    def begin(self) -> None:
        """Put aside what gradients there are: they have been summed before."""
        for one in self._parameters:
            one.begin()

    def end(self) -> None:
        """Sum the gradients, and add what begin() has put aside."""
        for one in self._parameters:
            one.end()

    def sum_gradients(self) -> None:
        """Make the gradient of each copy the sum of all."""
        for one in self._parameters:
            one.sum_gradients()

    def _positions(self, names: TiedNames) -> list[int]:
        """Return which positions of the axis have copies; the first one's comes first."""
        return list(dict.fromkeys(stage % self._axis.size for stage, _ in names))

    def _own(self, names: TiedNames) -> list[nn.Parameter]:
        """Return the parameters that this rank has of these, each once."""
        own = [
            self._modules[stage].get_parameter(name)
            for stage, name in names
            if stage in self._modules
        ]
        return list({id(one): one for one in own}.values())

    def _shape(self, names: TiedNames) -> list[int] | None:
        """Return the shape of a tied parameter, if this rank has it; ValueError if it can't be."""
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
    """This rank's copies of a tied parameter, which stay equal to those of the other ranks.

    Their gradients are summed in the order of the ranks, alike on all of them: same bits.
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
        """Follow the copies of this global `rank`.

        `links` go to the other ranks that have some; `source` is the one that has the first.
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
        """Give all copies the value of the first one. All ranks that have copies call it."""
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
        """Exchange messages once all ranks are ready to; PipelineError if one has failed."""
        for link in self._links.values():
            link.send((), ())
        for link in self._links.values():
            link.receive()
        batch(operations)

    def begin(self) -> None:
        """Put aside what gradients there are: they have been summed before."""
        self._before = [one.grad for one in self._copies]
        for copy in self._copies:
            copy.grad = None

    def end(self) -> None:
        """Sum the gradients, and add what begin() has put aside."""
        self.sum_gradients()
        for copy, before in zip(self._copies, self._before, strict=True):
            if before is not None:
                copy.grad = before if copy.grad is None else before.add_(copy.grad)
        self._before = []

    def sum_gradients(self) -> None:
        """Make the gradient of each copy the sum of all. All ranks that have copies call it.

        Frozen copies are left without one.
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
    """Return names with stages counted from 0; ValueError for one that there is not."""
    for stage, name in names:
        if not -stages <= stage < stages:
            raise ValueError(f"tied={(stage, name)!r}: there are {stages} stages")
    return [(stage % stages, name) for stage, name in names]
