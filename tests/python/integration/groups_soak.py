"""One rank of a soak of torch.distributed: random operations of overlapping groups, next to Gloo.

    horoscalerun -np 4 python groups_soak.py --seed 7 --operations 1000

In each round, a rank starts several asynchronous operations on horoscale's groups, in its own order
of the groups, and waits for them in another order. Then Gloo's groups of the same ranks run the
same operations one by one, and the results must be equal bit for bit: values are small integers,
whose sums do not depend on the order. The seed determines everything. A rank without progress for a
minute exits with the tracebacks of its threads.
"""

from __future__ import annotations

import argparse
import faulthandler
import random
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

SECONDS_WITHOUT_PROGRESS = 60
MOST_AT_ONCE = 8
BACKENDS = ("horoscale", "gloo")
DTYPES = (torch.float32, torch.float64, torch.int32, torch.int64, torch.uint8, torch.float16)
SIZES = (1, 2, 3, 7, 64, 1000, 5000, 70_000)
Tensors = Sequence[torch.Tensor]


@dataclass(frozen=True)
class Pair:
    """A group of horoscale's, and Gloo's with the same ranks in the same order."""

    members: Sequence[int]
    ours: Any
    theirs: Any


@dataclass(frozen=True)
class Call:
    """One operation, whose random draws are equal for all backends and ranks."""

    kind: Callable[[Call, Any, random.Random], tuple[list[Any], Tensors]]
    pair: Pair
    seed: int
    rank: int

    def begin(self, group: Any) -> tuple[list[Any], Tensors]:
        """Start it on a group; return its works, and the tensors that will hold the results."""
        return self.kind(self, group, random.Random(self.seed))

    @property
    def size(self) -> int:
        return len(self.pair.members)

    @property
    def place(self) -> int:
        """This rank's number in the group."""
        return list(self.pair.members).index(self.rank)

    def values(self, count: int, dtype: torch.dtype, part: int = 0) -> torch.Tensor:
        """This rank's input."""
        generator = torch.Generator().manual_seed(self.seed * 97 + self.rank * 11 + part)
        return torch.randint(0, 4, (count,), generator=generator).to(dtype)


def all_reduce(call: Call, group: Any, rng: random.Random) -> tuple[list[Any], Tensors]:
    dtype = rng.choice(DTYPES)
    names = ["SUM", "PRODUCT", "MIN", "MAX"]
    names += [] if dtype.is_floating_point else ["BAND", "BOR", "BXOR"]
    tensor = call.values(rng.choice(SIZES), dtype)
    op = getattr(dist.ReduceOp, rng.choice(names))
    return [dist.all_reduce(tensor, op=op, group=group, async_op=True)], [tensor]


def all_reduce_coalesced(call: Call, group: Any, rng: random.Random) -> tuple[list[Any], Tensors]:
    dtype = rng.choice(DTYPES)
    tensors = [call.values(rng.choice(SIZES), dtype, part) for part in range(rng.randint(1, 4))]
    return [dist.all_reduce_coalesced(tensors, group=group, async_op=True)], tensors


def broadcast(call: Call, group: Any, rng: random.Random) -> tuple[list[Any], Tensors]:
    tensor = call.values(rng.choice(SIZES), rng.choice(DTYPES))
    source = rng.choice(call.pair.members)
    return [dist.broadcast(tensor, src=source, group=group, async_op=True)], [tensor]


def reduce(call: Call, group: Any, rng: random.Random) -> tuple[list[Any], Tensors]:
    tensor = call.values(rng.choice(SIZES), rng.choice(DTYPES))
    root = rng.choice(call.pair.members)
    work = dist.reduce(tensor, dst=root, group=group, async_op=True)
    return [work], [tensor] if call.rank == root else []


def all_gather(call: Call, group: Any, rng: random.Random) -> tuple[list[Any], Tensors]:
    count, dtype = rng.choice(SIZES), rng.choice(DTYPES)
    outputs = [torch.zeros(count, dtype=dtype) for _ in range(call.size)]
    work = dist.all_gather(outputs, call.values(count, dtype), group=group, async_op=True)
    return [work], outputs


def all_gather_single(call: Call, group: Any, rng: random.Random) -> tuple[list[Any], Tensors]:
    count, dtype = rng.choice(SIZES), rng.choice(DTYPES)
    output, own = torch.zeros(count * call.size, dtype=dtype), call.values(count, dtype)
    return [dist.all_gather_into_tensor(output, own, group=group, async_op=True)], [output]


def reduce_scatter_single(call: Call, group: Any, rng: random.Random) -> tuple[list[Any], Tensors]:
    count, dtype = rng.choice(SIZES), rng.choice(DTYPES)
    output, own = torch.zeros(count, dtype=dtype), call.values(count * call.size, dtype)
    return [dist.reduce_scatter_tensor(output, own, group=group, async_op=True)], [output]


def all_to_all_single(call: Call, group: Any, rng: random.Random) -> tuple[list[Any], Tensors]:
    dtype = rng.choice(DTYPES)
    rows = [[rng.choice(SIZES) for _ in range(call.size)] for _ in range(call.size)]
    given = rows[call.place]
    wanted = [row[call.place] for row in rows]
    output, own = torch.zeros(sum(wanted), dtype=dtype), call.values(sum(given), dtype)
    work = dist.all_to_all_single(output, own, wanted, given, group=group, async_op=True)
    return [work], [output]


def gather(call: Call, group: Any, rng: random.Random) -> tuple[list[Any], Tensors]:
    count, dtype, root = rng.choice(SIZES), rng.choice(DTYPES), rng.choice(call.pair.members)
    outputs = [torch.zeros(count, dtype=dtype) for _ in range(call.size)]
    lists = outputs if call.rank == root else None
    work = dist.gather(call.values(count, dtype), lists, dst=root, group=group, async_op=True)
    return [work], lists or []


def scatter(call: Call, group: Any, rng: random.Random) -> tuple[list[Any], Tensors]:
    count, dtype, root = rng.choice(SIZES), rng.choice(DTYPES), rng.choice(call.pair.members)
    inputs = [call.values(count, dtype, part) for part in range(call.size)]
    output = torch.zeros(count, dtype=dtype)
    lists = inputs if call.rank == root else None
    return [dist.scatter(output, lists, src=root, group=group, async_op=True)], [output]


def ring(call: Call, group: Any, rng: random.Random) -> tuple[list[Any], Tensors]:
    count, dtype, tag = rng.choice(SIZES), rng.choice(DTYPES), rng.randint(0, 3)
    members, place = call.pair.members, call.place
    output = torch.zeros(count, dtype=dtype)
    following, before = members[(place + 1) % call.size], members[place - 1]
    own = call.values(count, dtype)
    works = [
        dist.isend(own, following, group=group, tag=tag),
        dist.irecv(output, before, group=group, tag=tag),
    ]
    return works, [output, own]


def barrier(call: Call, group: Any, rng: random.Random) -> tuple[list[Any], Tensors]:
    return [dist.barrier(group=group, async_op=True)], []


KINDS = (
    *(all_reduce, all_reduce_coalesced, broadcast, reduce, all_gather, all_gather_single),
    *(reduce_scatter_single, all_to_all_single, gather, scatter, ring, barrier),
)


def groups(size: int) -> list[Pair]:
    """Overlapping groups, some with the same ranks, one in another order."""
    whole = list(range(size))
    lists = [whole, whole, whole[:-1], whole[1:], whole[::-1]]
    lists += [[one, (one + 1) % size] for one in whole] + [[0, size // 2], [0, size // 2]]
    return [
        Pair(one, *(dist.new_group(one, backend=kind, sort_ranks=False) for kind in BACKENDS))
        for one in lists
    ]


def in_another_order(calls: Sequence[Call], rng: random.Random) -> list[Call]:
    """The calls, shuffled, but with those of each group in order."""
    order = list(calls)
    rng.shuffle(order)
    left: dict[int, list[Call]] = {}
    for call in calls:
        left.setdefault(id(call.pair), []).append(call)
    return [left[id(call.pair)].pop(0) for call in order]


def play(pairs: Sequence[Pair], rng: random.Random, own: random.Random) -> int:
    """Run a round, check the results on this rank, and return the number of operations."""
    rank = dist.get_rank()
    drawn = [
        Call(rng.choice(KINDS), rng.choice(pairs), rng.randrange(1 << 30), rank)
        for _ in range(rng.randint(1, MOST_AT_ONCE))
    ]
    mine = [call for call in drawn if rank in call.pair.members]
    begun = [(call, *call.begin(call.pair.ours)) for call in in_another_order(mine, own)]
    for _, works, _ in own.sample(begun, len(begun)):
        for work in works:
            work.wait()
    results = {id(call): tensors for call, _, tensors in begun}
    for call in mine:
        works, expected = call.begin(call.pair.theirs)
        for work in works:
            work.wait()
        for got, wanted in zip(results[id(call)], expected, strict=True):
            if not torch.equal(got, wanted):
                where = f"{call.kind.__name__} of ranks {call.pair.members}, seed {call.seed}"
                raise AssertionError(f"{where}: {got} and Gloo's {wanted}")
    return len(drawn)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--operations", type=int, default=1000)
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # from functions that PyTorch has deprecated
    torch.set_num_threads(1)
    dist.init_process_group("horoscale", init_method="horoscale://")
    pairs = groups(dist.get_world_size())
    rng = random.Random(options.seed)
    own = random.Random(options.seed * 1000 + dist.get_rank())
    done = 0
    while done < options.operations:
        faulthandler.dump_traceback_later(SECONDS_WITHOUT_PROGRESS, exit=True)
        done += play(pairs, rng, own)
    faulthandler.cancel_dump_traceback_later()
    dist.destroy_process_group()
    print(f"{done} operations", flush=True)


if __name__ == "__main__":
    main()
