"""horoscale.spark.run(): runs a function on ranks that are started through Spark's tasks."""

from __future__ import annotations

import functools
import re
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from horoscale.engines.agents import job as agents_job
from horoscale.engines.agents.driver import Agents, AgentsError
from horoscale.runner import reach
from horoscale.spark import task
from horoscale.spark.context import SparkError, active_context, check_barrier, wait_for_slots

if TYPE_CHECKING:
    from pyspark import SparkContext

DEFAULT_START_TIMEOUT_S = 600.0  # a cluster may have to start executors first
_END_S = 30.0  # for Spark to end the tasks


def run(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    start_timeout: float | None = None,
    use_mpi: bool | None = None,
    use_gloo: bool | None = None,
    extra_mpi_args: str | None = None,
    env: Mapping[str, str] | None = None,
    stdout: TextIO | None = None,
    stderr: TextIO | None = None,
    verbose: int = 1,
    nics: Iterable[str] | None = None,
    prefix_output_with_timestamp: bool = False,
    executable: str | None = None,
    *,
    options: Sequence[str] = (),
) -> list[Any]:
    """Call `fn(*args, **kwargs)` on `num_proc` ranks on Spark's executors.

    A barrier stage of `num_proc` tasks reserves the ranks' slots. An executor is a host. The ranks'
    output appears here, or in `stdout` and `stderr`.

    Args:
        fn: the function to call on every rank, which calls `hvd.init()`; may be a lambda.
        args: its positional arguments.
        kwargs: its keyword arguments.
        num_proc: the number of ranks. None: Spark's default parallelism.
        start_timeout: seconds for Spark to provide slots for all tasks, and start them (default
            600).
        use_mpi: whether mpirun starts the ranks, through agents in the barrier tasks.
        use_gloo: whether to use the native backend, which is the default.
        extra_mpi_args: further arguments of mpirun, as one string.
        env: environment variables for the ranks, in addition to those that horoscalerun forwards
            from this process to other hosts.
        stdout: a text stream for the ranks' output.
        stderr: a text stream for the ranks' standard error.
        verbose: 2 logs what the launcher does.
        nics: network interfaces of this machine that executors can reach.
        prefix_output_with_timestamp: whether to prefix each line of the ranks with the time.
        executable: the Python interpreter of the ranks, on the executors.
        options: further flags of horoscalerun, such as ["--timeline-filename", "trace.json"].

    Returns:
        The function's results by rank.

    Raises:
        The exception of the first rank that raised, caused by a RankError with rank and traceback.
        RuntimeError: a rank ended without raising, for example because of a signal.
        SparkError: Spark is not available, has too few slots, or allocates executors dynamically.
    """
    if use_mpi and use_gloo:
        raise ValueError("use_mpi and use_gloo don't go together")
    context = active_context()
    size = context.defaultParallelism if num_proc is None else num_proc
    _check_count("num_proc", size)
    seconds = DEFAULT_START_TIMEOUT_S if start_timeout is None else start_timeout
    check_barrier(context, size)
    wait_for_slots(context, size, seconds)
    interfaces = list(nics or ())
    options = [*_flags(verbose, prefix_output_with_timestamp), *options]
    call = agents_job.Call(
        fn, args, kwargs or {}, env or {}, executable, stdout, stderr, interfaces, options
    )
    with _tasks(context, size, interfaces, barrier=True) as (agents, tasks):
        agents.wait(size, seconds, tasks.check)
        if use_mpi:
            return agents_job.run_mpi(agents, size, call, extra_mpi_args or "")
        return agents_job.run(agents, size, call)


def run_elastic(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    start_timeout: float | None = None,
    elastic_timeout: float | None = None,
    reset_limit: int | None = None,
    env: Mapping[str, str] | None = None,
    stdout: TextIO | None = None,
    stderr: TextIO | None = None,
    verbose: int = 1,
    nics: Iterable[str] | None = None,
    prefix_output_with_timestamp: bool = False,
    min_np: int | None = None,
    max_np: int | None = None,
    *,
    executable: str | None = None,
    options: Sequence[str] = (),
) -> list[Any]:
    """Call `fn` on ranks that follow Spark's executors: see docs/elastic.md.

    `max_num_proc` ordinary tasks reserve the ranks' slots. Spark runs as many as there are slots
    and restarts lost ones. The job starts with `num_proc` ranks and continues with at least
    `min_num_proc`. `min_np` and `max_np` are aliases. The other parameters are those of run() and
    horoscale.run().

    Returns:
        The function's results by rank, on the ranks at the end of the job.

    Raises:
        The exceptions of run(), if the job can't continue.
    """
    context = active_context()
    size = context.defaultParallelism if num_proc is None else num_proc
    least = min_num_proc or min_np or size
    most = max_num_proc or max_np or max(size, least)
    for name, value in (("min_num_proc", least), ("num_proc", size), ("max_num_proc", most)):
        _check_count(name, value)
    seconds = DEFAULT_START_TIMEOUT_S if start_timeout is None else start_timeout
    wait_for_slots(context, least, seconds)
    interfaces = list(nics or ())
    options = [*_flags(verbose, prefix_output_with_timestamp), *options]
    call = agents_job.Call(
        fn, args, kwargs or {}, env or {}, executable, stdout, stderr, interfaces, options
    )
    with _tasks(context, most, interfaces, barrier=False) as (agents, tasks):
        agents.wait(least, seconds, tasks.check)
        return agents_job.run_elastic(
            agents,
            call,
            np=size,
            min_num_proc=least,
            max_num_proc=most,
            elastic_timeout=elastic_timeout,
            reset_limit=reset_limit,
        )


def _check_count(name: str, value: int) -> None:
    if value < 1:
        raise ValueError(f"{name}: expected a positive number, not {value}")


def _flags(verbose: int, timestamp: bool) -> list[str]:
    flags = ["--verbose"] if verbose >= 2 else []
    return [*flags, "--prefix-output-with-timestamp"] if timestamp else flags


class _Tasks:
    """A Spark job whose tasks are agents; a thread waits for it."""

    def __init__(self, context: SparkContext, agents: Agents, size: int, *, barrier: bool) -> None:
        from pyspark import InheritableThread

        self._context = context
        self._group = f"horoscale-{uuid.uuid4().hex[:12]}"
        self._error: Exception | None = None
        self._ended = threading.Event()
        self._work = functools.partial(task.agent, agents.invitation)
        self._size, self._barrier = size, barrier
        self._thread = InheritableThread(target=self._run)
        self._thread.daemon = True
        self._thread.start()

    def check(self) -> None:
        """Raise SparkError if the job has failed."""
        if self._error is not None:
            raise SparkError(_reason(self._error)) from self._error

    def end(self) -> None:
        """Wait for the tasks, which the driver has dismissed."""
        self._ended.wait(_END_S)

    def fail(self) -> None:
        """Make Spark count its job as failed."""
        self._context.cancelJobGroup(self._group)

    def _run(self) -> None:
        try:
            self._context.setJobGroup(self._group, "horoscale.spark", interruptOnCancel=True)
            tasks = self._context.parallelize(range(self._size), self._size)
            source = tasks.barrier() if self._barrier else tasks
            source.mapPartitionsWithIndex(self._work).collect()
        except Exception as error:  # Py4J documents no exception types
            self._error = error
        finally:
            self._ended.set()


@contextmanager
def _tasks(
    context: SparkContext, size: int, nics: Sequence[str], *, barrier: bool
) -> Iterator[tuple[Agents, _Tasks]]:
    """Hold the ranks' slots by tasks inside the block."""
    try:
        agents = Agents(tuple(reach.own_addresses(nics)))
    except AgentsError as error:
        raise SparkError(str(error)) from error
    try:
        tasks = _Tasks(context, agents, size, barrier=barrier)
    except BaseException:
        agents.close()
        raise
    try:
        yield agents, tasks
    except AgentsError as error:
        tasks.check()  # may raise a more specific error
        tasks.fail()
        raise SparkError(str(error)) from error
    except BaseException:
        tasks.fail()
        raise
    finally:
        agents.close()
        tasks.end()


def _reason(error: Exception) -> str:
    """Return one line of Spark's error, which is a page long."""
    text = str(error)
    missing = re.search(r"ModuleNotFoundError: No module named '(horoscale[^']*)'", text)
    if missing:
        return (
            f"an executor has no module {missing[1]}: install the same horoscale on all machines, "
            "for the interpreter that Spark uses there (PYSPARK_PYTHON)"
        )
    raised = re.findall(r"^\s*(?:[\w.]*\.)?(\w*(?:Error|Exception)): (.+)$", text, re.MULTILINE)
    if raised:
        return f"Spark's job failed: {raised[0][0]}: {raised[0][1]}"
    return f"Spark's job failed: {text.splitlines()[0] if text else type(error).__name__}"
