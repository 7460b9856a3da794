"""par.ZeroOptimizer(): an optimizer of this rank's part of a sharded model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from horoscale.torch.compiling import outside_graph
from horoscale.torch.compression import AnyCompressor, Compression
from horoscale.torch.parallel.mesh import Axis
from horoscale.torch.parallel.offload import OffloadError
from horoscale.torch.parallel.zero import optimizer_state
from horoscale.torch.parallel.zero.agreement import all_succeed, raise_everywhere
from horoscale.torch.parallel.zero.elementwise import Factory, need_elementwise
from horoscale.torch.parallel.zero.runs import Group, Run, as_groups, names_by_group, runs_of_group
from horoscale.torch.parallel.zero.sharded import Sharded, shard, sharded_in, sharded_of
from horoscale.torch.parallel.zero.streaming import Streaming


class _Zero(torch.optim.Optimizer):
    """The base class that ZeroOptimizer() adds before the class of the user's optimizer."""

    sharded: Sharded
    runs: list[list[Run]]  # by parameter group
    names: list[list[str]]  # names of the parameters of each group, the same on all ranks
    elementwise: Mapping[str, torch.dtype]  # state tensors with a value for each element
    streaming: Streaming | None  # for offloaded state

    @outside_graph
    def step(self, closure: Any = None) -> Any:
        """Reduce the gradients, update this rank's part, and send the result to all ranks.

        Collective over the axis of the shards.

        Args:
            closure: recomputes the loss, before the gradients are reduced.

        Returns:
            The result of the closure.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self.streaming is None:
            self.sharded.gradients.begin_step()
            self.synchronize()
            self.sharded.begin_update()
            super().step()
        else:
            self._stream(self.streaming)
        self.sharded.publish(rounded=self.streaming is not None)
        self.sharded.gradients.end_step()
        return loss

    # PyTorch adds its hooks to any step() that is not marked as hooked. The step() of the user's
    # class, which this one calls, already runs them.
    step.hooked = True  # type: ignore[attr-defined]

    def _stream(self, streaming: Streaming) -> None:
        """Update this rank's part if state is offloaded."""
        failure = None
        # Call the hooks of a step once, and not for each piece.
        own: Any = super().step
        step = partial(own.__wrapped__, self) if getattr(own, "hooked", False) else own

        def stream(_: torch.optim.Optimizer) -> None:
            streaming.step(step)

        hooked: Any = torch.optim.Optimizer.profile_hook_step(stream)
        try:
            self.sharded.gradients.begin_step()
            self.synchronize()
        except OffloadError as error:
            failure = error
        self.sharded.begin_update()
        try:
            if failure is None:
                hooked(self)
        except OffloadError as error:
            failure = error
        raise_everywhere(self.sharded.axis, failure)

    @outside_graph
    def synchronize(self) -> None:
        """Reduce the gradients that are not reduced yet, to read or modify them."""
        self.sharded.gradients.synchronize()
        gradients = {
            id(bucket.shards): bucket.gradient for bucket in self.sharded.gradients.buckets
        }
        for run in self._all_runs():
            gradient = gradients[id(run.shards)]
            run.tensor.grad = None if gradient is None else gradient[run.begin : run.end]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear all gradients. The next ones reuse their memory, whatever `set_to_none`.

        Collective if neither step() nor synchronize() was called after backward().
        """
        self.sharded.gradients.clear()
        for run in self._all_runs():
            run.tensor.grad = None

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulate gradients on this rank without reducing them inside the block.

        In stages 2 and 3 this takes the memory of all gradients until the next pass.
        """
        gradients = self.sharded.gradients
        paused, gradients.paused = gradients.paused, True
        try:
            yield
        finally:
            gradients.paused = paused

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Do nothing, for compatibility with loops for hvd.DistributedOptimizer."""
        yield

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Raise ValueError: parameters can't be added after the model is sharded."""
        if "sharded" in self.__dict__:
            raise ValueError("parameters can't be added to a ZeroOptimizer: make another one")
        super().add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's part of the state, for the same rank and size. Not collective."""
        return super().state_dict() | {"zero": optimizer_state.own_part(self)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the result of state_dict() on this rank. Collective if it has master weights.

        Raises ValueError if it is from another rank, or the model is sharded differently.
        """
        optimizer_state.load_own_part(self, state_dict.get("zero"))
        super().load_state_dict({key: one for key, one in state_dict.items() if key != "zero"})
        if self.streaming is not None:
            self.streaming.adopt()

    def whole_state_dict(self) -> dict[str, Any]:
        """Return the state of all ranks by parameter names, on all ranks. Collective.

        `["state"][name]` has tensors of the parameter's shape, like the state of an undivided
        optimizer, and "master" if the optimizer updates values of a larger dtype than the
        parameters'. `["param_groups"]` has the groups' options, with names as "params".
        """
        return optimizer_state.whole(self)

    def load_whole_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load this rank's part of a state from whole_state_dict(), on any number of ranks.

        Collective if the optimizer or the state has master weights. Raises KeyError if a parameter
        or group is missing, and ValueError if a state has another shape, on all ranks.
        """
        optimizer_state.load_whole(self, state)
        if self.streaming is not None:
            self.streaming.adopt()

    def _all_runs(self) -> list[Run]:
        return [run for group in self.runs for run in group]

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            "a ZeroOptimizer has parts of a model in memory of the ranks, and can't be copied: use "
            "state_dict() or whole_state_dict()"
        )


def ZeroOptimizer(  # noqa: N802 (makes an optimizer, as hvd.DistributedOptimizer does)
    optimizer: Factory,
    model: nn.Module,
    axis: Axis | None = None,
    *,
    params: Iterable[nn.Parameter] | Iterable[Group] | None = None,
    stage: int = 1,
    compression: AnyCompressor | None = None,
    **options: Any,
) -> Any:
    """Create an optimizer whose state is divided among ranks.

        optimizer = par.ZeroOptimizer(torch.optim.AdamW, model, mesh.dp, lr=1e-3)

    Each rank updates the part of each parameter that it owns, and all ranks receive the updates.
    Parameters are bitwise the same as after steps of hvd.DistributedOptimizer, in which every rank
    updates all parameters. This requires an elementwise optimizer. See shard().

    The result is an instance of the optimizer's class, so schedulers and par.GradScaler accept it.
    Clip gradients with par.clip_grad_norm_() before step().

    Args:
        optimizer: the class of an elementwise optimizer, or a function that takes parameter groups
            and returns one.
        model: the model. If it is not sharded yet, shard(model, axis, stage) shards it.
        axis: the ranks. None: those of the model's shards.
        params: some of the model's parameters, or parameter groups with their own options, as for
            any optimizer. None: all trainable parameters.
        stage: 1 or 2, for a model that is not sharded yet.
        compression: how gradients are sent between hosts, for a model that is not sharded yet; see
            shard(). None: uncompressed.
        **options: options of the optimizer.

    Raises:
        ValueError: the optimizer is not elementwise, a parameter is not a trainable one of the
            model or is in two groups, the model is sharded over another axis, axis= is missing, or
            compression= is unknown or given for a model that is sharded.
        MismatchError: see shard().
        OffloadError: the disk of offload="disk" has no room for the state; raised on all ranks.
    """
    if not sharded_in(model):
        if axis is None:
            raise ValueError("the model is not sharded: ZeroOptimizer() needs axis=")
        shard(model, axis, stage, compression=compression or Compression.none)
    elif compression is not None:
        raise ValueError("the model is sharded already: give compression= to par.shard()")
    sharded = sharded_of(model)
    if axis is not None and Axis.of(axis).ranks != sharded.axis.ranks:
        raise ValueError(
            f"the model is sharded over the ranks {list(sharded.axis.ranks)}, not over "
            f"{list(Axis.of(axis).ranks)}"
        )
    groups = as_groups(params, sharded)
    kinds = need_elementwise(optimizer, options, sharded.trained[0].master.dtype)
    names, number_of = names_by_group(groups, sharded)
    runs = [list(runs_of_group(sharded, number_of, number)) for number in range(len(groups))]
    made = optimizer(
        [
            {**group, "params": [run.tensor for run in of_group]}
            for group, of_group in zip(groups, runs, strict=True)
        ],
        **options,
    )
    plain = type(made)
    made.__class__ = type(f"Zero{plain.__name__}", (_Zero, plain), {})
    zero: Any = made
    zero.runs, zero.names, zero.sharded, zero.elementwise = runs, names, sharded, kinds
    zero.streaming, store = None, sharded.store
    if store is not None:
        zero.streaming = all_succeed(sharded.axis, lambda: Streaming(zero, store, kinds))
    return zero
