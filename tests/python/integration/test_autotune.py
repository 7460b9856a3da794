"""Autotuning in a job: it ends, logs its result, and all ranks continue with equal results."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from launcher_process import run_launcher

from horoscale.watch.events import Listener

PROGRAM = """
import sys
from pathlib import Path
import numpy as np
import horoscale.numpy as hvd

hvd.init()
log = Path(sys.argv[1])
size, ranks = hvd.size(), sum(range(hvd.size()))
constants = [np.full(20_000 + 997 * i, i, np.float32) for i in range(12)]
large = np.arange(1_000_003, dtype=np.float32) % 1000
tensors = [one + hvd.rank() for one in constants] + [large]
sums = [size * one + ranks for one in constants] + [size * large]
VERDICTS = (",chosen\\n", ",initial limits kept\\n")
for step in range(1, 1001):
    handles = [hvd.allreduce_async(t, op=hvd.Sum, name=f"t{i}") for i, t in enumerate(tensors)]
    results = [hvd.synchronize(handle) for handle in handles]
    if step % 50 == 0:
        assert all(np.array_equal(*pair) for pair in zip(results, sums, strict=True)), step
        if hvd.broadcast_object(hvd.rank() == 0 and log.read_text().endswith(VERDICTS), 0):
            break
else:
    raise AssertionError("still tuning")
"""
DEFAULTS = {"FUSION_THRESHOLD": 128 << 20, "PARTITION_BYTES": 16 << 20, "CREDIT_BYTES": 64 << 20}
COLUMNS = ("fusion_threshold_bytes", "partition_bytes", "credit_bytes")


@pytest.mark.parametrize("given", [{}, {"PARTITION_BYTES": 64 << 10, "CREDIT_BYTES": 2 << 20}])
def test_a_job_is_tuned(given: dict[str, int], tmp_path: Path) -> None:
    program, log = tmp_path / "steps.py", tmp_path / "tuning.csv"
    program.write_text(PROGRAM)
    job = run_launcher(
        "-np", 2, "--autotune", "--autotune-log-file", log, "python", program, log,
        env={f"HOROSCALE_{name}": str(value) for name, value in given.items()},
    )  # fmt: skip
    assert job.returncode == 0, job.stdout + job.stderr
    rows = list(csv.DictReader(log.read_text().splitlines()))
    assert rows[0]["what"] in ("predicted", "reference")
    assert {row["process_set"] for row in rows} == {"0"}
    blocks = [row for row in rows if row["what"] in ("reference", "candidate")]
    assert all(float(row["step_ms"]) > 0 for row in blocks)
    verdict = rows[-1]
    kept = [int(verdict[column]) for column in COLUMNS] == list((DEFAULTS | given).values())
    kept = kept and verdict["pace_seconds"] == "0.012"
    assert verdict["what"] == ("initial limits kept" if kept else "chosen")
    [told] = [line for line in job.stderr.decode().splitlines() if "] autotune: " in line]
    assert told.startswith("[0]<stderr>:")
    assert f"process set 0 was tuned in {verdict['step']} steps" in told
    assert ("no limits were significantly faster" if kept else "% less time with") in told
    names = ("FUSION_THRESHOLD", "PARTITION_BYTES", "CREDIT_BYTES", "PACE_SECONDS")
    limits = [
        f"HOROSCALE_{n}={verdict[c]}"
        for n, c in zip(names, (*COLUMNS, "pace_seconds"), strict=True)
    ]
    assert told.endswith(" ".join(limits))
    # The status page understands it.
    [event] = Listener().feed(told.removeprefix("[0]<stderr>:").encode() + b"\n")
    assert event.kind == "autotune"
    assert event.text.startswith("process set 0 was tuned")


def test_without_a_cache_it_says_that_it_does_nothing() -> None:
    job = run_launcher(
        *("-np", 2, "--autotune", "python", "-c", "import horoscale.numpy as hvd; hvd.init()"),
        env={"HOROSCALE_CACHE_CAPACITY": "0"},
    )
    assert job.returncode == 0, job.stdout + job.stderr
    assert b"AUTOTUNE has no effect with CACHE_CAPACITY=0" in job.stdout + job.stderr


def test_nothing_is_tuned_unasked(tmp_path: Path) -> None:
    log = tmp_path / "tuning.csv"
    job = run_launcher(
        "-np", 2, "--no-autotune", "--autotune-log-file", log,
        "python", "-c", "import horoscale.numpy as hvd; hvd.init();"
        "[hvd.allreduce(1.0, name='a') for _ in range(50)]",
    )  # fmt: skip
    assert job.returncode == 0, job.stdout + job.stderr
    assert not log.exists()
