"""What torch.distributed's operations raise besides the runtime's own errors."""

from __future__ import annotations

from horoscale._core import HorovodInternalError


class GroupTimeoutError(HorovodInternalError, TimeoutError):
    """An operation of a process group was not done within its timeout. It is still pending."""


class GroupClosedError(HorovodInternalError):
    """The process group was destroyed or aborted."""
