"""Shared by all Python tests: parallel/ runs on the ranks of a job, the others in one process."""

from __future__ import annotations

import signal

import pytest


def pytest_configure() -> None:
    """Let processes that tests start be interrupted.

    The shell makes background processes ignore SIGINT, and their children inherit that.
    """
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A name for operations that no other test uses, so that a failed test can't affect others."""
    return request.node.nodeid
