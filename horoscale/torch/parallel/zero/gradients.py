"""Gradients: those of a sharded model on their way to the ranks that own them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence

import torch

from horoscale.torch.parallel.zero.bucket import Bucket, Rooms


class Gradients:
    """Takes each gradient that autograd has computed to its bucket, and sends full buckets.

    All ranks send their buckets in one order, round after round: a round is a backward pass, or as
    many as are counted together. So a gradient that a rank does not have holds up those after it
    until synchronize().
    """

    def __init__(self, buckets: Sequence[Bucket], passes: int) -> None:
        """Follow the parameters of buckets, which are sent in this order."""
        self.buckets = list(buckets)
        self.paused = False  # backward passes don't count
        self._passes = passes
        self._rooms = Rooms()
        self._next = 0  # the bucket that is sent next
        self._rounds = 0  # that are complete, since the last step
        self._used = False  # by a step, and nothing has come since
        self._arrivals: dict[tuple[int, int], int] = {}  # of each gradient, since the last step
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(self._hook(number, index))  # type: ignore[no-untyped-call]
            for number, bucket in enumerate(self.buckets)
            for index, parameter in enumerate(bucket.shards.parameters)
        ]

    @property
    def outstanding(self) -> bool:
        """Whether this rank has gradients that synchronize() would have to reduce or wait for."""
        fresh = any(bucket.fresh for bucket in self.buckets)
        return fresh or bool(self._rooms.sent) or self._next != 0

    def synchronize(self) -> None:
        """Reduce what is not reduced yet. Collective, the first time before a step.

        Every rank is to have had as many backward passes. Raises ValueError for a parameter that
        was frozen or converted since the model was sharded, or given a `grad`.
        """
        self._check()
        if self._used:
            return
        passes = max(self._arrivals.values(), default=0)
        rounds = max(1, -(-passes // self._passes))
        while self._rounds < rounds or self._next or any(one.fresh for one in self.buckets):
            self._send_next()
        self.finish()

    def finish(self) -> None:
        """Wait for what was sent; raises OffloadError if it can't be written to a disk."""
        while self._rooms.sent:
            self._rooms.sent[0].finish(self._rooms)
        self._rooms.settle()

    def begin_step(self) -> None:
        """Reduce what is not reduced yet; zeros, where no backward pass has left anything."""
        self._used = False
        self.synchronize()

    def end_step(self) -> None:
        """Take note that a step has used the gradients, which stay as they are until clear()."""
        self._rounds = 0
        self._arrivals.clear()
        self._used = True

    def clear(self) -> None:
        """Forget all gradients. Collective where some are outstanding."""
        if self.outstanding:
            self.synchronize()
        self._rooms.settle()
        for bucket in self.buckets:
            bucket.clear()
        self.end_step()
        self._used = False

    def remove(self) -> None:
        """Leave the parameters alone from now on."""
        for hook in self._hooks:
            hook.remove()

    def _hook(self, number: int, index: int) -> Callable[[torch.Tensor], None]:
        weak = weakref.ref(self)  # parameters outlive what follows them

        def arrive(parameter: torch.Tensor) -> None:
            gradients = weak()
            if gradients is not None:
                gradients._arrive(number, index, parameter)

        return arrive

    def _arrive(self, number: int, index: int, parameter: torch.Tensor) -> None:
        bucket = self.buckets[number]
        gradient, parameter.grad = parameter.grad, None
        assert gradient is not None
        if gradient.layout != torch.strided:
            raise ValueError(
                f"the gradient of {bucket.shards.places[index].name} is sparse: only dense ones "
                "can be sharded (nn.Embedding(sparse=False))"
            )
        counts = not self.paused
        self._used = False
        bucket.take(index, gradient, counts, self._rooms)
        if counts:
            key = number, index
            self._arrivals[key] = self._arrivals.get(key, 0) + 1
            while self.buckets[self._next].complete:
                self._send_next()

    def _send_next(self) -> None:
        self.buckets[self._next].send(self._rooms)
        self._next = (self._next + 1) % len(self.buckets)
        self._rounds += self._next == 0

    def _check(self) -> None:
        for bucket in self.buckets:
            for place, parameter in zip(
                bucket.shards.places, bucket.shards.parameters, strict=True
            ):
                if parameter.grad is not None:
                    raise ValueError(
                        f"{place.name}.grad was set, but backward() takes gradients of sharded "
                        "parameters to their optimizer. Parameters that a pipeline ties to those "
                        "of other stages can't be sharded"
                    )
                if parameter.dtype != bucket.shards.dtype:
                    raise ValueError(
                        f"{place.name} was converted to {parameter.dtype} after par.shard(), and "
                        "is not in the shards any more: convert the model before, or give dtype="
                    )
                if not parameter.requires_grad:
                    raise ValueError(
                        f"{place.name} was frozen after par.shard(): freeze parameters before, so "
                        "that the optimizer leaves them as they are"
                    )
