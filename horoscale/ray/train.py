"""A backend of Ray Train: its workers are the ranks of a job.

    from horoscale.ray.train import HoroscaleTrainer

    trainer = HoroscaleTrainer(train, scaling_config=ray.train.ScalingConfig(num_workers=4))
    result = trainer.fit()

The function calls hvd.init(), and reports metrics and checkpoints like any function of Ray Train.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.train.backend import Backend, BackendConfig

from horoscale.engines.tasks import place_tasks, variables
from horoscale.ray.worker import serve_store
from horoscale.runner.rendezvous import Rendezvous

# Ray Train has two versions of its trainers; an environment variable selects one.
try:
    from ray.train.v2._internal.constants import is_v2_enabled

    if not is_v2_enabled():
        raise ImportError("RAY_TRAIN_V2_ENABLED=0")
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
except ImportError:
    from ray.train.data_parallel_trainer import DataParallelTrainer

__all__ = ["DataParallelTrainer", "HoroscaleConfig", "HoroscaleTrainer"]


@dataclass
class HoroscaleConfig(BackendConfig):  # type: ignore[misc]  # Ray has no types
    """Makes Ray Train's workers the ranks of a job.

    Args:
        timeout_s: seconds for the ranks to connect.
        env: further environment variables of the ranks, such as HOROSCALE_TIMELINE.
    """

    timeout_s: float = 30.0
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def backend_cls(self) -> type[_HoroscaleBackend]:
        """The class with which Ray Train starts and ends the job."""
        return _HoroscaleBackend


class HoroscaleTrainer(DataParallelTrainer):  # type: ignore[misc]
    """Ray's DataParallelTrainer with a HoroscaleConfig as its backend_config.

    Args:
        train_loop_per_worker: the function that each worker calls; it calls hvd.init().
        horoscale_config: settings of the job. None: the defaults.
        arguments: other arguments of DataParallelTrainer, such as scaling_config and datasets.
    """

    def __init__(
        self,
        train_loop_per_worker: Callable[..., Any],
        *,
        horoscale_config: HoroscaleConfig | None = None,
        **arguments: Any,
    ) -> None:
        super().__init__(
            train_loop_per_worker,
            backend_config=horoscale_config or HoroscaleConfig(),
            **arguments,
        )


class _HoroscaleBackend(Backend):  # type: ignore[misc]
    share_cuda_visible_devices = True  # hvd.local_rank() is the number of a rank's GPU

    def on_start(self, worker_group: Any, backend_config: HoroscaleConfig) -> None:
        """Set the workers' ranks: worker i has world rank i."""
        nodes = worker_group.execute(_node)
        places = place_tasks(nodes)
        rendezvous, secret = worker_group.execute_single(0, _serve, dict(backend_config.env))
        common = {
            "HOROSCALE_START_TIMEOUT": f"{backend_config.timeout_s:g}",
            **backend_config.env,
        }
        ray.get(
            [
                worker_group.execute_single_async(
                    index, _configure, {**common, **variables(place, rendezvous, secret)}
                )
                for index, place in enumerate(places)
            ]
        )

    def on_shutdown(self, worker_group: Any, backend_config: HoroscaleConfig) -> None:
        """Make the workers leave the job."""
        worker_group.execute(_leave)


_rendezvous: list[Rendezvous] = []  # in the worker that serves the job's store, until it ends


def _node() -> str:
    return str(ray.get_runtime_context().get_node_id())


def _serve(env: Mapping[str, str]) -> tuple[str, str]:
    served = serve_store(env)
    _rendezvous.append(served)
    return served.address, served.secret


def _configure(told: Mapping[str, str]) -> None:
    os.environ.update(told)


def _leave() -> None:
    from horoscale.common import job

    job.stop()
