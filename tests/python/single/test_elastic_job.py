"""The loop of an elastic job's launcher, without any host."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from horoscale.driver import Rules
from horoscale.runner import elastic_job
from horoscale.runner.elastic_job import _OPEN_OUTPUTS, ElasticJob
from horoscale.runner.elastic_spec import ElasticHost, ElasticSpec
from horoscale.runner.job import JobSpec
from horoscale.runner.output import Console
from horoscale.runner.pulse import DEFAULT_TIMEOUT_S


@pytest.fixture
def job(tmp_path: Path) -> Iterator[ElasticJob]:
    spec = JobSpec(("true",), (), {}, ("127.0.0.1",), {}, str(tmp_path), 1.0, 1.0)
    rules = Rules(np=1, min_np=1, max_np=1)
    made = ElasticJob(spec, ElasticSpec(rules, (), None, None, lambda name: (), DEFAULT_TIMEOUT_S))
    yield made
    made._selector.close()


def test_it_sleeps_while_nobody_takes_the_output(job: ElasticJob) -> None:
    """Then it asks no hosts, so those checks are always due."""
    reader, writer = os.pipe()
    job._console = Console(job._selector, writer, writer)
    job._pulse.watch(0, 0.0)  # long overdue
    assert job._timeout() == 0.0
    job._console.put("stdout", bytes(64 << 20))
    assert job._console.full
    assert job._timeout() is None
    job._console.drop()
    os.close(reader)
    os.close(writer)


def test_telling_who_watches_takes_a_tenth_of_its_time(
    job: ElasticJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    told = []

    def tell(*_: object) -> None:
        nonlocal now
        told.append(now)
        now += 0.5

    monkeypatch.setattr(elastic_job, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(job._watching, "_watch", object())
    monkeypatch.setattr(job._watching, "membership", tell)
    job._check_deadlines()
    assert told == [100.0]
    job._check_deadlines()  # nothing is new
    for _ in range(3):
        job._driver.revision += 1
        job._check_deadlines()
    assert told == [100.0]
    assert job._timeout() == pytest.approx(4.5)  # it wakes up for unreported news
    now += 4.5
    assert job._timeout() == 0.0
    job._check_deadlines()
    assert told == [100.0, 105.0]
    assert not job._has_news()


def test_a_full_disk_ends_the_job_with_an_error(
    job: ElasticJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    class FullDisk:
        def write(self, piece: bytes) -> int:
            raise OSError(28, "No space left on device")

    monkeypatch.setitem(job._results._files, 3, FullDisk())
    job._places[3] = None  # type: ignore[assignment]
    job._on_process_output(3, "result", b"x")
    assert job._stopped
    assert "the ranks' results" in job._trouble
    assert "No space left on device" in job._trouble


def test_files_of_processes_that_ended_long_ago_are_closed(job: ElasticJob, tmp_path: Path) -> None:
    job._spec = dataclasses.replace(job._spec, output_directory=tmp_path)
    host = ElasticHost(0, "a", ())
    before = len(os.listdir("/proc/self/fd"))
    for process in range(100):
        job._open_output(process, 0, 1)
        job._places[process] = job._owners[process] = host
        job._on_process_output(process, "stdout", b"no end of line")
        job._on_end(host, process, 1)
    assert len(os.listdir("/proc/self/fd")) - before <= 2 * _OPEN_OUTPUTS
    job._on_process_output(0, "stdout", b"of a child, late")
    job._on_process_output(99, "stdout", b", and more")
    for output in job._outputs.values():
        output.finish()
    texts = [path.read_text() for path in tmp_path.rglob("stdout")]
    assert texts.count("no end of line") == 99
    assert texts.count("no end of line, and more") == 1
