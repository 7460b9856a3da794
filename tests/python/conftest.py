"""Shared by all Python tests: parallel/ runs on the ranks of a job, the others in one process."""

from __future__ import annotations

import signal

import pytest


def pytest_configure() -> None:
    """Let the processes that tests start be interrupted.

    What runs in the background of a script is told to ignore SIGINT, and passes that on.
    """
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A name for operations that no other test uses, so that a failed test leaves no trace."""
    return request.node.nodeid
