"""Exceptions of torch.distributed's operations in addition to the runtime's own."""

from __future__ import annotations

from horoscale._core import HorovodInternalError


class GroupTimeoutError(HorovodInternalError, TimeoutError):
    """An operation of a process group did not complete within its timeout. It is still pending."""


class GroupClosedError(HorovodInternalError):
    """The process group was destroyed or aborted."""
