"""Lightning's Trainer and Fabric with strategy="horoscale", compared with DDP over Gloo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.examples import EXAMPLES, accuracy_of
from support.ranks import clean_environment

pytest.importorskip("lightning")

SECONDS = 150
PROGRAM = Path(__file__).with_name("rank.py")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
ITSELF = (sys.executable,)
WAYS = ("plain", "clipped", "accumulated", "mixed", "by_hand")

pytestmark = pytest.mark.timeout(2 * SECONDS)


def ours(ranks: int) -> tuple[str, ...]:
    return (sys.executable, "-m", "horoscale.runner", "-np", str(ranks), sys.executable)


def run(*command: str | Path) -> str:
    job = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
        env=clean_environment() | {"OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert job.returncode == 0, job.stdout[-10_000:]
    return job.stdout


def trained(starter: tuple[str, ...], folder: Path, strategy: str, *ways: str) -> list[Any]:
    """The results that each rank has written."""
    folder.mkdir(exist_ok=True)
    run(*starter, PROGRAM, folder, strategy, *ways)
    files = sorted(folder.glob("rank.*.json"))
    return [json.loads(file.read_text()) for file in files]


@pytest.fixture(scope="module")
def with_gloo(tmp_path_factory: pytest.TempPathFactory) -> Any:
    first, second = trained(TORCHRUN, tmp_path_factory.mktemp("gloo"), "gloo", *WAYS, "fabric")
    assert first["plain"][3] == second["plain"][3]
    return first


@pytest.fixture(scope="module")
def with_horoscale(tmp_path_factory: pytest.TempPathFactory) -> Any:
    more = ("resumed", "normalised", "logged", "with_wrong_devices", "in_a_wrong_set", "fabric")
    more += ("from_different_steps", "with_another_strategy")
    return trained(ours(2), tmp_path_factory.mktemp("ours"), "horoscale", *WAYS, *more)


@pytest.mark.parametrize("way", WAYS)
def test_it_learns_the_bits_that_ddp_learns_with_gloo(
    way: str, with_gloo: Any, with_horoscale: Any
) -> None:
    for one in with_horoscale:
        assert one[way][-1] == with_gloo[way][-1]


def test_ranks_loss_and_world_are_those_of_the_job(with_gloo: Any, with_horoscale: Any) -> None:
    assert [one["plain"][:2] for one in with_horoscale] == [[2, 0], [2, 1]]
    assert with_horoscale[1]["plain"][2] == pytest.approx(with_gloo["plain"][2], rel=1e-6)


def test_training_goes_on_from_a_checkpoint(with_horoscale: Any) -> None:
    for one in with_horoscale:
        assert one["resumed"] == one["plain"][-1]


def test_batches_are_normalised_over_the_ranks(with_horoscale: Any) -> None:
    first, second = (one["normalised"] for one in with_horoscale)
    assert first == second  # the statistics too, which otherwise differ by rank


def test_rank_0_logs_the_runtimes_numbers(with_horoscale: Any) -> None:
    first, second = (one["logged"] for one in with_horoscale)
    assert first["horoscale/operations"] == [0, 2, 4, 6]  # 6 steps, of 2 batches each
    assert first["horoscale/bytes_per_second"] == [2, 4, 6]
    assert second == {}


def test_mistakes_are_told(with_horoscale: Any) -> None:
    for one in with_horoscale:
        assert "make 3 ranks, and the job has 2" in one["with_wrong_devices"]
        assert "ranks [1] are not in the sets that they named" in one["in_a_wrong_set"]
        assert "from different steps, by rank: [6, 0]" in one["from_different_steps"]
        assert 'a Trainer with strategy="horoscale"' in one["with_another_strategy"]


def test_fabric(with_gloo: Any, with_horoscale: Any) -> None:
    assert [one["fabric"][:2] for one in with_horoscale] == [[2, 0], [2, 1]]
    for one in with_horoscale:
        assert one["fabric"][2] == with_gloo["fabric"][2]


@pytest.mark.parametrize(
    ("starter", "strategy"),
    [(TORCHRUN, "horoscale"), (ITSELF, "itself")],
    ids=["torchrun", "the Trainer itself"],
)
def test_other_starters(
    starter: tuple[str, ...], strategy: str, with_gloo: Any, tmp_path: Path
) -> None:
    found = trained(starter, tmp_path, strategy, "plain")
    assert [one["plain"][:2] for one in found] == [[2, 0], [2, 1]]
    assert [one["plain"][3] for one in found] == 2 * [with_gloo["plain"][3]]


def test_process_sets_train_models_of_their_own(tmp_path: Path) -> None:
    found = [one["in_sets"] for one in trained(ours(4), tmp_path, "horoscale", "in_sets")]
    logged = [one.pop() for one in found]
    assert logged == [[1, 3, 5, 7, 9, 11], [], [], []]  # Lightning's loggers write on rank 0 alone
    assert found[0] == found[1]
    assert found[2] == found[3]
    assert found[0] != found[2]


def test_the_example_learns(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    assert accuracy_of(run(*ours(2), EXAMPLES / "lightning_digits.py")) >= 0.93


def test_without_lightning_the_error_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "lightning.py").write_text("raise ImportError('No module named lightning')")
    job = subprocess.run(
        [sys.executable, "-c", "import horoscale.lightning"],
        env=os.environ | {"PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert job.returncode == 1
    assert "pip install lightning" in job.stderr.splitlines()[-1]
