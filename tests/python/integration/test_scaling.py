"""python -m horoscale.scaling: runs a program, and writes a report page."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.examples import ROOT, SECONDS, launch, run

PROGRAM = Path(__file__).with_name("scaling_rank.py")


@pytest.mark.timeout(3 * SECONDS)
def test_a_report_of_a_small_program(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("matplotlib")
    options = ("--ranks", "1,2", "--mode", "weak", "--samples", "16", "--gbit", "25")
    command = (sys.executable, "-m", "horoscale.scaling", *options, PROGRAM, "16")
    output = run(*command, folder=tmp_path)
    # ranks, ms, compute, communication, bubble, waiting, efficiency, speed-up, samples a second
    rows = [line.split() for line in output.splitlines() if re.match(r"[\d,]+ +[\d.]", line)]
    assert [row[0] for row in rows[:2]] == ["1", "2"], output
    assert rows[2][0] == "8"
    assert rows[-1][0] == "16,384"
    for row in rows:
        parts = [float(one.rstrip("%")) for one in row[2:6]]
        assert abs(sum(parts) - 100) <= 2, row
        assert row[6] == row[2]  # what is not exposed
    page = (tmp_path / "scaling.html").read_text()
    assert page.count("<table>") == 3
    assert "<svg" in page
    assert "VGG-16" in page


@pytest.mark.timeout(SECONDS)
def test_a_program_that_fails_is_told(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    program = tmp_path / "fails.py"
    program.write_text("import sys; sys.exit(3)\n")
    command = [sys.executable, "-m", "horoscale.scaling", "--ranks", "1", program]
    ended = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert ended.returncode == 1
    assert "1 ranks failed with status 3" in ended.stderr
    assert not (tmp_path / "scaling.html").exists()


@pytest.mark.timeout(2 * SECONDS)
def test_from_a_model_to_a_plan_to_training(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    small = ("--width", "64", "--layers", "3", "--batch", "64", "--steps", "20")
    losses = []
    for choice in ("0", "2"):
        output = launch(
            2, sys.executable, ROOT / "examples" / "plan_and_train.py", *small,
            "--choice", choice, folder=tmp_path,
        )  # fmt: skip
        assert "strategy" in output
        losses.append([float(loss) for loss in re.findall(r"loss (\d+\.\d+)", output)])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert losses[0][-1] < losses[0][0]


@pytest.mark.timeout(2 * SECONDS)
def test_benchmark_of_plans(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    benchmark = ROOT / "benchmarks" / "planning.py"
    output = run(sys.executable, benchmark, "--smoke", "--links", "host", folder=tmp_path)
    assert "mlp, 2 ranks, one host" in output
    assert "of the best; predictions differ by" in output


@pytest.mark.timeout(2 * SECONDS)
def test_benchmark_of_memory(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    benchmark = ROOT / "benchmarks" / "planned_memory.py"
    output = run(sys.executable, benchmark, "--smoke", folder=tmp_path)
    cells = output.splitlines()[-1].split("|")
    assert cells[1].strip() == "mlp, dp=2"
    assert float(cells[4]) == pytest.approx(1.0, abs=0.05)  # predicted / tensors
