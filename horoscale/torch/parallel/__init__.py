"""Model parallelism on process sets: divides layers, sequences and stages among ranks.

    import horoscale.torch.parallel as par

    mesh = par.init(tp=2)
    up = par.ColumnParallelLinear(512, 2048, mesh.tp)
    down = par.RowParallelLinear(2048, 512, mesh.tp)
    y = down(torch.relu(up(x)))  # as one process computes it

See docs/parallel.md. This package does not need torch.distributed.
"""

from horoscale.torch.parallel import rng
from horoscale.torch.parallel.blocks import ParallelAttention, ParallelMLP
from horoscale.torch.parallel.checkpoint import (
    CheckpointError,
    latest_checkpoint,
    load,
    load_weights,
    save,
    save_weights,
)
from horoscale.torch.parallel.context import (
    position_ids,
    ring_attention,
    shard_sequence,
    ulysses_attention,
    unshard_sequence,
)
from horoscale.torch.parallel.cross_entropy import vocab_parallel_cross_entropy
from horoscale.torch.parallel.division import Shard, get_dim_for_local_rank, split_sizes
from horoscale.torch.parallel.elastic import ElasticState
from horoscale.torch.parallel.embedding import (
    ColumnParallelEmbedding,
    ParallelEmbeddings,
    VocabParallelEmbedding,
)
from horoscale.torch.parallel.gradients import (
    DistributedOptimizer,
    GradScaler,
    broadcast_parameters,
    clip_grad_norm_,
    reduce_gradients,
)
from horoscale.torch.parallel.linear import (
    ColumnParallelLinear,
    RowParallelLinear,
    column_parallel,
    row_parallel,
)
from horoscale.torch.parallel.mesh import Axis, Mesh, current_mesh, init
from horoscale.torch.parallel.norms import LayerNorm, RMSNorm
from horoscale.torch.parallel.offload import (
    DiskOffload,
    HostOffload,
    OffloadError,
    offload_activations,
)
from horoscale.torch.parallel.pipeline import Pipeline, PipelineError, split
from horoscale.torch.parallel.plan import tensor_parallel
from horoscale.torch.parallel.planning.calibration import calibrate
from horoscale.torch.parallel.planning.live import watch_memory
from horoscale.torch.parallel.planning.memory import memory
from horoscale.torch.parallel.planning.planned import Planned
from horoscale.torch.parallel.planning.planner import plan
from horoscale.torch.parallel.planning.strategy import Strategy
from horoscale.torch.parallel.regions import (
    all_to_all,
    copy_to,
    gather_from,
    reduce_from,
    scatter_to,
    sequence_gather,
    sequence_reduce_scatter,
    sequence_scatter,
    start_gather,
    start_reduce,
    start_reduce_scatter,
)
from horoscale.torch.parallel.state import load_whole_state_dict, whole_gradients, whole_state_dict
from horoscale.torch.parallel.styles import (
    GPT2,
    LLAMA,
    Column,
    Input,
    Numbers,
    Plan,
    Row,
    Sequence,
    Vocab,
)
from horoscale.torch.parallel.zero import ZeroOptimizer, gathered, shard, unshard

__all__ = [
    "GPT2",
    "LLAMA",
    "Axis",
    "CheckpointError",
    "Column",
    "ColumnParallelEmbedding",
    "ColumnParallelLinear",
    "DiskOffload",
    "DistributedOptimizer",
    "ElasticState",
    "GradScaler",
    "HostOffload",
    "Input",
    "LayerNorm",
    "Mesh",
    "Numbers",
    "OffloadError",
    "ParallelAttention",
    "ParallelEmbeddings",
    "ParallelMLP",
    "Pipeline",
    "PipelineError",
    "Plan",
    "Planned",
    "RMSNorm",
    "Row",
    "RowParallelLinear",
    "Sequence",
    "Shard",
    "Strategy",
    "Vocab",
    "VocabParallelEmbedding",
    "ZeroOptimizer",
    "all_to_all",
    "broadcast_parameters",
    "calibrate",
    "clip_grad_norm_",
    "column_parallel",
    "copy_to",
    "current_mesh",
    "gather_from",
    "gathered",
    "get_dim_for_local_rank",
    "init",
    "latest_checkpoint",
    "load",
    "load_weights",
    "load_whole_state_dict",
    "memory",
    "offload_activations",
    "plan",
    "position_ids",
    "reduce_from",
    "reduce_gradients",
    "ring_attention",
    "rng",
    "row_parallel",
    "save",
    "save_weights",
    "scatter_to",
    "sequence_gather",
    "sequence_reduce_scatter",
    "sequence_scatter",
    "shard",
    "shard_sequence",
    "split",
    "split_sizes",
    "start_gather",
    "start_reduce",
    "start_reduce_scatter",
    "tensor_parallel",
    "ulysses_attention",
    "unshard",
    "unshard_sequence",
    "vocab_parallel_cross_entropy",
    "watch_memory",
    "whole_gradients",
    "whole_state_dict",
]
