"""par.shard(): a model whose gradients, optimizer state and parameters are divided among ranks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from horoscale._core import Encoding
from horoscale.common.synchronization import barrier
from horoscale.torch.compression import AnyCompressor, Compression, divide
from horoscale.torch.parallel.mesh import Axis
from horoscale.torch.parallel.offload import Store
from horoscale.torch.parallel.offload.malloc import give_free_memory_back, give_large_blocks_back
from horoscale.torch.parallel.zero.agreement import all_succeed, need_same_model
from horoscale.torch.parallel.zero.bucket import Bucket
from horoscale.torch.parallel.zero.flat import FlatShards, offloaded_bytes
from horoscale.torch.parallel.zero.gathering import Gathering, called
from horoscale.torch.parallel.zero.gradients import Gradients
from horoscale.torch.parallel.zero.materializing import Initialize, Materialized
from horoscale.torch.parallel.zero.units import (
    Unit,
    UnitSpec,
    alike,
    find_units,
    split_by_bytes,
)

STAGES = (1, 2, 3)
OFFLOADS = (None, "cpu", "disk")
_ATTRIBUTE = "_horoscale_zero"
_MIB = 1 << 20


class Sharded:
    """The sharded state of a model after shard(). `sharded_of(model)` returns it.

    Attributes:
        axis: the ranks.
        stage: 1, 2 or 3.
        trained: the shards of trained parameters, in the order of the model.
        frozen: the shards of other parameters; empty except in stage 3.
        gradients: moves gradients from autograd to the shards.
        names: the names of all sharded parameters by id; the first name if tied.
        store: the disk with offloaded state, if any.
    """

    def __init__(
        self,
        model: nn.Module,
        axis: Axis,
        stage: int,
        units: list[Unit],
        dtype: torch.dtype | None,
        reduce_dtype: torch.dtype | None,
        passes: int,
        prefetch: int,
        shared: bool,
        encoding: Encoding,
        store: Store | None,
        give_values: Callable[[Unit], None],
    ) -> None:
        """Shard the parameters of units; see shard(). First calls `give_values` with each unit."""
        self.axis = axis
        self.stage = stage
        self.store = store
        self.trained: list[FlatShards] = []
        self.frozen: list[FlatShards] = []
        by_unit: list[tuple[nn.Module, list[FlatShards]]] = []
        for unit in units:
            made = []
            give_values(unit)
            for parameters in alike(unit.parameters):
                first = next(iter(parameters.values()))
                if first.requires_grad or stage == 3:
                    stored = _stored(first, dtype)
                    shards = FlatShards(parameters, axis, stored, shared, stage < 3, store)
                    (self.trained if first.requires_grad else self.frozen).append(shards)
                    made.append(shards)
                elif dtype and first.is_floating_point():
                    for parameter in parameters.values():
                        parameter.data = parameter.data.to(dtype)
            by_unit.append((unit.module, made))
        self._settle()
        self._is_view = all(one.is_view for one in self._all)
        self.names = {
            id(parameter): place.name
            for one in self._all
            for place, parameter in zip(one.places, one.parameters, strict=True)
        }
        keeps_gradients = stage == 1 and not encoding.is_lossy
        buckets = [
            Bucket(
                *(one, reduce_dtype or one.dtype, one.master.dtype, keeps_gradients, passes),
                encoding,
                store=store if stage == 3 else None,
            )
            for one in reversed(self.trained)  # in the order of backward passes
        ]
        self.gradients = Gradients(buckets, passes)
        self._gathering: Gathering | None = None
        if stage == 3 and not self._is_view:
            self._gathering = Gathering(model, by_unit, prefetch)
        of_model: Any = model  # its hooks have no types
        self._hooks = [
            of_model.register_state_dict_pre_hook(lambda *_: self.gather()),
            of_model._register_load_state_dict_pre_hook(lambda *_: self._begin_load()),
            of_model.register_load_state_dict_post_hook(lambda *_: self._end_load()),
        ]
        if dtype is not None:
            self._hooks += [
                module.register_forward_pre_hook(
                    lambda _, args, kwargs: _cast((args, kwargs), dtype), with_kwargs=True
                )
                for module in called(model)
            ]

    @property
    def _all(self) -> list[FlatShards]:
        return self.trained + self.frozen

    def begin_update(self) -> None:
        """Wait until other ranks have read the values that this rank will overwrite. Collective."""
        self._settle()

    def publish(self, rounded: bool = False) -> None:
        """Send the masters' values to all ranks. Collective.

        `rounded`: whether the parameters' memory already has them, in its dtype.
        """
        for one in self._all:
            one.publish(rounded)
        self._settle()
        if self.store is not None:
            self.store.drop()

    def load(self, values: Mapping[int, torch.Tensor]) -> None:
        """Load this rank's part of whole parameters, given by the parameters' ids. Collective.

        Values of a larger dtype than the parameters' are loaded into the masters without rounding.
        Raises KeyError if one is missing.
        """
        self.begin_update()
        for one in self._all:
            one.load(
                {
                    place.name: values[id(parameter)]
                    for place, parameter in zip(one.places, one.parameters, strict=True)
                }
            )
        self.publish()

    def owned_gradients(self) -> list[torch.Tensor]:
        """Return this rank's reduced gradients, flat. Collective in the first call of a step."""
        self.gradients.synchronize()
        found = [bucket.gradient for bucket in self.gradients.buckets]
        return [one for one in found if one is not None]

    def parts_of_gradients(self) -> Iterator[tuple[nn.Parameter, torch.Tensor]]:
        """Yield each parameter's part of owned_gradients(), flat, without padding."""
        for bucket in self.gradients.buckets:
            parameters = {
                place.name: parameter
                for place, parameter in zip(
                    bucket.shards.places, bucket.shards.parameters, strict=True
                )
            }
            if bucket.gradient is not None:
                for one in bucket.shards.owned():
                    part = bucket.gradient[one.offset :][: one.end - one.begin]
                    yield parameters[one.name], part

    def whole_gradients(self) -> dict[int, torch.Tensor]:
        """Return the reduced gradients of all ranks by the parameters' ids. Collective."""
        self.gradients.synchronize()
        found = {}
        for bucket in self.gradients.buckets:
            shards = bucket.shards
            if bucket.gradient is not None:
                whole = shards.gathered(bucket.gradient)
                for place, parameter in zip(shards.places, shards.parameters, strict=True):
                    found[id(parameter)] = whole[place.name]
        return found

    def gather(self) -> None:
        """Gather all parameters, until their next forward pass. Collective in stage 3."""
        if self._gathering is not None:
            self._gathering.gather_all()

    def free(self) -> None:
        """Free the parameters that gather() has gathered."""
        if self._gathering is not None:
            self._gathering.free_all()

    def close(self) -> None:
        """Give the parameters their own memory, and release shared memory. Collective."""
        self.gradients.clear()
        self.gradients.remove()
        for hook in self._hooks:
            hook.remove()
        if self._gathering is not None:
            self._gathering.remove()
        for one in self._all:
            one.close()
        if self.store is not None:
            self.store.close()

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Raise TypeError: a copy of the model would share its memory and hooks."""
        raise TypeError(
            "a sharded model can't be copied or pickled: copy it before par.shard(), or load "
            "par.whole_state_dict(model) into a new one"
        )

    def _settle(self) -> None:
        """Wait until all ranks are done with shared memory."""
        if self.axis.set is not None and any(one.is_view for one in self._all):
            barrier(self.axis.set)

    def _begin_load(self) -> None:
        self.gather()
        self.begin_update()

    def _end_load(self) -> None:
        """Take this rank's part of loaded values, which are the same on all ranks."""
        for one in self._all:
            one.reload()
        self._settle()


def shard(
    model: nn.Module,
    axis: Axis,
    stage: int = 1,
    *,
    unit: UnitSpec | None = None,
    prefetch: int = 1,
    dtype: torch.dtype | None = None,
    reduce_dtype: torch.dtype | None = None,
    backward_passes_per_step: int = 1,
    bucket_bytes: int = 16 * _MIB,
    shared: bool = True,
    compression: AnyCompressor = Compression.none,
    offload: str | None = None,
    offload_folder: str | os.PathLike[str] | None = None,
    initialize: Initialize | None = None,
) -> nn.Module:
    """Divide the training state of a model among ranks that train it on different samples.

    Each rank owns an equal part of all parameters. It holds the optimizer state only for its part
    (stage 1), keeps gradients only for its part (stage 2), and holds other parameters only while it
    computes with them (stage 3). On one host the parameters are in shared memory in every stage:
    nothing is gathered, and all ranks see what one rank writes to a parameter. The stages are those
    of ZeRO (Rajbhandari et al. 2020, arXiv 1910.02054).

        model = par.shard(model, mesh.dp, stage=3, unit=Block)
        optimizer = par.ZeroOptimizer(torch.optim.AdamW, model, lr=1e-3)
        loss = model(own_samples)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    Parameters remain the same objects. After backward() they have no `grad`, because the optimizer
    holds the gradients. Freeze and tie parameters before this call. Collective.

    Args:
        model: the model, with the same values on all ranks, on the CPU. With tensor or pipeline
            parallelism, this rank's part of it.
        axis: the ranks that have the same parameters: mesh.dp, mesh["dp", "cp"], or a process set.
        stage: 1, 2 or 3.
        unit: the modules whose parameters are gathered and reduced together, such as the blocks of
            a transformer: a class, a pattern of names ("blocks.*"), or several of these. Required
            in stage 3. None: as many parameters as fit in `bucket_bytes`.
        prefetch: in stage 3, the number of units to gather ahead while one computes, if the ranks
            do not share memory.
        dtype: the dtype in which parameters are stored, gathered and used. The floating-point
            inputs of the model, or of a pipeline's stages, are converted to it. The optimizer
            updates values of the parameters' current dtype, such as float32. None: that dtype for
            everything.
        reduce_dtype: the dtype in which gradients are summed. None: that of the parameters.
        backward_passes_per_step: the number of backward passes to accumulate before a reduction.
        bucket_bytes: the bytes of parameters to reduce together in stages 1 and 2.
        shared: False: use separate memory for each rank, as if the ranks were on different hosts.
        compression: how gradients are sent between hosts: Compression.none, fp16, bf16, int8, int4,
            onebit, topk(ratio) or adaptive(error) of horoscale.torch. It applies to all gradients
            of a unit, including those of vectors and embeddings. Parameters are gathered
            uncompressed. On one host nothing is compressed.
        offload: "disk": keep the optimizer's state in a file while it is not in use, in stage 3
            also parameters and gradients, of which each rank then holds only its own part. "cpu":
            keep it in host memory, where all of it is in any case. The results are bitwise the
            same.
        offload_folder: the folder of the file, on a disk of this host. None: the system's folder
            for temporary files.
        initialize: initializes the parameters and buffers of a module, if the model was created on
            the device "meta". It is called with each module that has some, unit by unit, so that no
            rank ever needs the memory for all of them. All ranks draw the same random numbers.
            None: the module's `reset_parameters()`. To continue training, load a checkpoint
            afterwards.

    Returns:
        The model.

    Raises:
        ValueError: the stage or compression is unknown, `unit` is missing or matches nothing, the
            model is already sharded or has no trainable parameters, or a parameter is not on the
            CPU or has a gradient.
        OffloadError: the folder is full, missing or not writable on a rank; raised on all of them.
        MismatchError: the ranks call it with different models or options; raised on all of them.
        HorovodInternalError: there is not enough memory, or a rank failed.
    """
    if stage not in STAGES:
        raise ValueError(f"stage={stage!r}: there are the stages 1, 2 and 3")
    if stage == 3 and unit is None:
        raise ValueError("stage=3 needs unit=: the class of the model's blocks, for example")
    if sharded_in(model):
        raise ValueError(f"this {type(model).__qualname__} is sharded already")
    for name, value in (("prefetch", prefetch), ("bucket_bytes", bucket_bytes)):
        if value < 0:
            raise ValueError(f"{name}={value} is negative")
    if backward_passes_per_step < 1:
        raise ValueError(f"backward_passes_per_step={backward_passes_per_step}: at least 1")
    if offload not in OFFLOADS:
        raise ValueError(f'offload={offload!r}: there are None, "cpu" and "disk"')
    encoding = _encoding_of(compression)
    axis = Axis.of(axis)
    units = find_units(model, unit)
    _need_memory(units)
    if offload == "disk":
        give_large_blocks_back()  # before any are allocated
    materialized = Materialized(model, initialize)
    if not materialized.is_empty:
        units = find_units(model, unit)
    options = {
        "stage": stage,
        "prefetch": prefetch,
        "dtype": dtype,
        "reduce_dtype": reduce_dtype,
        "backward_passes_per_step": backward_passes_per_step,
        "bucket_bytes": bucket_bytes,
        "shared": shared,
        "compression": repr(compression),
        "offload": offload,
    }
    of_units = [one.parameters for one in units]
    need_same_model(axis, options, of_units, compare_values=materialized.is_empty)
    materialized.give_buffers()
    if stage < 3:
        for one in units:
            materialized.give(one)
        units = split_by_bytes(units, bucket_bytes)
    store = None
    if offload == "disk":
        needed = _offloaded_bytes(units, axis, dtype, stage)
        store = all_succeed(axis, lambda: Store(offload_folder, needed))
    model.__dict__[_ATTRIBUTE] = Sharded(
        *(model, axis, stage, units, dtype, reduce_dtype),
        passes=backward_passes_per_step,
        prefetch=prefetch,
        shared=shared,
        encoding=encoding,
        store=store,
        give_values=materialized.give if stage == 3 else lambda _: None,
    )
    materialized.need_same_values(axis)
    if store is not None:
        give_free_memory_back()  # of the old parameters
    return model


def unshard(model: nn.Module) -> nn.Module:
    """Undo shard(): every rank gets all parameters in its own memory. Collective.

    An optimizer of the shards can no longer be used. Parameters keep their current dtype.

    Raises ValueError if the model is not sharded.
    """
    sharded_of(model).close()
    del model.__dict__[_ATTRIBUTE]
    return model


def sharded_of(model: nn.Module) -> Sharded:
    """Return the sharded state of a model; raise ValueError if shard() was not called."""
    found = model.__dict__.get(_ATTRIBUTE)
    if found is None:
        raise ValueError(f"this {type(model).__qualname__} is not sharded: call par.shard() first")
    assert isinstance(found, Sharded)
    return found


def sharded_in(model: nn.Module) -> list[Sharded]:
    """Return the sharded states of a model or of its modules; empty if shard() was not called."""
    return [one.__dict__[_ATTRIBUTE] for one in model.modules() if _ATTRIBUTE in one.__dict__]


@contextmanager
def gathered(model: nn.Module) -> Iterator[None]:
    """Gather the whole parameters of a model inside the block, to read them. Collective.

    Required in stage 3 if the ranks do not share memory; otherwise it does nothing.
    """
    found = sharded_in(model)
    for one in found:
        one.gather()
    try:
        yield
    finally:
        for one in found:
            one.free()


def _encoding_of(compression: AnyCompressor) -> Encoding:
    """Return the encoding of gradients; raise ValueError unless the library implements it."""
    if hasattr(compression, "compress") and hasattr(compression, "decompress"):
        encoding, compressor = divide(compression, ())
        if compressor is Compression.none:
            return encoding
    raise ValueError(
        f"compression={compression!r}: gradients of a sharded model are sent as Compression.none, "
        "fp16, bf16, int8, int4, onebit, topk(ratio) or adaptive(error)"
    )


def _stored(parameter: nn.Parameter, dtype: torch.dtype | None) -> torch.dtype:
    """Return the dtype in which a parameter is stored."""
    return dtype if dtype and parameter.is_floating_point() else parameter.dtype


def _offloaded_bytes(units: list[Unit], axis: Axis, dtype: torch.dtype | None, stage: int) -> int:
    """Return the disk space for a rank's parameters, masters and gradients."""
    return sum(
        offloaded_bytes(own.values(), axis, _stored(first, dtype), stage < 3)
        for unit in units
        for own in alike(unit.parameters)
        if (first := next(iter(own.values()))).requires_grad or stage == 3
    )


def _need_memory(units: list[Unit]) -> None:
    trained = False
    for unit in units:
        for name, parameter in unit.parameters.items():
            on_cpu = parameter.is_cpu or parameter.is_meta
            if not on_cpu or parameter.layout != torch.strided:
                raise ValueError(
                    f"{name} is on {parameter.device} with layout {parameter.layout}: only dense "
                    "parameters on the CPU can be sharded"
                )
            if parameter.grad is not None:
                raise ValueError(
                    f"{name} has a gradient, which would be added to that of the next backward "
                    "pass: call model.zero_grad() before par.shard()"
                )
            trained |= parameter.requires_grad
    if not trained:
        raise ValueError("there is nothing to shard: no parameter requires a gradient")


def _cast(value: Any, dtype: torch.dtype) -> Any:
    """Convert the floating-point tensors in positional and named arguments."""
    return torch.utils._pytree.tree_map(
        lambda one: one.to(dtype) if torch.is_tensor(one) and one.is_floating_point() else one,
        value,
    )
