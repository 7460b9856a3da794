"""Pipeline: trains a model whose stages are on several ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
from torch import nn

from horoscale._core import HorovodInternalError
from horoscale.torch.compiling import outside_graph
from horoscale.torch.parallel.mesh import Axis
from horoscale.torch.parallel.pipeline.agreement import agree
from horoscale.torch.parallel.pipeline.backward import need_support
from horoscale.torch.parallel.pipeline.errors import PipelineError
from horoscale.torch.parallel.pipeline.execution import Execution, Outputs, Wiring
from horoscale.torch.parallel.pipeline.links import Parcel
from horoscale.torch.parallel.pipeline.microbatches import Batch, Microbatches
from horoscale.torch.parallel.pipeline.schedule import Action, make_schedule
from horoscale.torch.parallel.pipeline.stage import Hooks, Stage
from horoscale.torch.parallel.pipeline.tied import TiedNames, Ties

# Another rank's stage may be None. A function is called only on the stage's rank.
StageLike: TypeAlias = "nn.Module | Callable[[], nn.Module] | None"
LossFunction: TypeAlias = Callable[[Any, Any], torch.Tensor]


class Pipeline:
    """A model divided into stages, which process microbatches one after the other.

        pipe = par.Pipeline(stages, mesh.pp, loss=nn.functional.cross_entropy, microbatches=8)
        optimizer = torch.optim.AdamW(pipe.parameters())
        for x, target in batches:
            optimizer.zero_grad()
            loss = pipe.step(x, target)
            optimizer.step()

    Loss and gradients are bitwise equal to those of one process that runs the microbatches one
    after the other (up to rounding for tied parameters).
    """

    def __init__(
        self,
        stages: Sequence[StageLike],
        axis: Axis,
        *,
        loss: LossFunction | None = None,
        schedule: str = "1f1b",
        microbatches: int,
        reduction: str = "mean",
        tied: Sequence[TiedNames] = (),
        activations: Hooks | None = None,
    ) -> None:
        """Create a pipeline on all ranks of the axis. Sends nothing yet.

        The schedule, microbatches, reduction and tied parameters must be the same on all ranks.

        Args:
            stages: all stages of the model, in order. The rank at position s % axis.size runs stage
                s. Each is a module that takes the outputs of the preceding stage and returns a
                tensor or a tuple of tensors. Stages of other ranks may be None. A stage may be a
                function without arguments that returns the module; only the stage's rank calls it.
            axis: the ranks.
            loss: a function of the last stage's output (a tuple if it returns one) and a
                microbatch's target that returns a scalar. Required on the last stage's rank.
            schedule: "gpipe", "1f1b", "interleaved" (any number of stages for each rank) or "zb-h1"
                (computes gradients of weights when a rank would be idle). See docs/pipelines.md.
            microbatches: the number of parts into which a step's batch is divided, along its first
                dimension.
            reduction: the reduction of the loss function, which determines how the losses of
                microbatches are combined: "mean" over rows (weighted by the microbatches' rows), or
                "sum".
            tied: parameters that several stages share, such as the embedding of the first and last
                stage. For each, the stages and the parameter's names in them:
                [[(0, "embedding.weight"), (-1, "head.weight")]]. They start with the value in the
                first stage listed, and their gradients are summed over the stages.
            activations: returns the context in which stages save activations for backward passes,
                such as torch.autograd.graph.save_on_cpu or par.DiskOffload(folder).

        Raises:
            ValueError: the number of stages does not fit the schedule, or an argument is invalid.
            UnsupportedError: PyTorch is too old for "zb-h1".
        """
        chunks, remainder = divmod(len(stages), axis.size)
        if remainder or not chunks:
            raise ValueError(
                f"{len(stages)} stages can't be divided among the {axis.size} ranks of axis "
                f"{axis.name}: each rank needs as many"
            )
        if reduction not in ("mean", "sum"):
            raise ValueError(f"reduction={reduction!r} is neither 'mean' nor 'sum'")
        if schedule == "zb-h1":
            need_support()
        self._program = make_schedule(schedule, axis.size, microbatches, chunks)[axis.rank]
        self._axis = axis
        self._loss = loss
        self._microbatches = microbatches
        self._mean = reduction == "mean"
        self._last = len(stages) - 1
        self._stages = {
            number: Stage(_module(stages[number], number, axis), number, activations)
            for number in range(axis.rank, len(stages), axis.size)
        }
        self._module = nn.ModuleDict({str(n): one.module for n, one in self._stages.items()})
        self._ties = Ties(tied, self.stages, len(stages), axis)
        self._said = {
            "schedule": schedule,
            "microbatches": microbatches,
            "stages": len(stages),
            "reduction": reduction,
            **self._ties.said,
            **{f"stage {number}": _signature(stage) for number, stage in enumerate(stages)},
        }
        self._wiring: Wiring | None = None
        self._failure = ""

    @property
    def is_first(self) -> bool:
        """Whether this rank has the first stage, which takes the inputs."""
        return 0 in self._stages

    @property
    def is_last(self) -> bool:
        """Whether this rank has the last stage, which takes the targets."""
        return self._last in self._stages

    @property
    def stages(self) -> dict[int, nn.Module]:
        """The modules that this rank runs, by stage number."""
        return {number: stage.module for number, stage in self._stages.items()}

    @property
    def module(self) -> nn.Module:
        """This rank's stages as one module, with names that begin with the stage numbers.

        For par.DistributedOptimizer(), par.clip_grad_norm_() and state dicts. Do not call it.
        """
        return self._module

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the parameters of this rank's stages."""
        return self._module.named_parameters()

    def parameters(self) -> Iterator[nn.Parameter]:
        """Yield the parameters of this rank's stages."""
        return self._module.parameters()

    @property
    def tied_copies(self) -> list[nn.Parameter]:
        """The tied parameters of this rank that another stage counts.

        For clip_grad_norm_(pipe.module, …, exclude=pipe.tied_copies).
        """
        return self._ties.counted_elsewhere

    @property
    def tied_names(self) -> set[tuple[int, str]]:
        """The stages and names of all parameters that several stages share."""
        return self._ties.names

    @outside_graph
    def step(
        self,
        x: Batch | None = None,
        target: Batch | None = None,
        *,
        scale: float = 1.0,
        sync_tied: bool = True,
    ) -> torch.Tensor:
        """Run all microbatches forward and backward, and accumulate gradients in `grad`.

        All ranks of the axis must call it. To accumulate gradients, call it several times before
        the optimizer's step.

        Args:
            x: the batch: a tensor, or several tensors that the first stage takes. Required on the
                first stage's rank, and ignored on the others.
            target: the target for the loss function. Required on the last stage's rank.
            scale: a factor for the gradients, such as GradScaler's get_scale().
            sync_tied: whether to sum the gradients of tied parameters over their stages. False:
                call sync_tied() later, after a DistributedOptimizer has averaged them.

        Returns:
            The loss of the whole batch, on every rank, not multiplied by `scale`.

        Raises:
            PipelineError: a stage or the loss function failed, or an argument was invalid, on one
                rank; raised on all ranks. It names the stage, the microbatch and the rank.
            RuntimeError: gradients are disabled on this rank, as by torch.no_grad().
            MismatchError: in the first step: the ranks created different pipelines.
            RankFailedError: a rank died or left.
        """
        with self._guarded() as wiring:
            if not torch.is_grad_enabled():
                raise RuntimeError(
                    "step() trains, but gradients are off, as by torch.no_grad(): call evaluate()"
                )
            if sync_tied:
                self._ties.begin()
            targets = self._cut(target, "target", self.is_last, empty=False)
            loss = self._run(wiring, x, targets, scale)
            if sync_tied:
                self._ties.end()
            return loss

    @outside_graph
    def sync_tied(self) -> None:
        """Sum the gradients of tied parameters over their stages, after step(sync_tied=False)."""
        with self._guarded():
            self._ties.sum_gradients()

    @outside_graph
    def evaluate(self, x: Batch | None = None, target: Batch | None = None) -> torch.Tensor:
        """Return the loss of a batch on every rank, without gradients, with modules in eval().

        Arguments and errors are those of step(). The batch may have fewer rows than microbatches.
        """
        with self._guarded() as wiring, torch.no_grad(), self._evaluating():
            targets = self._cut(target, "target", self.is_last, empty=True)
            return self._run(wiring, x, targets)

    @outside_graph
    def predict(self, x: Batch | None = None) -> Any:
        """Return the last stage's output for a batch on its rank, and None on the others.

        Like evaluate(), but without a loss. All ranks of the axis must call it.
        """
        found: list[Outputs] = []

        def sink(_: int, outputs: Outputs) -> torch.Tensor:
            found.append(tuple(one.clone() for one in outputs))
            return torch.zeros(())

        with self._guarded() as wiring, torch.no_grad(), self._evaluating():
            self._execute(wiring, x, sink)
        joined = tuple(torch.cat(parts) for parts in zip(*found, strict=True))
        return joined[0] if len(joined) == 1 else joined or None

    def _run(
        self, wiring: Wiring, x: Batch | None, targets: Microbatches | None, scale: float = 1.0
    ) -> torch.Tensor:
        """Run the microbatches; return the loss."""
        losses: list[torch.Tensor] = []

        def sink(microbatch: int, outputs: Outputs) -> torch.Tensor:
            assert targets is not None
            assert self._loss is not None
            output = outputs[0] if len(outputs) == 1 else outputs
            loss = self._loss(output, targets.as_given(microbatch))
            if loss.dim():
                raise ValueError(f"the loss is no scalar, but has the shape {list(loss.shape)}")
            if self._mean:
                loss = loss * targets.share(microbatch)
            losses.append(loss.detach())
            return loss if scale == 1.0 else loss * scale

        self._execute(wiring, x, sink)
        return self._everywhere(wiring, sum(losses[1:], losses[0]) if losses else None)

    def _execute(
        self, wiring: Wiring, x: Batch | None, sink: Callable[[int, Outputs], torch.Tensor]
    ) -> None:
        training = torch.is_grad_enabled()
        inputs = self._cut(x, "x", self.is_first, empty=not training)

        def source(microbatch: int) -> Parcel | None:
            assert inputs is not None
            return Parcel(inputs[microbatch]) if inputs.rows(microbatch) else None

        program = [one for one in self._program if training or one.action is Action.FORWARD]
        Execution(self._stages, self._last, wiring).run(program, source, sink)

    def _cut(
        self, batch: Batch | None, what: str, needed: bool, empty: bool
    ) -> Microbatches | None:
        if not needed:
            return None
        if batch is None:
            raise ValueError(f"{what} is needed on this rank")
        if what == "target" and self._loss is None:
            raise ValueError("the pipeline has no loss function: give Pipeline(…, loss=…)")
        return Microbatches(batch, self._microbatches, what, empty)

    def _everywhere(self, wiring: Wiring, loss: torch.Tensor | None) -> torch.Tensor:
        """Return the loss on every rank; the last stage's rank sends it."""
        if loss is not None:
            for link in wiring.results:
                link.send([loss], [False])
            return loss
        parcel = wiring.results[0].receive()
        assert parcel is not None
        result = parcel.tensors[0]
        assert result is not None
        result = result.clone()
        parcel.release()
        return result

    @contextmanager
    def _guarded(self) -> Iterator[Wiring]:
        """Agree before the first step; report this rank's errors to the other ranks."""
        if self._failure:
            raise PipelineError(f"this pipeline has failed before: {self._failure}")
        begins = self._wiring is None
        wiring = self._wiring or self._begin()
        try:
            if begins:
                self._ties.spread_values()
            yield wiring
        except HorovodInternalError as error:
            self._abandon(str(error))
            raise
        except PipelineError as error:
            reason = str(error)
            if error.__cause__ is not None:  # it occurred on this rank
                reason = f"rank {self._axis.ranks[self._axis.rank]}: {reason}"
            self._abandon(reason, wiring)
            raise PipelineError(reason) from error.__cause__
        except BaseException as error:
            where = f"rank {self._axis.ranks[self._axis.rank]}"
            self._abandon(f"{where}: {type(error).__name__}: {error}", wiring)
            raise

    def _begin(self) -> Wiring:
        agreed = agree(self._axis, self._said | self._ties.frozen)
        wiring = Wiring(self._axis, self._last + 1, self._microbatches, agreed)
        self._ties.connect(wiring.tie, agreed.first_tag + 2 * self._last + 4)
        self._wiring = wiring
        return wiring

    def _abandon(self, reason: str, wiring: Wiring | None = None) -> None:
        self._failure = reason
        for stage in self._stages.values():
            stage.abandon()
        if wiring is not None:
            wiring.fail(reason)

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        """Put the modules in eval() inside the block."""
        training = [
            module
            for stage in self._stages.values()
            for module in stage.module.modules()
            if module.training
        ]
        try:
            for module in training:
                module.training = False
            yield
        finally:
            for module in training:
                module.training = True


def _module(stage: StageLike, number: int, axis: Axis) -> nn.Module:
    """Return the module of a stage that this rank runs."""
    where = f"stage {number}, which rank {axis.ranks[axis.rank]} runs,"
    if stage is None:
        raise ValueError(f"{where} is None: only stages of other ranks may be")
    module = stage if isinstance(stage, nn.Module) else stage()
    if not isinstance(module, nn.Module):
        raise TypeError(f"{where} is no module: {module!r}")
    return module


def _signature(stage: StageLike) -> str | None:
    """Describe a module, to detect ranks that divide the model differently."""
    if not isinstance(stage, nn.Module):
        return None
    shapes = [f"{name}{list(one.shape)}" for name, one in stage.named_parameters()]
    return f"{len(shapes)} parameters: {', '.join(shapes[:4])}{', …' if len(shapes) > 4 else ''}"
