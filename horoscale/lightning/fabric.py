"""The strategy for Fabric: DistributedDataParallel with horoscale's backend."""

from __future__ import annotations

from typing import Any

from lightning.fabric.plugins import ClusterEnvironment
from lightning.fabric.strategies import DDPStrategy

from horoscale.lightning.elastic import check_elastic
from horoscale.lightning.environment import environment_of_launcher
from horoscale.lightning.ranks import BACKEND, RanksOfJob


class HoroscaleFabricStrategy(RanksOfJob, DDPStrategy):  # type: ignore[misc]
    """Wraps the model, because Fabric sets up models before their optimizers or without them."""

    def __init__(
        self, *, cluster_environment: ClusterEnvironment | None = None, **options: Any
    ) -> None:
        """Take the options of Lightning's own strategy, which passes on the unknown ones.

        Args:
            cluster_environment: the source of ranks. None: the launcher, or else Lightning.
            options: options of Fabric's DDPStrategy, such as timeout, and of
                DistributedDataParallel.

        Raises:
            RuntimeError: the job is elastic. DistributedDataParallel cannot distinguish the
                loss of a rank from other errors.
        """
        check_elastic('Fabric(strategy="horoscale")', can_continue=False)
        super().__init__(
            cluster_environment=cluster_environment or environment_of_launcher(),
            process_group_backend=BACKEND,
            **options,
        )

    def _set_world_ranks(self) -> None:
        if not self.take_ranks():
            super()._set_world_ranks()

    def _setup_distributed(self) -> None:
        if not self.meet():
            super()._setup_distributed()
