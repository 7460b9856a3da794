"""GradientReducer: the reduction of all gradients of one optimizer."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Sequence

import torch

from horoscale._core import ReduceOp
from horoscale.common import job
from horoscale.common.exceptions import HorovodInternalError
from horoscale.torch import collectives
from horoscale.torch.batching import batch
from horoscale.torch.buckets import make_bucket
from horoscale.torch.collectives import Call, Reduction
from horoscale.torch.compression import Compression
from horoscale.torch.forward_order import rank_by_first_use
from horoscale.torch.gradients import Gradient, Layout, Settings
from horoscale.torch.groups import GradientGroup, State, existing_group
from horoscale.torch.handles import Handle
from horoscale.torch.names import unique_name
from horoscale.torch.rounds import Rounds
from horoscale.torch.user_warning import warn_user

Parameters = Sequence[torch.Tensor]


class GradientReducer:
    """Groups an optimizer's parameters, starts their reductions, and waits for them."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        settings: Settings,
        passes: int,
        names: dict[torch.Tensor, str],
        grouping: Sequence[Parameters],
        ready_in_backward: bool = False,
    ) -> None:
        """Create a reducer; adopt() adds parameters. Those not in `grouping` are grouped alone."""
        self.settings = settings
        self.passes = passes
        self.scale = 1.0  # factor of this rank's gradients before the reduction
        self.paused = False  # backward passes are not counted
        self.overlaps = False  # with overlap_step=True
        self.ready_in_backward = ready_in_backward
        self.groups: list[GradientGroup] = []
        self.by_first_use: list[GradientGroup] = []  # the same groups in forward order
        self._optimizer = weakref.ref(optimizer)
        self._rounds = Rounds(self, settings.process_set) if ready_in_backward else None
        self._names = names
        self._partners = {id(one): list(group) for group in grouping for one in group}
        self._order_known = True  # by_first_use is in forward order
        self._adopted: set[int] = set()  # ids; the groups keep the parameters alive
        self._layouts_name = unique_name("gradients.layouts", settings.process_set)
        self._layouts_known = True  # all ranks know the layout of all gradients
        self._agreement: Handle | None = None  # the latest agreement on layouts
        self._warned: set[str] = set()
        self.added_to: str | None = None  # a reduced gradient that a backward pass has changed
        self._looked_in = -1  # autograd's id of that pass
        _all.add(self)

    @property
    def in_flight(self) -> bool:
        """Whether a reduction has started but not been waited for."""
        return any(group.in_flight for group in self.groups)

    @property
    def pending(self) -> bool:
        """Whether gradients have arrived that are not reduced yet."""
        return any(group.pending for group in self.groups)

    @property
    def reduced(self) -> bool:
        """Whether there are reduced gradients that no step has used yet."""
        return any(group.serves(self) for group in self.groups)

    def set_scale(self, scale: float) -> None:
        """Multiply this rank's gradients by a factor before they are reduced."""
        self.scale = scale
        for group in self.groups:
            group.scale = scale

    def adopt(self) -> bool:
        """Add parameters that are new or now require a gradient. Return whether there were any."""
        optimizer = self._optimizer()
        assert optimizer is not None
        new: list[Parameters] = []
        for group in optimizer.__dict__["param_groups"]:
            for parameter in group["params"]:
                if parameter.requires_grad and id(parameter) not in self._adopted:
                    partners = self._partners.get(id(parameter), [parameter])
                    partners = [one for one in partners if one.requires_grad]
                    self._adopted.update(map(id, partners))
                    new.append(partners)
        if new:
            self._make_groups(new)
        return bool(new)

    @torch.no_grad()
    def start(self) -> None:
        """Start the reductions that no backward pass has started."""
        if self.all_reduced():
            return
        if not self._order_known and self.pending:
            self.by_first_use = rank_by_first_use(self.groups)
            self._order_known = True
        if not self._layouts_known:
            self._agree_on_layouts()
        batch.start()
        for group in self.groups:
            if not group.in_flight and not group.serves(self):
                group.start()

    @torch.no_grad()
    def synchronize(self) -> None:
        """Start the reductions that no backward pass has started, and wait for all."""
        self.adopt()
        if self._rounds is not None:
            self._rounds.settle()
        self.start()
        self.finish()

    def finish(self) -> None:
        """Wait for the reductions that have started. Call this with autograd disabled."""
        failure = None
        for group in self.groups:
            if group.serves(self):
                continue
            self.warn_of_change(group)
            try:
                group.finish()
            except Exception as error:
                failure = failure or error
        if self._rounds is not None:
            self._rounds.end()
        if failure is not None:
            raise failure

    def end_step(self) -> None:
        """Record that the optimizer has used the reduced gradients."""
        self.use()
        if self._rounds is not None:
            self._rounds.end_step()

    def retire(self) -> None:
        """Record that the optimizer belongs to this job only."""
        if self._rounds is not None:
            self._rounds.retire()

    def end_agreement(self) -> None:
        """Wait for the latest agreement on layouts. The next one has the same name."""
        agreement, self._agreement = self._agreement, None
        if agreement is not None:
            agreement.wait()

    def use(self) -> None:
        """Mark the reduced gradients as used, so that the next step does not use them again."""
        for group in self.groups:
            group.use(self)

    def clear(self) -> None:
        """Reset all gradients except those in flight."""
        for group in self.groups:
            if group.state in (State.PARTIAL, State.REDUCED):
                group.clear()

    def look(self) -> None:
        """Record a reduced gradient that a backward pass is about to accumulate into.

        The pass' first gradient decides for all: unchanged ones are reduced again, too.
        """
        this_pass = torch._C._current_graph_task_id()
        if self._looked_in != this_pass:
            self._looked_in = this_pass
            kept = (group.kept() for group in self.groups)
            self.added_to = next((name for name in kept if name is not None), None)

    def begin_again(self) -> None:
        """Record a backward pass after the reduction. Gradients must be reduced again."""
        for group in self.groups:
            if group.state is State.REDUCED:
                group.clear()
        if self.added_to is not None and self.ready_in_backward:
            self._warn_once(
                "reduced again",
                "a further backward() before step() reduces the gradients again, which are already "
                f"the averages of the earlier pass (the first is that of {self.added_to}). The "
                "result is correct. To communicate only once, run all backward passes but the last "
                "within optimizer.no_sync(), or pass backward_passes_per_step to "
                "DistributedOptimizer",
            )

    def complete(self) -> None:
        """Record that a group has completed its backward passes."""
        if self._rounds is not None:
            self._rounds.begin()

    def all_started(self) -> bool:
        """Return whether each gradient is in flight or reduced."""
        new = self.adopt()
        return not new and all(
            group.in_flight or group.serves(self) or not group.active for group in self.groups
        )

    def all_reduced(self) -> bool:
        """Return whether nothing is left for step() to reduce."""
        return all(group.serves(self) or not group.active for group in self.groups)

    def stay_behind(self) -> None:
        """Record that a backward pass ends without averages, and warn."""
        missing = [
            gradient.name
            for group in self.groups
            if not group.in_flight
            for gradient in group.gradients
            if not gradient.passes and gradient.parameter.requires_grad
        ]
        where = f"here {missing[0]} had none" if missing else "on another rank one had none"
        self._warn_once(
            "incomplete",
            "backward() has returned without averages despite gradients_ready='backward', "
            "because not all parameters of the optimizer had a gradient on all ranks: "
            f"{where}. step() or synchronize() averages them. Freeze parameters that are not used",
        )

    def warn_of_change(self, group: GradientGroup) -> None:
        """Warn about a gradient that was changed while it was being reduced.

        Raises RuntimeError if the change may have become part of the reduction.
        """
        gradient = group.changed()
        if gradient is None:
            return
        remedy = (
            "call optimizer.synchronize() before changing gradients, and optimizer.step() within "
            "'with optimizer.skip_synchronize():'"
        )
        if not self.overlaps and not self.ready_in_backward:
            remedy += (
                ", or have backward() return averages by "
                "DistributedOptimizer(..., gradients_ready='backward')"
            )
        if gradient.in_place:
            raise RuntimeError(
                f"the gradient of {gradient.name} was changed between backward() and step(), while "
                "it was being reduced in place: the ranks may now have different gradients. To "
                f"clip gradients, for example, {remedy}"
            )
        self._warn_once(
            "changed",
            f"the gradient of {gradient.name} was changed between backward() and step(), while it "
            f"was being reduced: the change is lost. To clip gradients, for example, {remedy}",
        )

    def drop(self) -> None:
        """Reset the agreements when a job ends, because the next job may have other ranks."""
        self._agreement = None
        self._layouts_known = self.settings.sparse_as_dense or not self.groups

    def _warn_once(self, kind: str, text: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            warn_user(text)

    def _agree_on_layouts(self) -> None:
        """Agree with the other ranks on which gradients are sparse.

        A rank that has never had a gradient sends zeros, which must be sparse if the gradient is
        sparse on other ranks. The agreement is repeated until each gradient has existed on some
        rank. A rank that has had all of them does not wait for the others, unless it leaves the
        job.
        """
        gradients = [gradient for group in self.groups for gradient in group.gradients]
        for gradient in gradients:
            gradient.observe(self.settings.sparse_as_dense)
        layouts = torch.tensor([gradient.layout for gradient in gradients], dtype=torch.uint8)
        unknown = [gradient for gradient in gradients if gradient.layout is Layout.UNKNOWN]
        call = Call(self._layouts_name, self.settings.process_set, will_wait=bool(unknown))
        self.end_agreement()
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
                group.add_owner(self)
                self.groups.append(group)
        if not self.settings.sparse_as_dense:
            self._layouts_known = False
        everything = [parameter for parameters in missing for parameter in parameters]
        # A compressor that returns a new tensor copies the gradient in any case.
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
            group = GradientGroup(name, gradients, self.passes, self.settings)
            group.scale = self.scale
            group.add_owner(self)
            self.groups.append(group)
        self.by_first_use = list(self.groups)
        self._order_known = False
        for group in self.groups:
            group.forget_arrivals()


def _drop_all() -> None:
    for reducer in list(_all):
        reducer.drop()


def _end_agreements() -> None:
    """Complete the agreements that other ranks need. A failure has no effect here."""
    for reducer in list(_all):
        with contextlib.suppress(HorovodInternalError):
            reducer.end_agreement()


_all: weakref.WeakSet[GradientReducer] = weakref.WeakSet()
job.before_end(_end_agreements)
job.at_end(_drop_all)
