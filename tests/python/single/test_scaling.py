"""Scaling reports: evaluation of timelines, and predictions for more ranks."""

from __future__ import annotations

import subprocess

import pytest

from horoscale.scaling.__main__ import main
from horoscale.scaling.page import page, rows
from horoscale.scaling.runs import Measured, ScalingError, measured, run
from horoscale.timeline.files import Operation, RankTimeline
from horoscale.timeline.parts import Parts


def timeline(rank: int, waits: list[tuple[float, float]]) -> RankTimeline:
    """Three steps of 10 s, each with an allreduce of 100 bytes from second 6 to 8."""
    operations = [
        Operation("set 0: g", "allreduce", at, at + 5, at + 6, at + 8, {"bytes": 100, "entry": 1})
        for at in (0.0, 10.0, 20.0)
    ]
    return RankTimeline(rank, [], operations, waits)


def test_steps_are_divided_into_parts_that_add_up() -> None:
    waits = [(begin + 5, begin + 9) for begin in (0.0, 10.0, 20.0)]
    found = measured([timeline(0, waits), timeline(1, [])], skip=1)
    # The first rank: 6 s of computing, 2 of communication and 2 of waiting; the other one 10.
    assert found == Measured(2, Parts(8.0, 1.0, 0.0, 1.0), 100.0)
    assert found.parts.step == 10.0
    assert found.parts.efficiency == 0.8


def test_too_few_steps() -> None:
    with pytest.raises(ScalingError, match="no more than 2 steps"):
        measured([timeline(0, [])], skip=2)
    with pytest.raises(ScalingError, match="no named operation comes twice"):
        measured([RankTimeline(0, [], [])], skip=0)


def test_a_program_that_is_none_of_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    done = subprocess.CompletedProcess([], 0)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    with pytest.raises(ScalingError, match=r"2 ranks left no timeline: .*hvd\.init\(\)"):
        run(2, ["train.py"], 2, 1.0)


@pytest.mark.parametrize(
    ("option", "value"),
    [("--ranks-per-host", "0"), ("--samples", "0"), ("--skip", "-1"), ("--latency-us", "-1")],
)
def test_wrong_numbers(option: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([f"{option}={value}", "train.py"])
    assert f"{option} " in capsys.readouterr().err.partition("error:")[2]


def test_speed_ups_count_samples() -> None:
    runs = [Measured(1, Parts(1.0), 0.0), Measured(4, Parts(0.5, 0.5, 0.0, 1.0), 0.0)]
    weak, strong = (rows(runs, mode, 8)[1] for mode in ("weak", "strong"))
    assert weak == ["4", "2,000", "25%", "25%", "0%", "50%", "25%", "2.00", "16"]
    assert strong[-2:] == ["0.50", "4"]


def test_names_in_pages_are_text() -> None:
    text = page("<script>", [("a & b", ["x"], [["<1>"]])], "<svg></svg>")
    assert "<script>" not in text
    assert "a &amp; b" in text
    assert "&lt;1&gt;" in text


def test_many_ranks_by_the_cost_model() -> None:
    pytest.importorskip("torch")
    from horoscale.scaling.extrapolate import extrapolate
    from horoscale.torch.parallel.planning.machine import Link

    first = Measured(1, Parts(1.0), 1e9)
    links = (Link(1e-5, 1e10), Link(1e-5, 1e9), 8, 0.0)
    weak = extrapolate(first, "weak", (1, 8, 16, 16384), *links)
    assert weak[0].parts.step == pytest.approx(1.0)
    assert weak[1].parts.communication == pytest.approx(2 * 7 / 8 * 0.1 + 3e-5)
    assert weak[2].parts.communication == pytest.approx(weak[1].parts.communication + 1.0 + 1e-5)
    assert weak[3].parts.step < 1.0 + 2.2
    strong = extrapolate(first, "strong", (16, 16384), *links)
    assert strong[1].parts.compute == pytest.approx(1 / 16384)
    assert strong[1].parts.efficiency < strong[0].parts.efficiency


def test_published_figures_are_within_what_the_model_says() -> None:
    """Within 0.06: for VGG-16 on 8 GPUs the model can't do better than 0.93."""
    pytest.importorskip("torch")
    from horoscale.scaling.published import comparisons

    for one in comparisons():
        assert one.lowest - 0.06 <= one.published <= one.highest + 0.06, one
