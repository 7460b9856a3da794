"""Stage: one stage of a pipeline on this rank, and its saved microbatches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeAlias

import torch
from torch import nn

from horoscale.torch.parallel.pipeline.backward import SplitBackward
from horoscale.torch.parallel.pipeline.errors import PipelineError
from horoscale.torch.parallel.pipeline.frames import Tensors
from horoscale.torch.parallel.pipeline.links import Parcel

Hooks: TypeAlias = Callable[[], AbstractContextManager[object]]
Loss: TypeAlias = Callable[[tuple[torch.Tensor, ...]], torch.Tensor]


class _Kept:
    """The data that a microbatch's backward pass needs."""

    def __init__(self, parcel: Parcel, leaves: Tensors, outputs: Sequence[torch.Tensor]) -> None:
        # Parcels whose memory the leaves use. Later also received gradients: gradients that a stage
        # passes on unchanged, or that its weights wait for, use that memory.
        self.parcels = [parcel]
        self.leaves = leaves  # the inputs
        self.outputs = outputs
        self.split: SplitBackward | None = None

    def learnable(self) -> list[torch.Tensor]:
        """Return the inputs that need a gradient."""
        return [one for one in self.leaves if one is not None and one.requires_grad]


class Stage:
    """One stage. Runs its module forward and backward, microbatch by microbatch."""

    def __init__(self, module: nn.Module, number: int, hooks: Hooks | None = None) -> None:
        """`hooks` returns the context in which activations are saved."""
        self.module = module
        self.number = number
        self._hooks = hooks
        self._kept: dict[int, _Kept] = {}
        self._trained: list[nn.Parameter] | None = None  # in this step, after the first lookup

    def begin_step(self) -> None:
        """Look up the module's parameters again: other ones may be trainable in this step."""
        self._trained = None

    def forward(
        self, microbatch: int, parcel: Parcel, loss: Loss | None = None
    ) -> tuple[torch.Tensor, ...]:
        """Return the outputs, or the result of `loss` for them.

        If gradients are enabled, all data that the backward pass needs is kept.
        """
        leaves = _leaves(parcel)
        try:
            if self._hooks is None or not torch.is_grad_enabled():
                outputs = self._outputs(leaves, loss)
            else:
                with self._hooks():
                    outputs = self._outputs(leaves, loss)
        except Exception as error:
            shapes = ", ".join(_describe(one) for one in leaves)
            raise PipelineError(
                f"stage {self.number} failed at microbatch {microbatch}, forward, with {shapes}: "
                f"{type(error).__name__}: {error}"
            ) from error
        if torch.is_grad_enabled():
            self._kept[microbatch] = _Kept(parcel, leaves, outputs)
        return outputs

    def _outputs(self, leaves: Tensors, loss: Loss | None) -> tuple[torch.Tensor, ...]:
        result = self.module(*(_entered(leaf) for leaf in leaves))
        outputs = result if isinstance(result, tuple) else (result,)
        for output in outputs:
            if not isinstance(output, torch.Tensor):
                raise TypeError(
                    f"a stage returns a tensor or a tuple of tensors, not {type(output).__name__}"
                )
        return outputs if loss is None else (loss(outputs),)

    def backward(self, microbatch: int, parcel: Parcel) -> Tensors:
        """Accumulate the gradients of the weights; return those of the inputs.

        `parcel` has the gradients of the outputs; it is empty for a loss.
        """
        kept = self._kept[microbatch]
        kept.parcels.append(parcel)
        with self._naming(microbatch), self._owning_gradients(kept):
            wanted, given = _differentiable(kept.outputs, parcel.tensors)
            if wanted:
                torch.autograd.backward(wanted, given)
        return _gradients(kept.leaves)

    def backward_inputs(self, microbatch: int, parcel: Parcel) -> Tensors:
        """Return the gradients of the inputs; backward_weights() computes the rest."""
        kept = self._kept[microbatch]
        kept.parcels.append(parcel)
        with self._naming(microbatch), self._owning_gradients(kept):
            wanted, given = _differentiable(kept.outputs, parcel.tensors)
            if wanted:
                kept.split = SplitBackward(wanted, given, kept.learnable())
                kept.split.run_inputs()
        kept.outputs = ()
        return _gradients(kept.leaves)

    def backward_weights(self, microbatch: int) -> None:
        """Accumulate the gradients of the weights, after backward_inputs()."""
        kept = self._kept[microbatch]
        split = kept.split
        if split is not None:
            with self._naming(microbatch), self._owning_gradients(kept):
                split.run_weights()

    @contextmanager
    def _owning_gradients(self, kept: _Kept) -> Iterator[None]:
        """Ensure that gradients of weights have their own memory.

        Autograd stores the first gradient of a weight in `grad` without a copy. It may be a view of
        memory received from the next stage, which will be reused.
        """
        borrowed = {address for parcel in kept.parcels for address in parcel.borrowed}
        if not borrowed:
            yield
            return
        if self._trained is None:  # walking through a large module takes time
            self._trained = [one for one in self.module.parameters() if one.requires_grad]

        def own(gradient: torch.Tensor) -> torch.Tensor | None:
            is_borrowed = gradient.untyped_storage().data_ptr() in borrowed
            return gradient.clone() if is_borrowed else None

        hooks = [
            one.register_hook(own)  # type: ignore[no-untyped-call]
            for one in self._trained
            if one.grad is None
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _naming(self, microbatch: int) -> _Naming:
        return _Naming(f"stage {self.number} failed at microbatch {microbatch}, backward")

    def release(self, microbatch: int) -> None:
        """Drop a microbatch, and release the memory of its inputs and gradients."""
        parcels = self._kept.pop(microbatch).parcels
        for parcel in parcels:
            parcel.release()

    def abandon(self) -> None:
        """Drop all microbatches after a failed step."""
        self._kept.clear()


class _Naming:
    """Converts errors of a stage's module to PipelineErrors that say where they occurred."""

    def __init__(self, where: str) -> None:
        self._where = where

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, PipelineError):
            raise PipelineError(f"{self._where}: {type(error).__name__}: {error}") from error


class _Entry(torch.autograd.Function):
    """Makes a leaf a result, as in one process, so that it may be modified in place.

    Its memory is a slot that was filled for this stage only.
    """

    @staticmethod
    def forward(ctx: Any, leaf: torch.Tensor) -> torch.Tensor:
        return leaf.detach()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


def _entered(leaf: torch.Tensor | None) -> torch.Tensor | None:
    if leaf is None or not leaf.requires_grad:
        return leaf
    result: torch.Tensor = _Entry.apply(leaf)  # type: ignore[no-untyped-call]
    return result


def _leaves(parcel: Parcel) -> Tensors:
    """Return the inputs as leaves of this rank's part of the graph."""
    leaves: list[torch.Tensor | None] = []
    for index, tensor in enumerate(parcel.tensors):
        if tensor is None:
            leaves.append(None)
            continue
        leaf = tensor.detach()
        wanted = index < len(parcel.differentiable) and parcel.differentiable[index]
        leaves.append(leaf.requires_grad_(wanted and torch.is_grad_enabled()))
    return tuple(leaves)


def _differentiable(
    outputs: Sequence[torch.Tensor], gradients: Tensors
) -> tuple[list[torch.Tensor], list[torch.Tensor | None]]:
    """Return the outputs that have a gradient, and the gradients: None, meaning 1, for a loss."""
    wanted: list[torch.Tensor] = []
    given: list[torch.Tensor | None] = []
    is_loss = not gradients
    for output, gradient in zip(outputs, gradients or [None] * len(outputs), strict=True):
        if output.requires_grad and (is_loss or gradient is not None):
            wanted.append(output)
            given.append(gradient)
    return wanted, given


def _gradients(leaves: Tensors) -> Tensors:
    return tuple(None if leaf is None or not leaf.requires_grad else leaf.grad for leaf in leaves)


def _describe(tensor: torch.Tensor | None) -> str:
    if tensor is None:
        return "None"
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
