"""The series for Prometheus: that they are documented, and that Grafana's dashboard finds them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from support.watched_job import TENSORS, WatchedJob

from horoscale.watch.prometheus import exposition

ROOT = Path(__file__).parents[3]
OF_PROMETHEUS = {"job"}  # a label of the target


def families(job: WatchedJob) -> dict[str, Metric]:
    body, _ = exposition(job.watch)
    return {one.name: one for one in text_string_to_metric_families(body.decode())}


def series(found: dict[str, Metric]) -> dict[str, set[str]]:
    """The labels of each series."""
    labels: dict[str, set[str]] = {}
    for family in found.values():
        for sample in family.samples:
            labels.setdefault(sample.name, set()).update(sample.labels)
    return labels


@pytest.fixture(scope="module")
def job() -> WatchedJob:
    """A job of two hosts that compresses, and in which everything happens that is measured."""
    job = WatchedJob(16, compressed=True)
    for _ in range(3):
        job.second()
    job.stalled = {5}
    for _ in range(3):
        job.second()
    return job


def test_the_dashboard_asks_for_series_and_labels_that_there_are(job: WatchedJob) -> None:
    served = series(families(job))
    dashboard = json.loads((ROOT / "docker" / "grafana" / "horoscale.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            asked = re.findall(r"\bhoroscale_\w+", target["expr"])
            assert asked
            assert set(asked) <= served.keys(), panel["title"]
            known = set.union(*(served[name] for name in asked)) | OF_PROMETHEUS
            grouped = [
                label
                for labels in re.findall(r"\bby \(([^)]*)\)", target["expr"])
                for label in labels.split(", ")
            ]
            chosen = re.findall(r"[{,](\w+)=", target["expr"])
            shown = re.findall(r"{{(\w+)}}", target["legendFormat"])
            assert {*grouped, *chosen, *shown} <= known, panel["title"]
            if grouped:
                assert set(shown) <= set(grouped), panel["title"]
    variables = re.findall(r"\bhoroscale_\w+", json.dumps(dashboard["templating"]))
    assert variables
    assert set(variables) <= served.keys()


def test_panels_of_the_dashboard_do_not_overlap() -> None:
    dashboard = json.loads((ROOT / "docker" / "grafana" / "horoscale.json").read_text())
    taken: set[tuple[int, int]] = set()
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)
    for panel in dashboard["panels"]:
        box = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(box["x"], box["x"] + box["w"])
            for y in range(box["y"], box["y"] + box["h"])
        }
        assert box["x"] + box["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells


def test_the_page_of_metrics_has_every_series_and_label(job: WatchedJob) -> None:
    page = (ROOT / "docs" / "metrics.md").read_text().split("\n## Prometheus\n")[1]
    documented = {
        name: set(re.findall(r"`(\w+)`", labels))
        for name, labels in re.findall(r"^\| `(horoscale_\w+)` \| ([^|]*)\|", page, re.MULTILINE)
    }
    assert documented == series(families(job))


def test_what_encodings_save_is_summed_over_the_ranks(job: WatchedJob) -> None:
    found = families(job)

    def only(name: str) -> float:
        (sample,) = found[name].samples
        assert sample.labels == {"process_set": "0", "encoding": "int8"}
        return sample.value

    before = job.size * (job.steps * 220_000_000 // 8)
    assert only("horoscale_encoding_before_bytes") == before
    assert only("horoscale_encoding_after_bytes") == pytest.approx(before / 4, rel=1e-6)
    assert only("horoscale_encoding_ratio") == pytest.approx(4, rel=1e-6)
    assert only("horoscale_encoding_relative_error") == 0.006
    adaptive = {
        sample.labels["encoding"]: sample.value
        for sample in found["horoscale_adaptive_tensors"].samples
    }
    assert adaptive == {"int8": TENSORS - 8, "none": 8}


def test_a_job_that_does_not_compress_has_no_series_of_encodings() -> None:
    job = WatchedJob(2)
    job.second()
    assert not [name for name in series(families(job)) if "encoding" in name or "adaptive" in name]


def test_metrics_of_a_thousand_ranks() -> None:
    job = WatchedJob(1000, compressed=True)
    for _ in range(3):
        job.second()
    body, _ = exposition(job.watch)
    assert len(body) < 2 << 20
    assert body.count(b"\nhoroscale_steps_total{") == 1000
    assert body.count(b"\nhoroscale_") < 8 * 1000 + 300
    steps = job.steps
    assert f'\nhoroscale_late_operations_total{{rank="3"}} {float(steps)}\n'.encode() in body
    assert f'\nhoroscale_late_seconds_total{{rank="3"}} {0.25 * steps}\n'.encode() in body
