"""Ranks that are tasks of an engine, in processes that the engine has started.

The engine's side queries the location of each task, assigns ranks (`place_tasks`), has one process
serve the job's store (`horoscale.runner.rendezvous`), and passes each task its `variables` and the
pickled function (`horoscale.runner.task.Task`). The task runs `perform_rank`. `values` unpickles
the tasks' results.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from typing import Any

from horoscale.runner.environment import rank_environment, rendezvous_environment
from horoscale.runner.hosts import Host, Place, place_ranks
from horoscale.runner.outcome import Outcome, raise_first


def place_tasks(nodes: Sequence[str]) -> list[Place]:
    """Assign ranks to tasks, where task i runs on nodes[i]; return the places by task.

    The ranks of a node are consecutive. Nodes are in order of first occurrence.
    """
    hosts = [Host(node, nodes.count(node)) for node in dict.fromkeys(nodes)]
    left: dict[str, list[Place]] = {host.name: [] for host in hosts}
    for place in place_ranks(hosts, len(nodes)):
        left[place.hostname].append(place)
    return [left[node].pop(0) for node in nodes]


def variables(place: Place, rendezvous: str, secret: str) -> dict[str, str]:
    """Return the variables that tell a process its rank, and how to find the others."""
    return {**rank_environment(place), **rendezvous_environment(rendezvous, secret)}


def perform_rank(task: bytes, first: Sequence[Any] = ()) -> bytes:
    """Run the pickled task on this rank, with `first` before its arguments.

    Returns its pickled Outcome. If the task raises, the rank leaves its job and its peers are told
    why.
    """
    from horoscale.common import job
    from horoscale.runner.task import perform

    outcome, error = perform(task, first)
    if error is not None:
        job.stop(f"{type(error).__name__}: {error}"[:300])
    return pickle.dumps(outcome)


def values(outcomes: Mapping[int, Outcome], size: int, caller: str) -> list[Any]:
    """Return the ranks' results by rank. `outcomes` are in the order in which they arrived.

    Raises the exception of the first rank that raised, caused by a RankError with its rank and
    traceback, and RuntimeError if a rank returned nothing.
    """
    failures = [(rank, outcome) for rank, outcome in outcomes.items() if outcome.failed]
    if failures:
        raise_first(failures, caller)
    missing = [rank for rank in range(size) if rank not in outcomes]
    if missing:
        names = ", ".join(map(str, missing))
        raise RuntimeError(f"{caller}: ranks that ended without a result: {names}")
    return [pickle.loads(outcomes[rank].pickled or b"") for rank in range(size)]
