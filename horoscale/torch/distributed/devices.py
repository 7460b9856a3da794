"""Synchronization of process groups' operations on CUDA tensors, without blocking the host."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from horoscale import _core
from horoscale._core import UnsupportedError
from horoscale.torch.tensors import current_stream


def check(device: torch.device, group: dist.ProcessGroup) -> None:
    """Raise UnsupportedError for a device that a group of this backend does not support.

    PyTorch registers a group whose class is written in Python for all devices, regardless of those
    that it was created for.
    """
    if device.type not in ("cpu", "cuda"):
        raise UnsupportedError(
            f"the tensor is on {device}: the horoscale backend of torch.distributed takes CPU and "
            "CUDA tensors"
        )
    config = distributed_c10d._world.pg_backend_config.get(group, "")
    for one in config.split(","):
        kind, _, backend = one.partition(":")
        if kind == device.type and backend != "horoscale":
            raise UnsupportedError(
                f"the tensor is on {device}, and this group was made for {config!r}: a group of "
                f'the horoscale backend has no other one beside it. Make it for "cpu:horoscale,'
                f'cuda:horoscale", and another one by dist.new_group(backend="{backend}")'
            )


def wait(handle: _core.Handle, device: int | None, seconds: float | None) -> None:
    """Wait for an operation. On a device, make this thread's current stream wait for it.

    Raises TimeoutError if the operation is not done, or not submitted to the device, after
    `seconds`.
    """
    if device is None:
        handle.wait(seconds)
    else:
        handle.wait_on_stream(current_stream(device), seconds)


def is_ready(handle: _core.Handle, device: int | None) -> bool:
    """Return whether wait() would return or raise immediately."""
    return handle.done() if device is None else handle.launched()


def mark(device: int) -> Any:
    """Return an event after all work in this thread's current stream."""
    event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))
    return event


def wait_for(event: Any, device: int) -> None:
    """Make this thread's current stream wait for an event of mark()."""
    torch.cuda.current_stream(device).wait_event(event)


def future_of(device: int | None) -> Any:
    """Return a future. The streams of its callbacks wait for the tensors of its value."""
    if device is None:
        return torch.futures.Future()
    return torch.futures.Future(devices=[torch.device("cuda", device)])
