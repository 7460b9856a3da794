"""One rank of a soak: random collectives and messages, in a different order on each rank.

    horoscalerun -np 4 python soak.py --seed 7 --operations 1000

An iteration starts several asynchronous operations of the global set and of overlapping sets, named
and unnamed, and messages. Then follow blocking exchanges (random_messages.py explains why they
can't deadlock), and waits in another order. Some iterations end with a barrier or a join. All
results are checked. The seed determines everything. A rank without progress for a minute exits with
the tracebacks of its threads.
"""

from __future__ import annotations

import argparse
import faulthandler
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from types import ModuleType

import numpy as np
from random_messages import Drawing, Finish, Message, begin
from random_operations import Members, Operation, draw_of, reduced

import horoscale.numpy as hvd

SECONDS_WITHOUT_PROGRESS = 60
STEADY_NAMES = 40  # reused names, each with its operation


@dataclass(frozen=True)
class Collective:
    """An operation of a set, and the name under which all members start it."""

    operation: Operation
    name: str | None
    members: Members

    def begin(self, rank: int, where: str) -> list[Finish]:
        """Start it on a member."""
        member = list(self.members.ranks).index(rank)
        handle = self.operation.start(member, self.name)

        def finish() -> None:
            try:
                self.operation.check(member, hvd.synchronize(handle))
            except Exception as error:
                what = f"{where}, {self.name} of {self.members.process_set}"
                raise RuntimeError(f"{what}: {self.operation.description}") from error

        return [finish]


class Soak:
    """The operations of one seed, the same on all ranks, and this rank's part in them."""

    def __init__(
        self, seed: int, sets: Sequence[hvd.ProcessSet], bindings: Sequence[ModuleType]
    ) -> None:
        self._rank, self._size = hvd.rank(), hvd.size()
        self._common = np.random.default_rng(seed)  # the same on all ranks
        self._own = np.random.default_rng([seed, self._rank])  # the order of this rank
        self._sets = [Members.all_of(self._size)] * 2  # half of all operations
        self._sets += [Members(one, one.ranks or ()) for one in sets]
        self._steady: dict[str, Operation] = {}
        self._messages = Drawing(self._common, bindings)

    def iterate(self, iteration: int) -> int:
        """Run one iteration; return its number of operations over all ranks."""
        where = f"iteration {iteration}"
        collectives = self._draw_collectives(iteration)
        messages = [
            self._messages.asynchronous(self._members()) for _ in range(self._common.integers(0, 7))
        ]
        exchanges = [
            self._messages.blocking(self._members()) for _ in range(self._common.integers(0, 4))
        ]
        begins: list[Callable[[], list[Finish]]] = [
            partial(collectives[k].begin, self._rank, where) for k in self._order(collectives)
        ]
        begins = self._merged(begins, self._begins_of(messages))
        finishes = [finish for one in begins for finish in one()]
        for exchange in exchanges:
            if self._rank in exchange.ranks:
                exchange.run(self._rank)
        for k in self._own.permutation(len(finishes)):
            finishes[k]()
        chance = self._common.random()
        if chance < 0.05:
            hvd.barrier()
        elif chance < 0.1:
            self._join(iteration)
        return len(collectives) + len(messages) + len(exchanges)

    def _members(self) -> Members:
        return self._sets[self._common.integers(len(self._sets))]

    def _draw_collectives(self, iteration: int) -> list[Collective]:
        batch: dict[str, Collective] = {}
        for k in range(self._common.integers(1, 9)):
            chance, place = self._common.random(), self._common.integers(len(self._sets))
            members = self._sets[place]
            if chance < 0.4:
                name = f"steady.{place}.{self._common.integers(STEADY_NAMES)}"
                # Sometimes a known name gets another operation, which caches must detect.
                if name not in self._steady or self._common.random() < 0.05:
                    self._steady[name] = draw_of(self._common, members)
                batch[name] = Collective(self._steady[name], name, members)
            else:
                name = f"fresh.{iteration}.{k}"
                given = name if chance < 0.8 else None
                batch[name] = Collective(draw_of(self._common, members), given, members)
        return list(batch.values())

    def _order(self, batch: Sequence[Collective]) -> list[int]:
        """A random order for this rank that keeps unnamed operations in sequence."""
        own = [k for k, one in enumerate(batch) if self._rank in one.members.ranks]
        order = [own[k] for k in self._own.permutation(len(own))]
        unnamed = iter(sorted(k for k in order if batch[k].name is None))
        return [next(unnamed) if batch[k].name is None else k for k in order]

    def _begins_of(
        self, messages: Sequence[tuple[Message, bool]]
    ) -> list[Callable[[], list[Finish]]]:
        """A random order that keeps messages with the same ranks and tag in sequence."""
        later: dict[tuple[object, ...], list[Callable[[], list[Finish]]]] = {}
        for message, from_any in messages:
            begins = later.setdefault(message.key, [])
            begins.append(partial(begin, message, from_any, self._rank))
        keys = [key for key, begins in later.items() for _ in begins]
        return [later[keys[k]].pop(0) for k in self._own.permutation(len(keys))]

    def _merged(
        self, one: list[Callable[[], list[Finish]]], other: list[Callable[[], list[Finish]]]
    ) -> list[Callable[[], list[Finish]]]:
        """Interleave both lists, keeping the order within each."""
        firsts = set(self._own.permutation(len(one) + len(other))[: len(one)].tolist())
        one_by_one, the_others = iter(one), iter(other)
        places = range(len(one) + len(other))
        return [next(one_by_one if place in firsts else the_others) for place in places]

    def _join(self, iteration: int) -> None:
        """Some ranks run out of data, and the others continue without them."""
        absent = set(self._common.permutation(self._size)[: self._common.integers(self._size)])
        inputs = self._common.standard_normal((self._size, 1000)).astype(np.float32)
        active = [r for r in range(self._size) if r not in absent]
        zeros = np.zeros_like(inputs[0])
        if self._rank in active:
            result = hvd.allreduce(inputs[self._rank], op=hvd.Average, name=f"left.{iteration}")
            # The absent ranks contribute zeros, and count.
            contributions = [inputs[r] if r in active else zeros for r in range(self._size)]
            assert np.array_equal(result, reduced(contributions, hvd.Average))
        last = hvd.join()
        # The others' operations required the absent ranks to have joined.
        assert last in active, f"join() returned {last}; the ranks that went on were {active}"


def overlapping_sets(size: int) -> list[hvd.ProcessSet]:
    """Sets such that each rank is in several."""
    some = [range(2), range(1, size), range(0, size, 2), range(max(1, size - 1))]
    lists = dict.fromkeys(tuple(ranks) for ranks in some if 1 < len(ranks) < size)
    return [hvd.ProcessSet(ranks) for ranks in lists]


def main() -> None:
    """Run the soak."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--operations", type=int, required=True)
    parser.add_argument("--ranks", type=int, default=4, help="how many there are")
    parser.add_argument("--torch", action="store_true", help="messages of PyTorch's tensors, too")
    arguments = parser.parse_args()
    bindings: list[ModuleType] = [hvd]
    if arguments.torch:
        import horoscale.torch

        bindings.append(horoscale.torch)
    sets = overlapping_sets(arguments.ranks)
    hvd.init(process_sets=sets)
    soak = Soak(arguments.seed, sets, bindings)
    iterations = operations = 0
    while operations < arguments.operations:
        faulthandler.dump_traceback_later(SECONDS_WITHOUT_PROGRESS, exit=True)
        operations += soak.iterate(iterations)
        iterations += 1
    hvd.barrier()  # messages between others fail when a rank leaves
    faulthandler.cancel_dump_traceback_later()
    print(f"{iterations} iterations, {operations} operations")
    hvd.shutdown()


if __name__ == "__main__":
    main()
