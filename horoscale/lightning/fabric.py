"""Fabric's strategy: DistributedDataParallel over horoscale's backend."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
from lightning.fabric.plugins import CheckpointIO, ClusterEnvironment, Precision
from lightning.fabric.plugins.collectives.torch_collective import default_pg_timeout
from lightning.fabric.strategies import DDPStrategy

from horoscale.lightning.environment import environment_of_launcher
from horoscale.lightning.ranks import BACKEND, RanksOfJob


class HoroscaleFabricStrategy(RanksOfJob, DDPStrategy):  # type: ignore[misc]
    """Fabric sets up models before or without their optimizers, so that the model is wrapped."""

    def __init__(
        self,
        *,
        accelerator: Any = None,
        parallel_devices: list[torch.device] | None = None,
        cluster_environment: ClusterEnvironment | None = None,
        checkpoint_io: CheckpointIO | None = None,
        precision: Precision | None = None,
        timeout: timedelta | None = default_pg_timeout,
        **options: Any,
    ) -> None:
        """Take the options of DistributedDataParallel; Lightning sets the rest.

        Args:
            accelerator: as Lightning gives it.
            parallel_devices: likewise.
            cluster_environment: where ranks come from; None: from the launcher, else Lightning.
            checkpoint_io: as of any strategy.
            precision: likewise.
            timeout: of operations of torch.distributed.
            options: of DistributedDataParallel.
        """
        super().__init__(
            accelerator=accelerator,
            parallel_devices=parallel_devices,
            cluster_environment=cluster_environment or environment_of_launcher(),
            checkpoint_io=checkpoint_io,
            precision=precision,
            process_group_backend=BACKEND,
            timeout=timeout,
            **options,
        )

    def _set_world_ranks(self) -> None:
        if not self.take_ranks():
            super()._set_world_ranks()

    def _setup_distributed(self) -> None:
        if not self.meet():
            super()._setup_distributed()

    @classmethod
    def register_strategies(cls, strategy_registry: Any) -> None:
        """Do nothing: importing horoscale.lightning registers the strategy."""
