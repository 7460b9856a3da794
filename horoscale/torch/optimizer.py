"""DistributedOptimizer: an optimizer whose gradients are reduced over the ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from horoscale._core import UnsupportedError
from horoscale.common import Adasum, Average
from horoscale.common.arguments import resolve_op, set_id
from horoscale.common.process_sets import ProcessSet, global_process_set
from horoscale.torch.adasum import AdasumStep, distribute_steps
from horoscale.torch.compression import Compression, NoneCompressor, select
from horoscale.torch.gradients import Settings
from horoscale.torch.local_sgd import LocalOptimizer, MakeOuter, Travel, train_locally
from horoscale.torch.low_rank import PowerSGD
from horoscale.torch.options import (
    NamedParameters,
    check_local,
    check_passes,
    grouping_of,
    names_of,
    ready_in_backward,
    reduction_of,
)
from horoscale.torch.overlap import SEPARABLE
from horoscale.torch.reduced_step import ReducedStep, reduce_gradients
from horoscale.torch.reducer import GradientReducer, Parameters


def DistributedOptimizer(  # noqa: N802 (Horovod's name; it used to be a class)
    optimizer: torch.optim.Optimizer,
    named_parameters: NamedParameters | None = None,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Parameters] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
    overlap_step: bool = False,
    gradients_ready: str | None = None,
    sync_every: int | None = None,
    outer_optimizer: MakeOuter | None = None,
) -> Any:
    """Make an optimizer reduce its gradients over the ranks before each step.

    ::

        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())

    The reduction of a gradient starts as soon as the backward pass has computed it, and overlaps
    with the rest of the backward pass. The optimizer is modified in place and remains an instance
    of its class, so its state, schedulers and hooks stay valid. Copies of it (copy.deepcopy,
    pickle) are plain optimizers.

    Until its reduction is complete, a parameter's `grad` is the local gradient of this rank and
    must not be modified. (Without shared memory for the result, for example on a GPU, it may
    already be partly reduced.) synchronize() and step() make it the average. To modify averages,
    for example to clip them, call synchronize() first, and step() within skip_synchronize(); or let
    backward() return averages with `gradients_ready`. Hooks on accumulated gradients
    (register_post_accumulate_grad_hook) see the local gradients if they are registered before this
    call.

    Averages are stored in memory that the ranks of a host share. The next step overwrites them,
    even after zero_grad(): clone a gradient to keep it. A parameter that this rank's loss does not
    depend on contributes zeros, and its gradient is the average over all ranks.

    Args:
        optimizer: any torch.optim.Optimizer.
        named_parameters: usually model.named_parameters(); must contain at least the optimizer's
            parameters. The names appear in errors and timelines. None: parameters are numbered.
        compression: how gradients are sent between hosts; within a host nothing is rounded. The
            same on all ranks. One of

            - Compression.none;
            - Compression.fp16 or .bf16: half the bytes;
            - Compression.int8, .int4, .onebit or .topk(ratio): 4 to 100 times fewer bytes, with
              error feedback;
            - Compression.adaptive(error): one of these, or none, for each gradient, depending on
              the network;
            - Compression.powersgd(rank): two low-rank factors instead of each matrix, also within
              hosts;
            - a dict from name patterns to these, {"*.weight": Compression.int8}: the first match
              applies, and parameters without a match are not compressed;
            - a function of a parameter's name and the parameter that returns one of these;
            - a Compressor of your own.

            Lossy encodings skip vectors, small parameters and, except for PowerSGD, embeddings.
        backward_passes_per_step: number of backward passes per step, whose gradients are
            accumulated locally.
        op: Average, Sum, Min, Max or Product. Adasum: step() applies the optimizer with this rank's
            local gradients and reduces the resulting changes of the parameters with Adasum, so
            gradients, momenta and other state differ between ranks. `groups` and `num_groups` have
            no effect with it. GradScaler needs the same gradients on all ranks, so it does not work
            with Adasum.
        gradient_predivide_factor: splits the division of an average: gradients are divided by this
            factor before they are summed, and by size / factor afterwards. op=Average only.
        num_groups: deprecated; the same as `groups` with a number.
        groups: gradients that are reduced in one operation: a number of groups of equal length, or
            a list of lists of parameters; other parameters are reduced individually. None:
            horoscale fuses small gradients as they become ready.
        sparse_as_dense: reduce sparse gradients as dense ones, and pass dense ones to the
            optimizer, except to SparseAdam, which needs sparse ones. Otherwise their indices and
            values are gathered, which needs op=Average or op=Sum.
        process_set: the ranks that train together. Other ranks train on their own.
        overlap_step: let step() return immediately. Each parameter is updated when it is next read,
            usually in the next forward pass, so communication overlaps with that as well. Results
            are bitwise the same. Read weights through the model's modules (the forward pass,
            state_dict(), parameters(), attributes), or call optimizer.finish_step() first. Clear
            gradients with optimizer.zero_grad(): the model's zero_grad() reads all parameters. Not
            deferred are the first step, and steps whose gradients are read before
            (synchronize(), GradScaler), that have a closure, of optimizers with hooks, and of
            compiled models. For optimizers of PyTorch that update each parameter independently:
            SGD, Adam, AdamW, RMSprop and similar ones.
        gradients_ready: when `grad` becomes the average. "step": in step() or synchronize(), as
            with Horovod. Earlier changes are lost, with a warning, except for changes through
            `grad.data`, which PyTorch does not record. "backward": when backward() returns, as with
            DistributedDataParallel. Then clip_grad_norm_() works without further calls, zero_grad()
            may follow backward(), and another backward() before step() is reduced again
            (op=Average only). This costs one small allreduce at the end of each backward pass, by
            which the ranks agree that all gradients are complete. If a parameter has no gradient on
            some rank, averages come in step(). Not possible with overlap_step. None: the value of
            HOROSCALE_GRADIENTS_READY, otherwise "step".
        sync_every: local SGD, for slow networks (docs/local_sgd.md): each rank takes this many
            steps with its local gradients, then the ranks average the changes of their parameters.
            `compression` applies to these changes. op=Average only; not with groups,
            sparse_as_dense, overlap_step, gradients_ready="backward" or PowerSGD. None: gradients
            are reduced in every step.
        outer_optimizer: with sync_every: a function that takes a list of tensors and returns the
            optimizer that applies the average change to them, as in DiLoCo, for example
            lambda parameters: torch.optim.SGD(parameters, lr=0.7, momentum=0.9, nesterov=True).
            None: parameters become the average of the ranks' parameters.

    Returns:
        The optimizer, with synchronize(), skip_synchronize(), no_sync() and
        set_backward_passes_per_step(). With sync_every also synchronize_parameters(). Otherwise,
        unless op is Adasum, also set_local_scale(), set_loss_scale() and finish_step().

    Raises:
        ValueError: hvd.init() was not called; names are missing or not unique; an option is wrong;
            a parameter belongs to another DistributedOptimizer with different options.
        NotImplementedError: options that can't be combined, such as gradient_predivide_factor
            without op=Average, or op=Adasum with lossy compression, overlap_step or
            gradients_ready="backward".
    """
    if isinstance(optimizer, ReducedStep | LocalOptimizer | AdasumStep):
        raise ValueError("the optimizer is a DistributedOptimizer already")
    if outer_optimizer is not None and sync_every is None:
        raise ValueError("outer_optimizer needs sync_every, the steps between synchronizations")
    if overlap_step and type(optimizer) not in SEPARABLE:
        known = ", ".join(one.__name__ for one in SEPARABLE)
        raise ValueError(
            f"overlap_step=True is not possible with {type(optimizer).__name__}, which may need "
            f"all gradients at once; it is with {known}"
        )
    in_backward = ready_in_backward(gradients_ready, overlap_step)
    if process_set.process_set_id is None or process_set.included() is not False:
        set_id(process_set)  # raises if it can't be used; ranks outside of it train on their own
    parameters = [one for group in optimizer.param_groups for one in group["params"]]
    check_passes(backward_passes_per_step)
    names = names_of(named_parameters, parameters)
    selection, compressor = select(compression, parameters)
    if sync_every is not None:
        check_local(
            sync_every,
            op=resolve_op(op),
            gradient_predivide_factor=gradient_predivide_factor,
            num_groups=num_groups,
            groups=groups,
            sparse_as_dense=sparse_as_dense,
            overlap_step=overlap_step,
            gradients_ready=gradients_ready,
            compression=compressor,
        )
        travel = Travel(selection, compressor, process_set)
        return train_locally(optimizer, travel, names, sync_every, outer_optimizer)
    if resolve_op(op) is Adasum:
        reduction_of(Adasum, gradient_predivide_factor)
        if selection.is_lossy or compressor is not NoneCompressor:
            raise UnsupportedError("lossy compression is not possible with op=Adasum")
        if overlap_step or in_backward:
            option = "overlap_step=True" if overlap_step else "gradients_ready='backward'"
            raise UnsupportedError(f"{option} is not possible with op=Adasum, which reduces steps")
        return distribute_steps(optimizer, backward_passes_per_step, process_set, sparse_as_dense)
    if isinstance(compressor, PowerSGD) and (overlap_step or resolve_op(op) is not Average):
        raise ValueError(f"{compressor!r} needs op=Average, and is not possible with overlap_step")
    settings = Settings(
        reduction_of(resolve_op(op), gradient_predivide_factor),
        compressor,
        selection,
        process_set,
        sparse_as_dense,
        sparse_as_dense and isinstance(optimizer, torch.optim.SparseAdam),
    )
    grouping = grouping_of(num_groups if groups is None else groups, parameters)
    reducer = GradientReducer(
        optimizer, settings, backward_passes_per_step, names, grouping, in_backward
    )
    reducer.overlaps = overlap_step
    return reduce_gradients(optimizer, reducer, overlap_step)
