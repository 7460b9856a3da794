"""balance(): batch sizes for a DataPlan that follow the ranks' speeds."""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

from horoscale import _journal
from horoscale._core import DataType, OpKind, ReduceOp, TensorArg, address_of
from horoscale.common.job import current_runtime
from horoscale.elastic.balancing import balanced, rebalanced
from horoscale.elastic.membership import membership

_NAME = "elastic.balance"


def balance(
    batch_size: int, *, most: int | None = None, every: int = 10, hysteresis: float = 0.05
) -> Balance:
    """Adapt the ranks' batch sizes to their speeds, so that none waits for the slowest.

        plan = hvd.elastic.DataPlan(len(samples), batch_size=hvd.elastic.balance(64))
        state = hvd.elastic.TorchState(model, optimizer, plan=plan)

    The global batch size stays `batch_size` times the number of ranks. Every few steps, at a commit
    of the state that contains the plan, its division among the ranks is reconsidered. The decision
    is based on each rank's compute time per sample: the time between two shares of the plan,
    without the time spent waiting for horoscale's operations.

    Weight the gradients by the samples: see Share.weight.

    Args:
        batch_size: samples per rank and step, on average.
        most: the maximum number of samples of one rank, to bound its memory. None: no limit.
        every: the minimum number of steps between two decisions.
        hysteresis: sizes change only if that shortens a step by more than this fraction.

    Raises ValueError for numbers that are out of range.
    """
    return Balance(batch_size, most=most, every=every, hysteresis=hysteresis)


class Balance:
    """The adaptive batch sizes returned by balance()."""

    def __init__(self, batch_size: int, *, most: int | None, every: int, hysteresis: float) -> None:
        """Start with equal sizes."""
        if batch_size < 1 or (most is not None and most < batch_size):
            raise ValueError(
                f"balance({batch_size}, most={most}): expected 1 <= batch_size <= most"
            )
        if every < 1 or not 0.0 <= hysteresis < 1.0:
            raise ValueError(f"balance(): every={every} >= 1, 0 <= hysteresis={hysteresis} < 1")
        self.batch_size = batch_size
        self.most = most
        self.every = every
        self.hysteresis = hysteresis
        # By rank, equal on all ranks. A place is a slot on a host: a replacement process is assumed
        # to be as fast as its predecessor.
        self._places: list[str] = []
        self._sizes: list[int] = []
        self._costs: list[float] = []
        self._steps = 0  # since the last decision
        # This rank's own costs per sample since then.
        self._measured: list[float] = []
        self._given: float | None = None

    def sizes(self, ranks: int) -> list[int]:
        """Return the current batch size of each of `ranks` ranks."""
        places = _places(ranks)
        if places != self._places:
            costs = dict(zip(self._places, self._costs, strict=True))
            self._places = places
            self._costs = [costs.get(place, 0.0) for place in places]
            self._sizes = balanced(self.batch_size * ranks, self._costs, self.most)
            self._measured.clear()
        return list(self._sizes)

    @contextmanager
    def measuring(self, samples: int) -> Iterator[None]:
        """Measure a step with `samples` samples on this rank. All ranks measure the same steps."""
        self._steps += 1
        self._given = None
        runtime = current_runtime()
        began, waited = time.monotonic(), runtime.waiting_seconds()
        yield  # a step that raises is not measured
        seconds = time.monotonic() - began - (runtime.waiting_seconds() - waited)
        seconds = seconds if self._given is None else self._given
        if samples and seconds > 0.0:
            self._measured.append(seconds / samples)

    def measured(self, seconds: float) -> None:
        """Set this rank's compute time in this step, if you can measure it more precisely.

        Call it in each step, for example with the time between two CUDA events. The host's clock
        cannot tell what a GPU waits for or what TensorFlow executes.
        """
        self._given = seconds

    def decide(self) -> None:
        """Change the sizes if a decision is due and worthwhile. Collective, at a commit.

        Raises HorovodInternalError if a rank failed.
        """
        if self._steps < self.every or len(self._sizes) < 2:
            return
        costs = _gather(median(self._measured) if self._measured else 0.0)
        self._steps = 0
        self._measured.clear()
        if len(costs) == len(self._costs):
            self._costs = [new or old for new, old in zip(costs, self._costs, strict=True)]
            before = self._sizes
            self._sizes = rebalanced(before, self._costs, self.hysteresis, self.most)
            if self._sizes != before and current_runtime().topology.rank == 0:
                _journal.note("balance", f"batch sizes by rank are now {_listed(self._sizes)}")

    def state_dict(self) -> dict[str, Any]:
        """Return the values for a commit."""
        return {
            "places": list(self._places),
            "sizes": list(self._sizes),
            "costs": list(self._costs),
            "steps": self._steps,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the values of state_dict()."""
        self._places = list(state_dict["places"])
        self._sizes = list(state_dict["sizes"])
        self._costs = list(state_dict["costs"])
        self._steps = state_dict["steps"]
        self._measured.clear()


def _listed(sizes: list[int]) -> str:
    return ", ".join(map(str, sizes[:16])) + (", …" if len(sizes) > 16 else "")


def _places(ranks: int) -> list[str]:
    view = membership().view
    if view is None or view.size != ranks:
        return [str(rank) for rank in range(ranks)]
    return [member.rsplit(":", 1)[0] for member in view.members]


def _gather(own: float) -> list[float]:
    """Return all ranks' values by rank."""
    runtime = current_runtime()
    given = array("d", [0.0] * runtime.topology.size)
    given[runtime.topology.rank] = own
    address = address_of(given)
    runtime.enqueue(
        OpKind.ALLREDUCE,
        tensors=[TensorArg(address, address, DataType.FLOAT64, (len(given),))],
        name=_NAME,
        reduce_op=ReduceOp.MAX,
        will_wait=True,
        keep_alive=given,
    ).wait()
    return list(given)
