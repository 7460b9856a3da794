"""TiedParameter: one parameter that stages of several ranks have copies of."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from horoscale.common.batches import P2POp
from horoscale.common.process_sets import ProcessSet
from horoscale.torch.messages import batch, recv, send


class TiedParameter:
    """This rank's copies of a tied parameter, which stay equal to those of the other ranks.

    Their gradients are summed in the order of the ranks, alike on all of them: same bits.
    """

    def __init__(
        self,
        copies: Sequence[nn.Parameter],
        ranks: Sequence[int],
        rank: int,
        tag: int,
        process_set: ProcessSet | None,
    ) -> None:
        """`ranks` are the global ranks that have copies, this one among them."""
        self._copies = list(copies)
        self._ranks = list(ranks)
        self._rank = rank
        self._tag = tag
        self._process_set = process_set
        self._before: list[torch.Tensor | None] = []

    def spread_value(self) -> None:
        """Give all copies the value of the first one. All ranks that have copies call it."""
        with torch.no_grad():
            value = self._copies[0].detach()
            if self._process_set is not None:
                if self._rank != self._ranks[0]:
                    value = recv(
                        torch.empty_like(value), self._ranks[0], self._tag, self._process_set
                    )
                else:
                    for other in self._ranks[1:]:
                        send(value, other, self._tag, self._process_set)
            for copy in self._copies:
                copy.copy_(value)

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
        if self._process_set is None:
            return own
        others = [rank for rank in self._ranks if rank != self._rank]
        parts = {rank: torch.empty_like(own) for rank in others} | {self._rank: own}
        where = (self._tag, self._process_set)
        batch(
            [P2POp(send, own, rank, *where) for rank in others]
            + [P2POp(recv, parts[rank], rank, *where) for rank in others]
        )
        total = parts[self._ranks[0]].clone()
        for rank in self._ranks[1:]:
            total += parts[rank]
        return total
