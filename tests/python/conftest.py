"""Shared by all Python tests: parallel/ runs on the ranks of a job, the others in one process."""

from __future__ import annotations

import pytest


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A name for operations that no other test uses, so that a failed test leaves no trace."""
    return request.node.nodeid
