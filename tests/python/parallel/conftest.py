"""These tests run on every rank of a job: horoscalerun -np 3 pytest tests/python/parallel.

Every rank runs the same tests in the same order. Where pytest is started without a launcher, only
test_on_ranks*.py are collected, which start the others on several numbers of ranks. A rank that
fails a test leaves the others waiting in it: their waits end with the test's timeout, and as every
test has names of its own, the next one begins cleanly.
"""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import horoscale.common as hvd

# Whoever started the ranks: our launcher, or an mpirun.
IN_JOB = any(f"{name}_SIZE" in os.environ for name in ("HOROSCALE", "OMPI_COMM_WORLD", "PMI"))
STARTER = "test_on_ranks"


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    if collection_path.suffix != ".py":
        return None
    # None leaves it to others, such as --ignore-glob.
    return True if collection_path.name.startswith(STARTER) == IN_JOB else None


def pytest_collection_finish(session: pytest.Session) -> None:
    """Import what torch imports with its first optimizer, before the clock of a test runs."""
    if IN_JOB and session.items and "torch" in sys.modules:
        importlib.import_module("torch._dynamo")


@pytest.fixture(scope="session", autouse=IN_JOB)
def job() -> Iterator[None]:
    """The job of all ranks, in which process sets may be added."""
    hvd.init(process_sets="dynamic")
    yield
    hvd.shutdown()


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder of this rank's own; pytest's ranks would clean up each other's."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.fixture
def need_ranks() -> None:
    """For tests that say nothing on a single rank."""
    if hvd.size() == 1:
        pytest.skip("needs several ranks")


@pytest.fixture(params=["all", "some"])
def process_set(request: pytest.FixtureRequest) -> Iterator[hvd.ProcessSet]:
    """All ranks; a set without the first one, on which that has nothing to do."""
    if request.param == "all":
        yield hvd.global_process_set
        return
    if hvd.size() < 3:
        pytest.skip("needs 3 ranks")
    chosen = hvd.add_process_set(range(1, hvd.size()))
    yield chosen
    hvd.remove_process_set(chosen)
