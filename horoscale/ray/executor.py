"""RayExecutor: Horovod's interface to jobs on Ray."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ray

from horoscale.ray.elastic import ElasticShape, run_elastic
from horoscale.ray.placement import place_workers
from horoscale.ray.settings import RayError, RaySettings, Shape, count
from horoscale.ray.static import StaticJob
from horoscale.runner.task import Task


class RayExecutor:
    """Runs functions as the ranks of a job on a Ray cluster.

    It starts either `num_workers` ranks, packed onto as few nodes as possible, or
    `num_workers_per_host` ranks on each of `num_hosts` nodes. With `min_workers` the job is
    elastic: its ranks follow the cluster's nodes, and functions use hvd.elastic.

    Args:
        settings: the result of create_settings(). None: its defaults.
        num_workers: the number of ranks.
        num_hosts: the number of nodes, if `num_workers` is not given.
        num_workers_per_host: the number of ranks on each of them.
        cpus_per_worker: the number of CPUs per rank.
        use_gpu: whether each rank uses GPUs.
        gpus_per_worker: the number of GPUs per rank. None: 1.
        use_current_placement_group: whether to use the caller's placement group, such as that of a
            Ray Tune task. If there is none, a group is created.
        min_workers: the minimum number of ranks of an elastic job.
        max_workers: the maximum number of ranks. None: as many as the cluster has room for.
        reset_limit: the maximum number of changes of the ranks. None: no limit.
        cooldown_range: the minimum and maximum seconds for which a node is not used after ranks
            have failed there.
        elastic_timeout: seconds to wait with fewer than `min_workers` ranks. None: 600.
        override_discovery: must be True: the nodes are the cluster's own.

    Raises ValueError for arguments that contradict each other.
    """

    def __init__(
        self,
        settings: RaySettings | None = None,
        num_workers: int | None = None,
        num_hosts: int | None = None,
        num_workers_per_host: int = 1,
        cpus_per_worker: int = 1,
        use_gpu: bool = False,
        gpus_per_worker: int | None = None,
        use_current_placement_group: bool = True,
        min_workers: int | None = None,
        max_workers: int | None = None,
        reset_limit: int | None = None,
        cooldown_range: tuple[float, float] | None = None,
        elastic_timeout: float | None = None,
        override_discovery: bool = True,
    ) -> None:
        if gpus_per_worker is not None and not use_gpu:
            raise ValueError("gpus_per_worker has no meaning without use_gpu=True")
        if not override_discovery:
            raise ValueError(
                "override_discovery=False is not available: nodes are those of Ray's cluster; "
                "horoscale.run(host_discovery_script=...) takes others"
            )
        gpus = count("gpus_per_worker", 1 if gpus_per_worker is None else gpus_per_worker)
        self._settings = settings or RaySettings()
        self._shape = Shape(count("cpus_per_worker", cpus_per_worker), gpus if use_gpu else 0)
        self._use_current = use_current_placement_group
        self._elastic: ElasticShape | None = None
        self._bundles, self._ranks_per_bundle, self._strategy = 0, 1, "PACK"
        if min_workers is not None:
            self._elastic = _elastic_shape(
                num_workers,
                num_hosts,
                min_workers,
                max_workers,
                reset_limit,
                cooldown_range,
                elastic_timeout,
            )
        elif any(one is not None for one in (max_workers, reset_limit, cooldown_range)):
            raise ValueError("max_workers, reset_limit and cooldown_range need min_workers")
        elif (num_workers is None) == (num_hosts is None):
            raise ValueError(
                "how many ranks? Give num_workers, or num_hosts and num_workers_per_host, or "
                "min_workers for an elastic job"
            )
        elif num_workers is not None:
            self._bundles = count("num_workers", num_workers)
        else:
            self._bundles = count("num_hosts", num_hosts)
            self._ranks_per_bundle = count("num_workers_per_host", num_workers_per_host)
            self._strategy = "STRICT_SPREAD"
        self._env: dict[str, str] = {}
        self._job: StaticJob | None = None
        self._started = False

    @classmethod
    def create_settings(
        cls,
        timeout_s: float = 30.0,
        ssh_identity_file: str | None = None,
        ssh_str: str | None = None,
        placement_group_timeout_s: float = 100.0,
        nics: Sequence[str] | None = None,
    ) -> RaySettings:
        """Return settings for the executor.

        Args:
            timeout_s: seconds for the ranks to connect.
            ssh_identity_file: accepted for compatibility with Horovod; ssh is not used.
            ssh_str: likewise.
            placement_group_timeout_s: seconds to wait for resources of the cluster.
            nics: names of the network interfaces that the ranks use.
        """
        del ssh_identity_file, ssh_str
        return RaySettings(timeout_s, placement_group_timeout_s, tuple(nics or ()))

    def start(
        self,
        executable_cls: Callable[..., Any] | None = None,
        executable_args: Sequence[Any] | None = None,
        executable_kwargs: Mapping[str, Any] | None = None,
        extra_env_vars: Mapping[str, str] | None = None,
    ) -> None:
        """Start the ranks. Those of an elastic job start with each run() instead.

        Args:
            executable_cls: called on each rank; execute() passes its result.
            executable_args: its positional arguments.
            executable_kwargs: its keyword arguments.
            extra_env_vars: environment variables of the ranks.

        Raises:
            RayError: Ray is not initialized, or the cluster has too few resources.
            ValueError: the executor has started, or an elastic one is given an executable.
        """
        if self._started:
            raise ValueError("the executor has started: call shutdown() first")
        if not ray.is_initialized():
            raise RayError("call ray.init() first, which connects this process to a cluster")
        self._env = {name: str(value) for name, value in (extra_env_vars or {}).items()}
        if self._elastic is not None:
            if executable_cls is not None:
                raise ValueError("ranks of an elastic job come and go: it has no executable_cls")
            self._started = True
            return
        placement = place_workers(
            self._shape,
            self._bundles,
            self._ranks_per_bundle,
            self._strategy,
            self._settings.placement_group_timeout_s,
            self._use_current,
        )
        self._started = True
        self._job = StaticJob(placement, self._shape, self._settings, self._env)
        try:
            self._job.begin()
            if executable_cls is not None:
                made = Task(
                    _make,
                    (executable_cls,),
                    {"args": executable_args or (), "kwargs": executable_kwargs or {}},
                )
                self._job.call("create", made.pickled())
        except BaseException:
            self.shutdown()
            raise

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Call `fn(*args, **kwargs)` on all ranks and return the results by rank.

        Raises:
            The exception of the first rank that raised, caused by a RankError with rank and
                traceback.
            RayError: a rank's actor died. Call shutdown() and start() to start again.
        """
        if self._elastic is None:
            return self._static().call("perform", Task(fn, args or (), kwargs or {}).pickled())
        self._check_started()
        return run_elastic(
            self._shape, self._elastic, self._settings, self._env, fn, args or (), kwargs or {}
        )

    def run_remote(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Call a function without waiting; return references to the results, for ray.get()."""
        return self._static().references(Task(fn, args or (), kwargs or {}).pickled())

    def execute(self, fn: Callable[[Any], Any]) -> list[Any]:
        """Call `fn(executable)` on all ranks, with the object from start()'s executable_cls."""
        return self._static().call("execute", Task(fn, (), {}).pickled())

    def execute_single(self, fn: Callable[[Any], Any]) -> Any:
        """Call `fn(executable)` on rank 0 only; return its result."""
        return self._static().one(0, "execute", Task(fn, (), {}).pickled())

    def shutdown(self) -> None:
        """End the ranks and release their resources. start() may be called again."""
        job, self._job = self._job, None
        self._started = False
        if job is not None:
            job.end()

    def _static(self) -> StaticJob:
        self._check_started()
        if self._job is None:
            raise ValueError("an elastic job has run() alone: its ranks come and go")
        return self._job

    def _check_started(self) -> None:
        if not self._started:
            raise ValueError("the executor has no ranks yet: call start() first")


def _make(
    keep: Callable[[Any], None],
    cls: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> None:
    """Create the object for execute(), on a rank."""
    keep(cls(*args, **kwargs))


def _elastic_shape(
    num_workers: int | None,
    num_hosts: int | None,
    min_workers: int,
    max_workers: int | None,
    reset_limit: int | None,
    cooldown_range: tuple[float, float] | None,
    elastic_timeout: float | None,
) -> ElasticShape:
    if num_hosts is not None:
        raise ValueError("num_hosts and min_workers don't go together: nodes come and go")
    least = count("min_workers", min_workers)
    num = least if num_workers is None else count("num_workers", num_workers)
    most = None if max_workers is None else count("max_workers", max_workers)
    if num < least or (most is not None and most < num):
        raise ValueError(
            f"min_workers={min_workers}, num_workers={num_workers} and max_workers={max_workers} "
            "are not in ascending order"
        )
    return ElasticShape(num, least, most, reset_limit, cooldown_range, elastic_timeout)
