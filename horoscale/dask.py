"""Jobs on Dask: a function on ranks, one for each worker of a cluster.

    from distributed import Client
    import horoscale.dask

    accuracies = horoscale.dask.run(Client(), train)

The ranks are processes of their own, which the launcher starts through tasks on the workers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from horoscale.engines.agents import job
from horoscale.engines.agents.agent import Invitation, Seat, serve
from horoscale.engines.agents.driver import Agents, AgentsError
from horoscale.runner import reach

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["DaskError", "run"]

DEFAULT_START_TIMEOUT_S = 60.0
_END_S = 15.0  # for agents that were sent home, and what they run


class DaskError(RuntimeError):
    """Dask is not there, or can't run such a job; the message is for the user."""


def run(
    client: Client,
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    num_proc: int | None = None,
    start_timeout: float | None = None,
    env: Mapping[str, str] | None = None,
    nics: Iterable[str] | None = None,
    verbose: int = 1,
    options: Sequence[str] = (),
) -> list[Any]:
    """Calls `fn(*args, **kwargs)` on ranks, one for each worker, and returns what it gave, by rank.

    A task that is pinned to its worker holds a thread there as long as the job takes. The workers
    of one machine are one host, whose ranks share memory. Workers need a connection to this
    process, and to each other's machines.

    Args:
        client: of the cluster.
        fn: called on every rank, where it calls `hvd.init()`; may be a lambda.
        args: its positional arguments.
        kwargs: its keyword arguments.
        num_proc: how many workers to use; all that there are if None.
        start_timeout: seconds for the tasks to start (default 60).
        env: variables of the ranks, beside this process' own that go to other hosts.
        nics: network interfaces of this machine that workers reach.
        verbose: 2 tells what the launcher does.
        options: further flags of horoscalerun, such as ["--timeline-filename", "trace.json"].

    Raises:
        The exception of the first rank that raised, caused by a RankError with rank and traceback.
        RuntimeError: a rank ended without raising, such as by a signal.
        DaskError: there are too few workers, or their tasks do not start.
    """
    try:
        from distributed import wait
    except ImportError as error:
        raise DaskError(
            f"horoscale.dask needs distributed, which is not there ({error}): "
            "pip install 'horoscale[dask]'"
        ) from error
    workers = sorted(client.scheduler_info(n_workers=-1)["workers"])
    size = len(workers) if num_proc is None else num_proc
    if not 1 <= size <= len(workers):
        raise DaskError(
            f"{size} ranks need {max(size, 1)} workers, and the cluster has {len(workers)}: start "
            "fewer ranks (num_proc), or more workers"
        )
    interfaces = list(nics or ())
    try:
        agents = Agents(tuple(reach.own_addresses(interfaces)))
    except AgentsError as error:
        raise DaskError(str(error)) from error
    tasks: list[Any] = []
    try:
        tasks += [
            client.submit(
                _agent, agents.invitation, index, worker, workers=[worker], retries=0, pure=False
            )
            for index, worker in enumerate(workers[:size])
        ]
        flags = ["--verbose"] if verbose >= 2 else []
        options = [*flags, *options]
        call = job.Call(fn, args, kwargs or {}, env or {}, nics=interfaces, options=options)
        try:
            agents.wait(size, start_timeout or DEFAULT_START_TIMEOUT_S, lambda: _check(tasks))
        except AgentsError as error:
            raise DaskError(f"{error}: are the workers busy with other tasks?") from error
        return job.run(agents, size, call)
    except BaseException as error:
        agents.close(f"the job failed: {error}")
        raise
    finally:
        agents.close()
        try:
            wait(tasks, timeout=_END_S)
        except asyncio.TimeoutError:  # they are behind others, or their workers are gone
            client.cancel(tasks)


def _agent(invitation: Invitation, index: int, worker: str) -> None:
    """In a task of Dask: be the agent until the job is over."""
    host = worker.rpartition("://")[2].rpartition(":")[0] or worker
    serve(invitation, Seat(host.strip("[]").replace(":", "."), index))


def _check(tasks: Sequence[Any]) -> None:
    for task in tasks:
        if task.status in ("error", "cancelled", "lost"):
            error = task.exception() if task.status == "error" else None
            raise DaskError(f"a task of the job is {task.status}: {error}") from error
