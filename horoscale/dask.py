"""Jobs on Dask: run a function on ranks, one for each worker of a cluster.

    from distributed import Client
    import horoscale.dask

    accuracies = horoscale.dask.run(Client(), train)

The ranks are separate processes, which the launcher starts through tasks on the workers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from horoscale.engines.agents import job
from horoscale.engines.agents.agent import Invitation
from horoscale.engines.agents.driver import Agents, AgentsError
from horoscale.runner import reach

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["DaskError", "run"]

DEFAULT_START_TIMEOUT_S = 60.0
_END_S = 15.0  # for dismissed agents and their processes


class DaskError(RuntimeError):
    """Dask is not installed or cannot run the job. The message is for the user."""


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
    """Call `fn(*args, **kwargs)` on ranks, one for each worker, and return the results by rank.

    A task that is pinned to its worker occupies a thread there for the duration of the job. Workers
    on the same machine form one host, whose ranks share memory. Workers must be able to connect to
    this process and to each other's machines.

    Args:
        client: the client of the cluster.
        fn: the function to call on every rank, which calls `hvd.init()`; may be a lambda.
        args: its positional arguments.
        kwargs: its keyword arguments.
        num_proc: the number of workers to use. None: all of the cluster's workers.
        start_timeout: seconds for the tasks to start (default 60).
        env: environment variables for the ranks, in addition to those that horoscalerun forwards
            from this process to other hosts.
        nics: network interfaces of this machine that workers can reach.
        verbose: 2 logs what the launcher does.
        options: further flags of horoscalerun, such as ["--timeline-filename", "trace.json"].

    Raises:
        The exception of the first rank that raised, caused by a RankError with rank and traceback.
        RuntimeError: a rank ended without raising, for example because of a signal.
        DaskError: there are too few workers, or their tasks do not start.
    """
    try:
        from distributed import wait
    except ImportError as error:
        raise DaskError(
            f"horoscale.dask needs distributed, which is not installed ({error}): "
            "pip install 'horoscale[dask]'"
        ) from error
    workers = sorted(client.scheduler_info(n_workers=-1)["workers"])
    size = len(workers) if num_proc is None else num_proc
    if not 1 <= size <= len(workers):
        raise DaskError(
            f"{size} ranks need {max(size, 1)} workers, but the cluster has {len(workers)}: start "
            "fewer ranks (num_proc) or more workers"
        )
    interfaces = list(nics or ())
    try:
        agents = Agents(tuple(reach.own_addresses(interfaces)))
    except AgentsError as error:
        raise DaskError(str(error)) from error
    agent = _agent(agents.invitation)
    tasks: list[Any] = []
    try:
        tasks += [
            client.submit(agent, index, worker, workers=[worker], retries=0, pure=False)
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
        except asyncio.TimeoutError:  # they are queued behind other tasks, or their worker is gone
            client.cancel(tasks)


def _agent(invitation: Invitation) -> Callable[[int, str], None]:
    """Return the function of the tasks: it runs an agent until the job is over.

    It is sent as code that can be unpickled without horoscale. If horoscale is missing, the task
    fails instead of the worker's connection. Its arguments, which Dask logs, contain no secret.
    """
    known = (invitation.addresses, invitation.port, invitation.secret)

    def agent(index: int, worker: str) -> None:
        from horoscale.engines.agents.agent import Invitation, Seat, serve

        host = worker.rpartition("://")[2].rpartition(":")[0] or worker
        serve(Invitation(*known), Seat(host.strip("[]").replace(":", "."), index))

    return agent


def _check(tasks: Sequence[Any]) -> None:
    """Raise DaskError if a task has ended before the job."""
    for task in tasks:
        if task.status in ("cancelled", "lost"):
            raise DaskError(f"a task of the job was {task.status}")
        if task.status == "error":
            error = task.exception()
            module = getattr(error, "name", None) or ""
            if isinstance(error, ModuleNotFoundError) and module.startswith("horoscale"):
                raise DaskError(
                    f"a worker has no module {module}: install the same horoscale on all machines"
                ) from error
            raise DaskError(f"a task of the job failed: {error}") from error
