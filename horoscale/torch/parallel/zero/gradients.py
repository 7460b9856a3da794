"""Gradients: moves the gradients of a sharded model to the ranks that own them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence

import torch

from horoscale.torch.parallel.zero.bucket import Bucket, Rooms


class Gradients:
    """Copies each gradient from autograd to its bucket, and sends complete buckets.

    All ranks send their buckets in the same order, round after round. A round is a backward pass,
    or as many as are accumulated. A missing gradient on a rank therefore delays later buckets until
    synchronize().
    """

    def __init__(self, buckets: Sequence[Bucket], passes: int) -> None:
        """Install hooks on the parameters of buckets, which are sent in this order."""
        self.buckets = list(buckets)
        self.paused = False  # whether backward passes are not counted
        self._passes = passes
        self._rooms = Rooms()
        self._next = 0  # the bucket to send next
        self._rounds = 0  # complete rounds since the last step
        self._used = False  # whether a step has used the gradients, and no new ones have arrived
        self._arrivals: dict[tuple[int, int], int] = {}  # by gradient, since the last step
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(self._hook(number, index))  # type: ignore[no-untyped-call]
            for number, bucket in enumerate(self.buckets)
            for index, parameter in enumerate(bucket.shards.parameters)
        ]

    @property
    def outstanding(self) -> bool:
        """Whether synchronize() would have to reduce gradients or wait for them on this rank."""
        fresh = any(bucket.fresh for bucket in self.buckets)
        return fresh or bool(self._rooms.sent) or self._next != 0

    def synchronize(self) -> None:
        """Reduce gradients that are not reduced yet. Collective in the first call before a step.

        Every rank must have run the same number of backward passes. Raises ValueError if a
        parameter was frozen or converted after the model was sharded, or was given a `grad`.
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
        """Wait for reductions; raise OffloadError if a result can't be written to a disk."""
        while self._rooms.sent:
            self._rooms.sent[0].finish(self._rooms)
        self._rooms.settle()

    def begin_step(self) -> None:
        """Reduce gradients that are not reduced yet, or zeros if there was no backward pass."""
        self._used = False
        self.synchronize()

    def end_step(self) -> None:
        """Record that a step has used the gradients, which remain until clear()."""
        self._rounds = 0
        self._arrivals.clear()
        self._used = True

    def clear(self) -> None:
        """Clear all gradients. Collective if some are outstanding."""
        if self.outstanding:
            self.synchronize()
        self._rooms.settle()
        for bucket in self.buckets:
            bucket.clear()
        self.end_step()
        self._used = False

    def remove(self) -> None:
        """Remove the hooks from the parameters."""
        for hook in self._hooks:
            hook.remove()

    def _hook(self, number: int, index: int) -> Callable[[torch.Tensor], None]:
        weak = weakref.ref(self)  # parameters may outlive this object

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
