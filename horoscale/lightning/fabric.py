"""Fabric's strategy: DistributedDataParallel over horoscale's backend."""

from __future__ import annotations

from typing import Any

from lightning.fabric.plugins import ClusterEnvironment
from lightning.fabric.strategies import DDPStrategy

from horoscale.lightning.elastic import check_elastic
from horoscale.lightning.environment import environment_of_launcher
from horoscale.lightning.ranks import BACKEND, RanksOfJob


class HoroscaleFabricStrategy(RanksOfJob, DDPStrategy):  # type: ignore[misc]
    """Fabric sets up models before or without their optimizers, so that the model is wrapped."""

    def __init__(
        self, *, cluster_environment: ClusterEnvironment | None = None, **options: Any
    ) -> None:
        """Take the options of Lightning's own strategy, which passes on those that it doesn't know.

        Args:
            cluster_environment: where ranks come from; None: from the launcher, else Lightning.
            options: of Fabric's DDPStrategy, such as timeout, and of DistributedDataParallel.

        Raises:
            RuntimeError: the job is elastic. DistributedDataParallel can't tell the loss of a rank
                from other errors.
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
