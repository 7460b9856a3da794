"""Programs for others' training libraries learn the same with horoscale as with Gloo.

They need the environment of `make torch-libraries`.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest
from support.examples import EXAMPLES
from support.ranks import clean_environment

SECONDS = 300
NEEDS = {
    "ddp": "sklearn",
    "lightning": "lightning",
    "fabric": "lightning",
    "accelerate": "accelerate",
    "trainer": "transformers",
}
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
OURS = ("-m", "horoscale.runner", "-np", "2", "--torch-env", sys.executable)

pytestmark = pytest.mark.timeout(2 * SECONDS)


def learned(name: str, backend: str, starter: tuple[str, ...] = TORCHRUN) -> str:
    """The example's output: the accuracy, and a sum of all weights."""
    program = EXAMPLES / f"torch_distributed_{name}.py"
    job = subprocess.run(
        [sys.executable, *starter, str(program), f"--backend={backend}"],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        env=clean_environment() | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        check=False,
    )
    assert job.returncode == 0, job.stdout + job.stderr
    (line,) = [line for line in job.stdout.splitlines() if "2 ranks, accuracy" in line]
    return line[line.index("2 ranks") :]  # without the launcher's prefix


def need(name: str) -> None:
    if importlib.util.find_spec(NEEDS[name]) is None:
        pytest.skip(f"needs {NEEDS[name]}")


@pytest.mark.parametrize("name", NEEDS)
def test_it_learns_the_bits_that_it_learns_with_gloo(name: str) -> None:
    need(name)
    ours = learned(name, "horoscale")
    assert float(ours.split("accuracy ")[1].split(",")[0]) > 0.85
    assert ours == learned(name, "gloo")


@pytest.mark.parametrize("starter", [OURS, ()], ids=["horoscalerun", "Lightning"])
def test_lightning_with_other_starters(starter: tuple[str, ...]) -> None:
    need("lightning")
    assert learned("lightning", "horoscale", starter) == learned("lightning", "horoscale")
