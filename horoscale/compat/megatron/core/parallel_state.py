"""megatron.core.parallel_state: the job's mesh, and queries about its axes."""

from __future__ import annotations

from typing import Any

from horoscale.torch.parallel import Axis, current_mesh, init


def initialize_model_parallel(
    tensor_model_parallel_size: int = 1,
    pipeline_model_parallel_size: int = 1,
    virtual_pipeline_model_parallel_size: int | None = None,
    context_parallel_size: int = 1,
    expert_model_parallel_size: int = 1,
    order: str = "tp-cp-ep-dp-pp",
    **others: Any,
) -> None:
    """Arrange the ranks in a mesh; the remaining factor is data parallelism.

    The virtual pipeline size is a property of the schedule here. Raises NotImplementedError for
    experts and for arguments that this package does not support, and ValueError as
    horoscale.torch.parallel.init() does.
    """
    given = {name: value for name, value in others.items() if value not in (None, False, 1)}
    if expert_model_parallel_size != 1 or given:
        names = ", ".join(["expert_model_parallel_size", *given][expert_model_parallel_size == 1 :])
        raise NotImplementedError(f"initialize_model_parallel() has no {names} here")
    axes = "-".join(name for name in order.split("-") if name != "ep")
    init(
        tp=tensor_model_parallel_size,
        cp=context_parallel_size,
        pp=pipeline_model_parallel_size,
        order=axes,
    )


def model_parallel_is_initialized() -> bool:
    """Return whether there is a mesh."""
    try:
        current_mesh()
    except ValueError:
        return False
    return True


is_initialized = model_parallel_is_initialized


def destroy_model_parallel() -> None:
    """Remove the mesh and its process sets. Collective."""
    current_mesh().close()


def get_tensor_model_parallel_group() -> Axis:
    """Return the axis of tensor parallelism."""
    return current_mesh().tp


def get_tensor_model_parallel_world_size() -> int:
    """Return the number of ranks of tensor parallelism."""
    return current_mesh().tp.size


def get_tensor_model_parallel_rank() -> int:
    """Return this rank's position in tensor parallelism."""
    return current_mesh().tp.rank


def get_tensor_model_parallel_src_rank() -> int:
    """Return the global rank of the first rank in this rank's tensor-parallel group."""
    return current_mesh().tp.ranks[0]


def get_pipeline_model_parallel_group() -> Axis:
    """Return the axis of the pipeline."""
    return current_mesh().pp


def get_pipeline_model_parallel_world_size() -> int:
    """Return the number of stages."""
    return current_mesh().pp.size


def get_pipeline_model_parallel_rank() -> int:
    """Return this rank's stage."""
    return current_mesh().pp.rank


def get_pipeline_model_parallel_first_rank() -> int:
    """Return the global rank of the first stage."""
    return current_mesh().pp.ranks[0]


def get_pipeline_model_parallel_last_rank() -> int:
    """Return the global rank of the last stage."""
    return current_mesh().pp.ranks[-1]


def get_pipeline_model_parallel_next_rank() -> int:
    """Return the global rank of the next stage; the first one follows the last."""
    return current_mesh().pp.next


def get_pipeline_model_parallel_prev_rank() -> int:
    """Return the global rank of the previous stage; the last one precedes the first."""
    return current_mesh().pp.prev


def is_pipeline_first_stage() -> bool:
    """Return whether this rank has the first stage."""
    return current_mesh().pp.rank == 0


def is_pipeline_last_stage() -> bool:
    """Return whether this rank has the last stage."""
    return current_mesh().pp.rank == current_mesh().pp.size - 1


def get_data_parallel_group(with_context_parallel: bool = False) -> Axis:
    """Return the axis of data parallelism, or of data and context parallelism together."""
    return current_mesh()["dp", "cp"] if with_context_parallel else current_mesh().dp


def get_data_parallel_world_size(with_context_parallel: bool = False) -> int:
    """Return the number of ranks of data parallelism."""
    return get_data_parallel_group(with_context_parallel).size


def get_data_parallel_rank(with_context_parallel: bool = False) -> int:
    """Return this rank's position in data parallelism."""
    return get_data_parallel_group(with_context_parallel).rank


def get_context_parallel_group() -> Axis:
    """Return the axis of context parallelism."""
    return current_mesh().cp


def get_context_parallel_world_size() -> int:
    """Return the number of ranks of context parallelism."""
    return current_mesh().cp.size


def get_context_parallel_rank() -> int:
    """Return this rank's position in context parallelism."""
    return current_mesh().cp.rank


def get_model_parallel_group() -> Axis:
    """Return the axis of all ranks with parts of one replica of the model."""
    return current_mesh()["tp", "pp"]
