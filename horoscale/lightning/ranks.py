"""The common part of the strategies of the Trainer and of Fabric: ranks and rendezvous."""

from __future__ import annotations

import weakref
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from lightning.fabric.plugins import ClusterEnvironment
from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.fabric.utilities.seed import reset_seed

import horoscale.torch.distributed  # noqa: F401  # for torch before 2.5
from horoscale.common import job
from horoscale.lightning.environment import HoroscaleEnvironment

BACKEND = "horoscale"

# The default group that was created here last, and the runtime for which it was.
_created: tuple[weakref.ref[Any], weakref.ref[object]] | None = None


class RanksOfJob:
    """A mixin for strategies with one device per process. It precedes Lightning's in the bases."""

    cluster_environment: ClusterEnvironment | None
    parallel_devices: list[torch.device] | None
    global_rank: int
    local_rank: int
    world_size: int
    _timeout: timedelta | None

    @property
    def of_launcher(self) -> bool:
        """Whether a launcher, rather than Lightning, has started the ranks."""
        return isinstance(self.cluster_environment, HoroscaleEnvironment)

    @property
    def root_device(self) -> torch.device:
        """The device of this rank."""
        devices = self.parallel_devices or [torch.device("cpu")]
        if devices[0].type == "cpu":
            return devices[0]
        if self.local_rank < len(devices):
            return devices[self.local_rank]
        return torch.device(devices[0].type, self.local_rank)

    @property
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        """The arguments of the sampler for this rank's part of the data."""
        return {"num_replicas": self.world_size, "rank": self.global_rank}

    def take_ranks(self) -> bool:
        """Set Lightning's rank 0. Returns False if Lightning starts and numbers the ranks."""
        if self.of_launcher:
            rank_zero_only.rank = self.global_rank
        return self.of_launcher

    def meet(self) -> bool:
        """Create torch.distributed's default group. Returns False if Lightning has to do it."""
        global _created
        if self.of_launcher:
            if _is_outdated():  # the ranks of an elastic job have changed
                dist.destroy_process_group()
            if not dist.is_initialized():
                reset_seed()
                dist.init_process_group(BACKEND, init_method="horoscale://", timeout=self._timeout)
                _created = weakref.ref(dist.group.WORLD), weakref.ref(job.current_runtime())
        return self.of_launcher

    @classmethod
    def register_strategies(cls, strategy_registry: Any) -> None:
        """Do nothing: importing horoscale.lightning registers the strategies."""


def _is_outdated() -> bool:
    """Return whether the default group was created here, for another runtime."""
    if _created is None or not dist.is_initialized():
        return False
    group, runtime = (reference() for reference in _created)
    return group is dist.group.WORLD and runtime is not job.current_runtime()
