"""These tests run on every rank of a job: horoscalerun -np 3 pytest tests/python/parallel.

Every rank runs the same tests in the same order. Without a launcher, pytest collects only
test_on_ranks*.py, which start the other tests on several numbers of ranks. A rank that fails a test
leaves the others waiting in it until the test's timeout. The next test starts cleanly, because
every test uses its own names.
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

# Started by our launcher, or by an mpirun.
IN_JOB = any(f"{name}_SIZE" in os.environ for name in ("HOROSCALE", "OMPI_COMM_WORLD", "PMI"))
STARTER = "test_on_ranks"


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    if collection_path.suffix != ".py":
        return None
    # None defers to other rules, such as --ignore-glob.
    return True if collection_path.name.startswith(STARTER) == IN_JOB else None


def pytest_collection_finish(session: pytest.Session) -> None:
    """Import what torch imports with its first optimizer, outside of any test's time limit."""
    if IN_JOB and session.items and "torch" in sys.modules:
        importlib.import_module("torch._dynamo")


@pytest.fixture(scope="session", autouse=IN_JOB)
def job() -> Iterator[None]:
    """The job of all ranks; process sets may be added."""
    hvd.init(process_sets="dynamic")
    yield
    hvd.shutdown()


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder for this rank; otherwise the ranks' pytests would remove each other's."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.fixture
def need_ranks() -> None:
    """For tests that are pointless on a single rank."""
    if hvd.size() == 1:
        pytest.skip("needs several ranks")


@pytest.fixture(params=["all", "some"])
def process_set(request: pytest.FixtureRequest) -> Iterator[hvd.ProcessSet]:
    """All ranks; or a set without the first one, which does nothing then."""
    if request.param == "all":
        yield hvd.global_process_set
        return
    if hvd.size() < 3:
        pytest.skip("needs 3 ranks")
    chosen = hvd.add_process_set(range(1, hvd.size()))
    yield chosen
    hvd.remove_process_set(chosen)
