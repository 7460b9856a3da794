"""horoscale as a backend of torch.distributed: init_process_group("horoscale").

    import torch.distributed as dist
    import horoscale.torch.distributed  # not needed where torch loads backends by itself (2.5 on)

    dist.init_process_group("horoscale")
    model = torch.nn.parallel.DistributedDataParallel(model)

The ranks are those of hvd.init(), which init_process_group() calls unless it was called before. The
default group is the global process set, and each further group is a process set of its own.
docs/torch_distributed.md describes what works and how it differs from Gloo.
"""

from horoscale.torch.distributed.errors import GroupTimeoutError
from horoscale.torch.distributed.group import HoroscaleProcessGroup
from horoscale.torch.distributed.monitored import monitored_barrier
from horoscale.torch.distributed.registration import process_group, process_set, register

register()

__all__ = [
    "GroupTimeoutError",
    "HoroscaleProcessGroup",
    "monitored_barrier",
    "process_group",
    "process_set",
]
