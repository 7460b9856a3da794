"""horoscale.trackers on ranks: one rank writes files that TensorBoard can read."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from launcher_process import environment, launcher_command
from support.event_files import curves
from support.ranks import Ended, run_alone, run_ranks

SECONDS = 120.0  # for events that take a few seconds

# Raised by TensorBoard with the versions of its dependencies.
pytestmark = pytest.mark.filterwarnings("default::DeprecationWarning")

TRAIN = """
import os, sys
import numpy as np
import horoscale.numpy as hvd
from horoscale import trackers

hvd.init()
folder = os.environ["FOLDER"]
with trackers.TensorBoard(folder, every=4) as tracker:
    for step in range(10):
        hvd.allreduce(np.full(100, float(hvd.rank())), name="gradient")
        tracker.log({"loss": np.float32(hvd.rank() + step)}, step)
print("tensorboard" in sys.modules, "torch" in sys.modules)
try:
    tracker.log({}, 10)
except ValueError as error:
    print(error)
tracker.close()
"""


def lines(ended: list[Ended]) -> list[list[str]]:
    for one in ended:
        assert one.returncode == 0, one.stderr
    return [one.stdout.splitlines() for one in ended]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    pytest.importorskip("tensorboard")
    return tmp_path / "runs" / "1"


def test_rank_0_writes_its_metrics_and_the_runtimes(folder: Path) -> None:
    closed = "this TensorBoard tracker is closed"
    assert lines(run_ranks(2, TRAIN, FOLDER=str(folder))) == [
        ["True False", closed],
        ["False False", closed],
    ]
    assert len(list(folder.iterdir())) == 1
    found = curves(folder)
    assert found["loss"] == [(step, float(step)) for step in range(10)]  # not rank 1's
    assert [step for step, _ in found["horoscale/bytes"]] == [0, 4, 8]
    first, *later = [value for _, value in found["horoscale/bytes"]]
    assert [value - first for value in later] == [3200.0, 6400.0]
    assert [step for step, _ in found["horoscale/bytes_per_second"]] == [4, 8]
    assert [step for step, _ in found["horoscale/step_seconds"]] == [4, 8]
    assert all(0 <= value <= 1 for _, value in found["horoscale/step_waiting_fraction"])


def test_the_first_rank_of_each_set_writes(folder: Path) -> None:
    script = """
        import os
        import numpy as np
        import horoscale.numpy as hvd
        from horoscale import trackers

        first, second = hvd.ProcessSet([0]), hvd.ProcessSet([1, 2])
        hvd.init(process_sets=[first, second])
        mine = first if hvd.rank() == 0 else second
        folder = os.environ["FOLDER"]
        for name, one in (("first", first), ("second", second)):  # all ranks make both
            with trackers.TensorBoard(f"{folder}/{name}", process_set=one) as tracker:
                if one is mine:
                    hvd.allreduce(np.ones(100 * one.size()), process_set=one)
                tracker.log({"rank": hvd.rank()}, 7)
        try:
            trackers.TensorBoard(folder, process_set=hvd.ProcessSet([0, 2]))
        except ValueError as error:
            print("is not registered" in str(error))
    """
    assert lines(run_ranks(3, script, FOLDER=str(folder))) == [["True"], [], ["True"]]
    first, second = curves(folder / "first"), curves(folder / "second")
    assert first["rank"] == [(7, 0.0)]
    assert second["rank"] == [(7, 1.0)]
    assert first["horoscale/bytes"] == [(7, 800.0)]
    assert second["horoscale/bytes"] == [(7, 1600.0)]


def test_after_shutdown_the_same_rank_writes_alone(folder: Path) -> None:
    script = """
        import os
        import horoscale.numpy as hvd
        from horoscale import trackers

        hvd.init()
        tracker = trackers.TensorBoard(os.environ["FOLDER"], every=1)
        rank = hvd.rank()
        hvd.shutdown()
        tracker.log({"accuracy": rank + 0.5}, 1)
        tracker.close()
        tracker.close()
    """
    lines(run_ranks(2, script, FOLDER=str(folder)))
    assert curves(folder) == {"accuracy": [(1, 0.5)]}


def test_a_rank_that_becomes_the_first_one_continues(folder: Path) -> None:
    script = """
        import os
        import horoscale.numpy as hvd
        from horoscale import trackers

        hvd.init()
        tracker = trackers.TensorBoard(os.environ["FOLDER"] + f"/{hvd.rank()}")
        tracker.log({"rank": hvd.rank()}, 1)
        hvd.shutdown()
        hvd.init([1, 0])  # in the other order, as after an elastic reset
        tracker.log({"rank": hvd.rank()}, 2)
        tracker.close()
    """
    lines(run_ranks(2, script, FOLDER=str(folder)))
    zero, one = curves(folder / "0"), curves(folder / "1")
    assert zero["rank"] == [(1, 0.0)]
    assert one["rank"] == [(2, 0.0)]
    assert [step for step, _ in one["horoscale/operations"]] == [2]


ELASTIC = """
import os, pathlib, signal
import numpy as np
import horoscale.numpy as hvd
from horoscale import elastic, trackers

hvd.init()
folder = pathlib.Path(os.environ["FOLDER"])
tracker = trackers.TensorBoard(folder / str(os.getpid()))
state = elastic.ObjectState(step=0)

@elastic.run
def train(state):
    while state.step < 10:
        if state.step == 5 and hvd.rank() == 0 and not (folder / "killed").exists():
            (folder / "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        hvd.allreduce(np.ones(4), name="gradient")
        tracker.log({"loss": state.step / 10}, state.step)
        state.step += 1
        state.commit()

train(state)
tracker.close()
"""


@pytest.mark.timeout(2 * SECONDS)
def test_the_successor_of_a_killed_rank_continues(folder: Path) -> None:
    folder.mkdir(parents=True)
    job = subprocess.run(
        launcher_command("-np", 3, "--min-np", 2, sys.executable, "-c", ELASTIC),
        env=environment({"FOLDER": str(folder)}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=SECONDS,
    )
    assert job.returncode == 0, job.stderr.decode()[-4000:]
    # Values that the killed rank has not flushed are lost.
    files = [curves(one) for one in folder.iterdir() if one.is_dir()]
    assert len(files) == 2
    [successor] = [one for one in files if 9 in dict(one.get("loss", []))]
    assert [step for step, _ in successor["loss"]] == [5, 6, 7, 8, 9]
    assert successor["horoscale/operations"][0][0] == 5


def test_metrics_may_be_tensors(folder: Path) -> None:
    pytest.importorskip("torch")
    script = """
        import os
        import torch
        import horoscale.torch as hvd
        from horoscale import trackers

        hvd.init()
        with trackers.TensorBoard(os.environ["FOLDER"]) as tracker:
            tracker.log({"loss": torch.tensor([0.25], requires_grad=True) * 2}, 3)
            try:
                tracker.log({"loss": torch.ones(2)}, 4)
            except (TypeError, ValueError, RuntimeError):
                print("not a number")
    """
    ended = run_alone(script, FOLDER=str(folder), PYTHONWARNINGS="default")
    assert lines([ended]) == [["not a number"]]
    assert "UserWarning" not in ended.stderr
    assert curves(folder)["loss"] == [(3, 0.5)]


@pytest.mark.parametrize(
    ("tracker", "package"), [("TensorBoard('runs')", "tensorboard"), ("WandB()", "wandb")]
)
def test_only_the_rank_that_writes_needs_the_package(
    tracker: str, package: str, tmp_path: Path
) -> None:
    (tmp_path / f"{package}.py").write_text(f"raise ImportError('No module named {package}')")
    script = f"""
        import sys
        sys.path.insert(0, {str(tmp_path)!r})
        import horoscale.numpy as hvd
        from horoscale import trackers

        hvd.init()
        try:
            trackers.{tracker}.log({{"loss": 1.0}}, 0)
        except ImportError as error:
            print(error)
    """
    first, second = lines(run_ranks(2, script))
    assert len(first) == 1
    assert first[0].endswith(f"(No module named {package}): pip install {package}")
    assert second == []


def test_mistakes_are_errors() -> None:
    script = """
        import horoscale.numpy as hvd
        from horoscale import trackers

        def attempt(make):
            try:
                make()
            except (TypeError, ValueError) as error:
                print(f"{type(error).__name__}: {error}")

        attempt(lambda: trackers.TensorBoard("runs"))
        hvd.init()
        attempt(lambda: trackers.TensorBoard("runs", every=0))
        attempt(lambda: trackers.WandB(object(), project="p"))
    """
    [found] = lines([run_alone(script)])
    assert "hvd.init()" in found[0]
    assert found[1:] == [
        "ValueError: the steps between two readings are 0, and must be 1 or more",
        "TypeError: project: a run that has started takes no options",
    ]


def test_wandb_gets_the_calls_that_it_documents(tmp_path: Path) -> None:
    """With a module in its place; python/with_lightning uses the real package."""
    (tmp_path / "wandb.py").write_text(
        """
import json

class Run:
    def log(self, values, step):
        values = {name: value for name, value in values.items() if "horoscale/" not in name}
        print(json.dumps(["log", values, step]))
    def finish(self, exit_code):
        print(json.dumps(["finish", exit_code]))

def init(**options):
    print(json.dumps(["init", options]))
    return Run()
"""
    )
    script = f"""
        import sys
        sys.path.insert(0, {str(tmp_path)!r})
        import horoscale.numpy as hvd
        from horoscale import trackers

        hvd.init()
        with trackers.WandB(project="digits", config={{"lr": 0.1}}) as tracker:
            tracker.log({{"loss": 0.5}}, 1)
        try:
            with trackers.WandB():
                raise KeyboardInterrupt
        except KeyboardInterrupt:
            pass
        if hvd.rank() == 0:
            import wandb
            own = wandb.init(project="own")
        with trackers.WandB(own if hvd.rank() == 0 else None) as tracker:
            tracker.log({{"loss": 0.25}}, 2)
    """
    first, second = lines(run_ranks(2, script))
    assert [json.loads(line) for line in first] == [
        ["init", {"project": "digits", "config": {"lr": 0.1}}],
        ["log", {"loss": 0.5}, 1],
        ["finish", 0],
        ["init", {}],
        ["finish", 1],
        ["init", {"project": "own"}],
        ["log", {"loss": 0.25}, 2],
    ]
    assert second == []
