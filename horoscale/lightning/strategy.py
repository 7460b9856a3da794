"""The strategy for the Trainer: each rank trains a whole model, and gradients are averaged."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import lightning.pytorch as lightning
import torch
from lightning.fabric.plugins import CheckpointIO, ClusterEnvironment
from lightning.fabric.plugins.collectives.torch_collective import default_pg_timeout
from lightning.pytorch.plugins import LayerSync, Precision, TorchSyncBatchNorm
from lightning.pytorch.strategies import DDPStrategy

import horoscale.torch as hvd
from horoscale.elastic.membership import membership
from horoscale.lightning.elastic import check_elastic
from horoscale.lightning.environment import environment_of_launcher
from horoscale.lightning.layer_sync import SyncBatchNormOfSet
from horoscale.lightning.ranks import BACKEND, RanksOfJob

# The methods of an optimizer besides step() for manual optimization.
_OF_OPTIMIZER = ("zero_grad", "synchronize", "skip_synchronize", "no_sync")


class HoroscaleStrategy(RanksOfJob, DDPStrategy):  # type: ignore[misc]
    """Averages gradients with hvd.DistributedOptimizer during the backward pass.

    The model is not wrapped, so its state has the same names as on one device. Gradients are
    averages when backward() returns: clipping, GradScaler, manual optimization and hooks work as on
    one device. torch.distributed's default group is horoscale's, for metrics and self.log().
    """

    strategy_name = "horoscale"

    def __init__(
        self,
        *,
        process_set: hvd.ProcessSet | None = None,
        accelerator: Any = None,
        parallel_devices: list[torch.device] | None = None,
        cluster_environment: ClusterEnvironment | None = None,
        checkpoint_io: CheckpointIO | None = None,
        precision_plugin: Precision | None = None,
        timeout: timedelta | None = default_pg_timeout,
        **options: Any,
    ) -> None:
        """Take the options of the training. Lightning sets the others.

        Args:
            process_set: the ranks that train together. Each set trains a model of its own, with its
                own part of the data and its own logs. Every rank passes the set that contains it.
                None: all ranks train together.
            accelerator: set by Lightning.
            parallel_devices: set by Lightning.
            cluster_environment: the source of ranks. None: the launcher, or else Lightning.
            checkpoint_io: as for any strategy.
            precision_plugin: as for any strategy.
            timeout: the timeout of torch.distributed's operations.
            options: compression=, op=, groups= and other options of hvd.DistributedOptimizer.

        Raises:
            RuntimeError: the job is elastic, and this is not called in a function of
                hvd.elastic.run, or with a process_set: checkpoints have the model of rank 0 only.
        """
        if process_set is None:
            check_elastic('Trainer(strategy="horoscale")', can_continue=True)
        else:
            check_elastic("HoroscaleStrategy(process_set=…)", can_continue=False)
        super().__init__(
            accelerator=accelerator,
            parallel_devices=parallel_devices,
            cluster_environment=cluster_environment or environment_of_launcher(),
            checkpoint_io=checkpoint_io,
            precision_plugin=precision_plugin,
            process_group_backend=BACKEND,
            timeout=timeout,
        )
        self._process_set = process_set
        self._saved = False
        self._options = {"gradients_ready": "backward"} | options

    @property
    def process_set(self) -> hvd.ProcessSet:
        """The ranks that train together with this one."""
        return self._process_set or hvd.global_process_set

    @property
    def _layer_sync(self) -> LayerSync | None:
        return self._layers

    @_layer_sync.setter
    def _layer_sync(self, sync: LayerSync | None) -> None:
        # PyTorch's own class needs a GPU. A user's plugin is kept.
        ours = isinstance(sync, TorchSyncBatchNorm)
        self._layers = SyncBatchNormOfSet(lambda: self.process_set) if ours else sync

    def setup_environment(self) -> None:
        """Prepare the accelerator and join the job."""
        self._at_sigterm = signal.getsignal(signal.SIGTERM)
        super().setup_environment()

    def on_train_start(self) -> None:
        """In an elastic job, let SIGTERM have the effect that it has without Lightning.

        Lightning would end this process with status 0, which means that the training is complete.
        """
        super().on_train_start()
        in_main_thread = threading.current_thread() is threading.main_thread()
        if membership().elastic and in_main_thread and self._at_sigterm is not None:
            signal.signal(signal.SIGTERM, self._at_sigterm)

    def set_world_ranks(self) -> None:
        """Set this rank in Lightning."""
        if not self.take_ranks():
            super().set_world_ranks()

    def setup_distributed(self) -> None:
        """Join the job, and register the process set."""
        if not self.meet():
            super().setup_distributed()
        if self._process_set is not None and self._process_set.process_set_id is None:
            self._register_sets()

    def _register_sets(self) -> None:
        """Register the sets that the ranks have passed, on all ranks and in the same order."""
        assert self._process_set is not None
        named = hvd.allgather_object(self._process_set.ranks)
        missing = [rank for rank, ranks in enumerate(named) if rank not in (ranks or [])]
        if missing:
            raise ValueError(
                f"HoroscaleStrategy(process_set=…): ranks {missing} are not in the sets that they "
                f"named: {named}"
            )
        for ranks in dict.fromkeys(map(tuple, named)):
            mine = ranks == tuple(self._process_set.ranks or ())
            hvd.add_process_set(self._process_set if mine else hvd.ProcessSet(list(ranks)))

    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None
    ) -> None:
        """Save a checkpoint on rank 0."""
        super().save_checkpoint(checkpoint, filepath, storage_options)
        self._saved = self._saved or "optimizer_states" in checkpoint

    def take_saved(self) -> bool:
        """Tell whether a checkpoint to continue from was saved since the call before."""
        saved, self._saved = self._saved, False
        return saved

    @property
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        """The arguments of the sampler for this rank's part of the process set's data."""
        if self._process_set is None:
            return super().distributed_sampler_kwargs
        return {"num_replicas": self.process_set.size(), "rank": self.process_set.rank()}

    def configure_ddp(self) -> None:
        """Do nothing: the optimizers average the gradients."""

    def setup_optimizers(self, trainer: lightning.Trainer) -> None:
        """Create the optimizers, broadcast the first rank's weights, and average gradients."""
        super().setup_optimizers(trainer)
        module = self.lightning_module
        assert module is not None
        ranks = self.process_set.ranks
        hvd.broadcast_parameters(
            module.state_dict(), root_rank=ranks[0] if ranks else 0, process_set=self.process_set
        )
        names = {id(parameter): name for name, parameter in module.named_parameters()}
        for optimizer in self.optimizers:
            parameters = [one for group in optimizer.param_groups for one in group["params"]]
            hvd.DistributedOptimizer(
                optimizer,
                [(names.get(id(one), f"parameter.{i}"), one) for i, one in enumerate(parameters)],
                process_set=self.process_set,
                **self._options,
            )
            reducer = getattr(optimizer, "_reducer", None)
            if reducer is not None:  # after a change of ranks, a new Trainer has other optimizers
                reducer.retire()

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        """The optimizers of the training."""
        return list(DDPStrategy.optimizers.fget(self))

    @optimizers.setter
    def optimizers(self, optimizers: list[torch.optim.Optimizer]) -> None:
        DDPStrategy.optimizers.fset(self, optimizers)
        # Lightning's wrappers have the optimizers' classes, but none of their state.
        for wrapper in self._lightning_optimizers:
            for name in _OF_OPTIMIZER:
                if hasattr(wrapper.optimizer, name):
                    setattr(wrapper, name, getattr(wrapper.optimizer, name))

    @contextlib.contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        """Return a context in which gradients accumulate on this rank."""
        with contextlib.ExitStack() as stack:
            for optimizer in self.optimizers:
                stack.enter_context(optimizer.no_sync())  # type: ignore[attr-defined]
            yield

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """Reduce over a group of torch.distributed. None: over the ranks that train together."""
        if group is None and self._process_set is not None:
            group = self._process_set.to_group()
        return super().reduce(tensor, group, reduce_op)
