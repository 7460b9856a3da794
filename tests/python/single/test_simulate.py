"""python -m horoscale.simulate: the model's results can be computed by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("horoscale.sim", reason="built without HOROSCALE_BUILD_SIM=1")

from horoscale.sim import JobModel, JobSimulation, StepCost
from horoscale.simulate import main


def steps(ranks: int, count: int = 2, **settings: float | bool) -> list[StepCost]:
    model = JobModel()
    model.ranks = ranks
    model.measure = False
    for name, value in settings.items():
        setattr(model, name, value)
    job = JobSimulation(model)
    return [job.step() for _ in range(count)]


def figures(cost: StepCost) -> tuple[float | int, ...]:
    return (cost.seconds, cost.messages, cost.local_messages, cost.bytes, cost.entries)


def test_one_message_from_every_rank_and_one_back_for_each_entry() -> None:
    cold, cached = steps(9)
    for cost in (cold, cached):
        assert cost.messages == cost.coordinator_messages == 8 + 8 * cost.entries
    assert cached.bytes < cold.bytes / 100


def test_time_is_that_of_the_messages() -> None:
    link, message = 5e-6, 1e-6
    settings = {"link_seconds": link, "message_seconds": message, "bytes_per_second": 1e30}
    _, cached = steps(9, tensors=4, **settings)
    assert cached.entries == 1
    # The coordinator receives 8 reports and sends 8 entries, one after the other.
    expected = message + link + 8 * message + 8 * message + link + message
    assert cached.seconds == pytest.approx(expected)


@pytest.mark.parametrize("ranks", [1, 5, 9, 50, 100])
def test_tree_carries_one_message_for_each_host(ranks: int) -> None:
    hosts = -(-ranks // 4)
    for cost in steps(ranks, 3, ranks_per_host=4, fan_out=3):
        assert cost.messages == (hosts - 1) * (1 + cost.entries)
        assert cost.local_messages == (ranks - hosts) * (1 + cost.entries)
        assert cost.coordinator_messages <= (3 + 3) * (1 + cost.entries)


def test_tree_time_grows_with_its_depth() -> None:
    settings = {"ranks_per_host": 4, "fan_out": 2, "local_link_seconds": 0.0}
    settings |= {"message_seconds": 0.0, "local_message_seconds": 0.0, "bytes_per_second": 1e30}
    _, cached = steps(28, link_seconds=1e-5, **settings)  # 7 hosts: two levels below the root
    assert cached.seconds == pytest.approx(4e-5)


def test_patience_bounds_what_a_late_rank_holds_up() -> None:
    """It does not change when the step can end, only the number of messages."""
    late = {"ranks_per_host": 4, "jitter_seconds": 1e-2}
    (hasty,) = steps(16, 1, patience_seconds=0.0, **late)
    (patient,) = steps(16, 1, patience_seconds=1.0, **late)
    assert patient.messages < hasty.messages
    assert patient.seconds == pytest.approx(hasty.seconds, rel=0.01)


def test_bytes_take_their_time() -> None:
    (cold,) = steps(5, count=1, link_seconds=0.0, message_seconds=0.0, bytes_per_second=1e6)
    assert cold.seconds == pytest.approx(cold.bytes / 1e6, rel=0.6)  # both directions overlap


def test_one_member_stands_for_all_that_behave_alike() -> None:
    for jitter, host in ((0.0, 0), (1e-3, 0), (1e-3, 4)):
        settings = {"tensors": 20, "jitter_seconds": jitter, "ranks_per_host": host}
        shared = steps(12, 3, **settings)
        own = steps(12, 3, **settings, own_members=True)
        assert list(map(figures, shared)) == list(map(figures, own))


def test_without_core_time_results_are_always_the_same() -> None:
    first, second = (steps(50, 3, jitter_seconds=1e-4) for _ in range(2))
    assert list(map(figures, first)) == list(map(figures, second))


def test_program_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--ranks", "1", "16", "--tensors", "8", "--steps", "1", "--no-core-time"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in lines[1:]] == [
        [ranks, shape, step]
        for ranks in ("1", "16")
        for shape in ("flat", "tree")
        for step in ("cold", "cached")
    ]


def test_program_plots(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    files = [tmp_path / "plot.png", tmp_path / "plot.svg"]
    arguments = ["--ranks", "2", "12", "--steps", "1"]
    assert main([*arguments, *(f"--plot={file}" for file in files)]) == 0
    assert all(file.stat().st_size > 1000 for file in files)


def test_program_refuses_what_makes_no_sense(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--ranks", "0"])
    assert ended.value.code == 2
    assert "at least 1" in capsys.readouterr().err
