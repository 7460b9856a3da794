"""GradientReducer: all gradients of one optimizer on their way."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from horoscale._core import ReduceOp
from horoscale.torch import collectives
from horoscale.torch.buckets import make_bucket
from horoscale.torch.collectives import Call, Reduction
from horoscale.torch.compression import Compression
from horoscale.torch.forward_order import rank_by_first_use
from horoscale.torch.gradients import (
    Gradient,
    GradientGroup,
    Layout,
    Settings,
    existing_group,
    start_waiting,
    unique_name,
)
from horoscale.torch.handles import Handle

Parameters = Sequence[torch.Tensor]


class GradientReducer:
    """Makes groups of an optimizer's parameters, has them reduced, and waits for them."""

    def __init__(
        self,
        settings: Settings,
        passes: int,
        names: dict[torch.Tensor, str],
        grouping: Sequence[Parameters],
    ) -> None:
        """Begin without parameters: adopt() takes them. Those not in `grouping` are alone."""
        self.settings = settings
        self.passes = passes
        self.groups: list[GradientGroup] = []
        self.by_first_use: list[GradientGroup] = []  # the same, as the forward pass needs them
        self._names = names
        self._partners = {id(one): list(group) for group in grouping for one in group}
        self._order_known = True  # of by_first_use
        self._adopted: set[int] = set()  # ids; the groups keep the parameters alive
        self._layouts_name = unique_name("gradients.layouts", settings.process_set)
        self._layouts_known = True  # by all ranks, of all gradients
        self._agreement: Handle | None = None  # the last one on layouts

    @property
    def in_flight(self) -> bool:
        """Whether a reduction was started and not waited for yet."""
        return any(group.in_flight for group in self.groups)

    @property
    def pending(self) -> bool:
        """Whether a backward pass has put something in that no step has used yet."""
        return any(group.pending for group in self.groups)

    def adopt(self, param_groups: Iterable[dict[str, Any]]) -> None:
        """Take care of the parameters that are new, or require a gradient only now."""
        new: list[Parameters] = []
        for group in param_groups:
            for parameter in group["params"]:
                if parameter.requires_grad and id(parameter) not in self._adopted:
                    partners = self._partners.get(id(parameter), [parameter])
                    partners = [one for one in partners if one.requires_grad]
                    self._adopted.update(map(id, partners))
                    new.append(partners)
        if new:
            self._make_groups(new)

    @torch.no_grad()
    def start(self) -> None:
        """Start the reductions that no backward pass has started."""
        if not self._order_known and any(group.pending for group in self.groups):
            self.by_first_use = rank_by_first_use(self.groups)
            self._order_known = True
        if not self._layouts_known:
            self._agree_on_layouts()
        start_waiting()
        for group in self.groups:
            if not group.in_flight:
                group.start()

    @torch.no_grad()
    def synchronize(self) -> None:
        """Start the reductions that no backward pass has started, and wait for all."""
        self.start()
        failure = None
        for group in self.groups:
            try:
                group.finish()
            except Exception as error:
                failure = failure or error
        if failure is not None:
            raise failure

    def free_moved(self) -> None:
        """Free the memory that gradients were moved from: after a step, as without horoscale."""
        for group in self.groups:
            for gradient in group.gradients:
                gradient.free_moved()

    def _agree_on_layouts(self) -> None:
        """Learn from the other ranks which gradients are sparse, and let them learn it.

        Zeros stand for a gradient that this rank has never had, and they have to be sparse where
        the other ranks' are. It is done until each gradient was there on some rank. A rank that has
        had all of them does not wait for the others.
        """
        gradients = [gradient for group in self.groups for gradient in group.gradients]
        for gradient in gradients:
            gradient.observe(self.settings.sparse_as_dense)
        layouts = torch.tensor([gradient.layout for gradient in gradients], dtype=torch.uint8)
        unknown = [gradient for gradient in gradients if gradient.layout is Layout.UNKNOWN]
        call = Call(self._layouts_name, self.settings.process_set, will_wait=bool(unknown))
        if self._agreement is not None:
            self._agreement.wait()  # it has the same name
        self._agreement = collectives.allreduce([layouts], Reduction(ReduceOp.MAX), call)
        self._layouts_known = True
        if unknown:
            [agreed] = self._agreement.wait()
            for gradient, layout in zip(gradients, agreed.tolist(), strict=True):
                if gradient.layout is Layout.UNKNOWN:
                    gradient.layout = Layout(layout)
            self._layouts_known = all(gradient.layout for gradient in gradients)

    def _make_groups(self, new: Sequence[Parameters]) -> None:
        missing = []
        for parameters in new:
            group = existing_group(parameters, self.passes, self.settings)
            if group is None:
                missing.append(parameters)
            else:
                group.shared = True
                self.groups.append(group)
        if not self.settings.sparse_as_dense:
            self._layouts_known = False
        everything = [parameter for parameters in missing for parameter in parameters]
        # A gradient that a compressor makes another tensor of is copied anyhow.
        compressed = self.settings.compression is not Compression.none
        places = iter([None] * len(everything) if compressed else make_bucket(everything))
        rank_in_order = sum(len(group.gradients) for group in self.groups)
        for parameters in missing:
            gradients = []
            for parameter in parameters:
                name = self._names.get(parameter) or f"unnamed.{rank_in_order}"
                gradients.append(Gradient(parameter, name, -rank_in_order, next(places)))
                rank_in_order += 1
            name = f"gradient.{gradients[0].name}"
            if len(gradients) > 1:
                name += f".and.{len(gradients) - 1}.more"
            name = unique_name(name, self.settings.process_set)
            self.groups.append(GradientGroup(name, gradients, self.passes, self.settings))
        self.by_first_use = list(self.groups)
        self._order_known = False
        for group in self.groups:
            group.forget_arrivals()
