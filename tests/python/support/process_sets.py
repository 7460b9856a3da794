"""Process sets for tests, and ranks that verifiably call nothing for a while."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import combinations

import horoscale.common as hvd

SECONDS = 15


@contextmanager
def registered(ranks: hvd.ProcessSet | Sequence[int]) -> Iterator[hvd.ProcessSet]:
    """A set within the context, which all ranks enter and leave."""
    process_set = hvd.add_process_set(ranks)
    try:
        yield process_set
    finally:
        hvd.remove_process_set(process_set)


@contextmanager
def all_registered(lists_of_ranks: Sequence[Sequence[int]]) -> Iterator[list[hvd.ProcessSet]]:
    """Several sets within the context."""
    with ExitStack() as stack:
        yield [stack.enter_context(registered(ranks)) for ranks in lists_of_ranks]


def some_sets() -> list[list[int]]:
    """Overlapping sets, none of which has all ranks."""
    everyone = list(range(hvd.size()))
    candidates = [everyone[::2], everyone[1:], everyone[:-1], everyone[-1:]]
    distinct: list[list[int]] = []
    for ranks in candidates:
        if ranks and ranks != everyone and ranks not in distinct:
            distinct.append(ranks)
    return distinct


def all_sets(most: int = 1000) -> list[list[int]]:
    """The sets that the ranks can form, except for the global one, smallest first."""
    everyone = range(hvd.size())
    sizes = range(1, hvd.size())
    return [list(ranks) for size in sizes for ranks in combinations(everyone, size)][:most]


@contextmanager
def silent(rank: int) -> Iterator[None]:
    """A context in which `rank` does nothing: it waits, outside of horoscale, for the others' end.

    So what the others do in it needs no call by that rank.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = hvd.broadcast_object(server.getsockname()[1], root_rank=rank)
        if hvd.rank() != rank:
            with socket.create_connection(("127.0.0.1", port), SECONDS):  # closed at the end
                yield
            return
        server.settimeout(SECONDS)
        for _ in range(hvd.size() - 1):
            with server.accept()[0] as others:
                others.settimeout(SECONDS)
                assert others.recv(1) == b""
        yield
