"""PyTorch's own libraries on the ranks of a job: the same program over Gloo and over horoscale."""

from __future__ import annotations

import itertools
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import horoscale.torch as hvd
import horoscale.torch.distributed  # noqa: F401

Case = Callable[[], Sequence[Any]]

# For libraries that sum in their own order, or whose sums differ between backends.
ROUNDING = {"rtol": 1e-5, "atol": 1e-6}

MARKS = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(
        os.environ.get("HOROSCALE_SIZE") not in ("2", "4"), reason="slow: on 2 or 4 ranks only"
    ),
    pytest.mark.skipif(
        tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 6),
        reason="the libraries' present names",
    ),
]

_groups = itertools.count()
_store: Any = None
# Keeps the last groups alive. If a thread of a Gloo group drops its last reference, as a hook's
# state may, the thread joins itself and the process ends.
_destroyed: deque[Any] = deque(maxlen=32)


def store() -> Any:
    """A store of torch.distributed that all ranks share, with new keys."""
    global _store
    if _store is None:
        host = os.environ.get("MASTER_ADDR", "127.0.0.1")  # set by horoscalerun --torch-env
        port = 0
        if hvd.rank() == 0:
            _store = dist.TCPStore(host, 0, None, True, wait_for_workers=False)
            port = _store.port
        port = hvd.broadcast_object(port, root_rank=0)
        if _store is None:
            _store = dist.TCPStore(host, port, None, False, wait_for_workers=False)
    return dist.PrefixStore(str(next(_groups)), _store)


@contextmanager
def default_group(backend: str) -> Iterator[None]:
    """A default group of all ranks within the context."""
    dist.init_process_group(backend, store=store(), rank=hvd.rank(), world_size=hvd.size())
    try:
        yield
    finally:
        _destroyed.extend(dist.distributed_c10d._world.pg_map)
        dist.destroy_process_group()


def on(backend: str, case: Case) -> list[torch.Tensor]:
    """The result of a program; only the name of the backend differs."""
    torch.manual_seed(0)
    with default_group(backend):
        return [one.detach().clone() for one in case()]


def same_as_gloo(case: Case, *, integers: bool = False) -> list[torch.Tensor]:
    """Compare a program's results over horoscale with those over Gloo, and return them.

    They have the same bits on 2 ranks, and with `integers`, which no sum rounds, on any number.
    """
    expected, got = on("gloo", case), on("horoscale", case)
    assert len(got) == len(expected) > 0
    for ours, theirs in zip(got, expected, strict=True):
        if integers or hvd.size() == 2:
            torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
        else:
            # Half-precision results were rounded during the reduction.
            half = any(one.dtype in (torch.float16, torch.bfloat16) for one in (ours, theirs))
            torch.testing.assert_close(ours, theirs, **({} if half else ROUNDING))
    return got


def mesh(*shape: int, names: tuple[str, ...] | None = None) -> Any:
    """The ranks as a device mesh: in a row, or with a shape."""
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cpu", shape or (hvd.size(),), mesh_dim_names=names)


def model() -> nn.Module:
    """A small one, the same on all ranks."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8), nn.ReLU(), nn.Linear(8, 4))


def batch(rank: int | None = None) -> torch.Tensor:
    """A rank's own batch, by default this rank's."""
    generator = torch.Generator().manual_seed(hvd.rank() if rank is None else rank)
    return torch.randn(6, 16, generator=generator)


def train(module: Any, steps: int = 3) -> list[torch.Tensor]:
    """Train on this rank's batch; return the parameters."""
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    for _ in range(steps):
        optimizer.zero_grad()
        module(batch()).float().square().mean().backward()
        optimizer.step()
    return [one.detach() for one in module.parameters()]


def train_alone() -> list[torch.Tensor]:
    """The result of one process that sees all ranks' batches."""
    whole = model()
    optimizer = torch.optim.SGD(whole.parameters(), lr=0.1, momentum=0.9)
    everything = torch.cat([batch(rank) for rank in range(hvd.size())])
    for _ in range(3):
        optimizer.zero_grad()
        whole(everything).square().mean().backward()
        optimizer.step()
    return [one.detach() for one in whole.parameters()]


def close(results: Sequence[Any], expected: Sequence[Any], **tolerance: float) -> None:
    """Compare with the result of one process: to rounding, unless another tolerance is given."""
    for result, wanted in zip(results, expected, strict=True):
        torch.testing.assert_close(result, wanted, **(tolerance or ROUNDING))
