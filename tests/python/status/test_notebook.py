"""horoscale.run() in a notebook that nbclient executes: progress, folded output, errors."""

from __future__ import annotations

import os
import re
from pathlib import Path

import nbclient
import nbformat
import pytest

import horoscale

TIMEOUT_S = 100
PROGRAM = """
import horoscale

def train(steps):
    import time
    import numpy as np
    import horoscale.numpy as hvd

    hvd.init()
    until = time.monotonic() + 60
    for step in range(steps):
        hvd.allreduce(np.ones(8), name="loss")
    print(f"rank {hvd.rank()} is done")
    return hvd.rank()

horoscale.run(train, (50,), np=2)
"""
FAILING = """
def fail():
    import horoscale.numpy as hvd
    hvd.init()
    hvd.barrier()
    if hvd.rank() == 1:
        raise ValueError("the data is wrong")
    hvd.barrier()

horoscale.run(fail, np=2)
"""


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for the notebook, whose kernels import the horoscale under test."""
    root = str(Path(horoscale.__file__).resolve().parents[1])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([root, os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    return tmp_path


def executed(*cells: str, folder: Path, **options: object) -> nbformat.NotebookNode:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(one) for one in cells])
    client = nbclient.NotebookClient(
        notebook,
        timeout=TIMEOUT_S,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
        **options,
    )
    return client.execute()


def test_a_cell_shows_progress_and_output_folded_by_rank(kernel: Path) -> None:
    (cell,) = executed(PROGRAM, folder=kernel).cells
    *shown, result = cell.outputs
    assert result["output_type"] == "execute_result"
    assert result["data"]["text/plain"] == "[0, 1]"
    assert [one["output_type"] for one in shown] == ["display_data", "display_data"]
    page = "".join(one["data"]["text/html"] for one in shown)
    assert "ended well after" in page
    for rank in (0, 1):
        assert page.count(f"<summary>rank {rank} · 1 line · <code>rank {rank} is done</code>") == 1
        assert f"[{rank}] rank {rank} is done" in shown[1]["data"]["text/plain"]
    assert "127.0.0.1" not in page
    assert "token" not in page


def test_an_error_is_that_of_the_rank_as_in_a_terminal(kernel: Path) -> None:
    ended = executed(PROGRAM, FAILING, folder=kernel, allow_errors=True)
    *shown, error = ended.cells[1].outputs
    assert (error["output_type"], error["ename"]) == ("error", "ValueError")
    assert error["evalue"] == "the data is wrong"
    told = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(error["traceback"]))
    assert "RankError" in told
    assert "rank 1:" in told
    assert 'raise ValueError("the data is wrong")' in told
    page = "".join(one["data"]["text/html"] for one in shown)
    assert "failed after" in page
    assert "<details open>" in page
    assert "ValueError: the data is wrong" in page
