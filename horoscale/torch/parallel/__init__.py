"""Model parallelism on process sets: layers, sequences and stages divided among ranks.

    import horoscale.torch.parallel as par

    mesh = par.init(tp=2)

See docs/parallel.md. It needs no torch.distributed.
"""

from horoscale.torch.parallel.mesh import Axis, Mesh, current_mesh, init
from horoscale.torch.parallel.pipeline import DiskOffload, Pipeline, PipelineError, split

__all__ = [
    "Axis",
    "DiskOffload",
    "Mesh",
    "Pipeline",
    "PipelineError",
    "current_mesh",
    "init",
    "split",
]
