"""Prometheus metrics of a watched job; requires the optional package prometheus-client."""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from horoscale.watch.job import JobWatch

if TYPE_CHECKING:
    from prometheus_client.core import Metric

MISSING = (
    "metrics for Prometheus need the package prometheus-client, which is not installed on the "
    "launcher's host: pip install 'horoscale[status]'"
)
_STATES = (
    *("starting", "running", "waiting", "late", "silent", "recovering", "standby", "leaving"),
    *("ended", "failed"),
)


class MissingError(RuntimeError):
    """Raised if prometheus-client is not installed; the message says how to install it."""


def is_available() -> bool:
    """Return whether prometheus-client is installed."""
    return importlib.util.find_spec("prometheus_client") is not None


def exposition(watch: JobWatch) -> tuple[bytes, str]:
    """Return the metrics in the Prometheus text format, and its content type.

    Raises:
        MissingError: prometheus-client is not installed.
    """
    if not is_available():
        raise MissingError(MISSING)
    from prometheus_client import CollectorRegistry
    from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

    registry = CollectorRegistry()
    registry.register(_Collector(watch))
    return generate_latest(registry), CONTENT_TYPE_LATEST


class _Collector:
    """A collector that prometheus-client calls on each scrape."""

    def __init__(self, watch: JobWatch) -> None:
        self._watch = watch

    def collect(self) -> Iterator[Metric]:
        """Yield the current metrics."""
        yield from self._of_job()
        yield from self._of_ranks()
        yield from self._of_encodings()

    def _of_job(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        job = self._watch.snapshot(since=1 << 62)
        count = Counter(one["state"] for one in job["ranks"])
        states = GaugeMetricFamily("horoscale_ranks", "Ranks by what they do.", labels=["state"])
        for state in _STATES:
            states.add_metric([state], count[state])
        yield states
        yield GaugeMetricFamily("horoscale_size", "Ranks of the job.", job["job"]["size"])
        yield GaugeMetricFamily(
            "horoscale_view", "The view of an elastic job; 0 in others.", job["job"]["view"]
        )
        yield CounterMetricFamily(
            "horoscale_changes", "How often the ranks have changed.", job["job"]["changes"]
        )
        yield GaugeMetricFamily(
            "horoscale_findings", "What does not advance, and stragglers.", len(job["findings"])
        )
        waits = GaugeMetricFamily(
            "horoscale_process_set_wait_seconds",
            "For how long an operation of a process set has been pending, from 2 s on.",
            labels=["process_set", "members"],
        )
        for one in job["sets"]:
            waits.add_metric([str(one["set"]), one["ranks"]], one["waits_seconds"])
        yield waits
        links = GaugeMetricFamily(
            "horoscale_link_bytes_per_second",
            "Tensor data sent from a host to another; to itself: in shared memory.",
            labels=["source", "target"],
        )
        for one in job["links"]:
            links.add_metric([one["from"], one["to"]], one["bytes_per_second"])
        yield links

    def _of_ranks(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        labels = ["rank", "host"]
        steps = CounterMetricFamily("horoscale_steps", "Steps that have ended.", labels=labels)
        seconds = CounterMetricFamily(
            "horoscale_step_seconds",
            "Time of the steps that have ended: computing, exposed communication, waiting.",
            labels=[*labels, "part"],
        )
        operations = CounterMetricFamily(
            "horoscale_operations", "Operations that have ended.", labels=labels
        )
        reduced = CounterMetricFamily(
            "horoscale_reduced_bytes", "Inputs of operations that were executed.", labels=labels
        )
        sent = CounterMetricFamily(
            "horoscale_network_bytes", "Tensor data sent to other hosts.", labels=labels
        )
        silent = GaugeMetricFamily(
            "horoscale_report_age_seconds", "How long ago the rank last reported.", labels=labels
        )
        late = CounterMetricFamily(
            "horoscale_late_operations",
            "Operations of the set of all ranks that the rank was the last to call.",
            labels=["rank"],
        )
        late_seconds = CounterMetricFamily(
            "horoscale_late_seconds", "Time that the others waited for it.", labels=["rank"]
        )
        for one in self._watch.ranks():
            own = [str(one.rank), one.host]
            whole, exposed, waiting = one.totals
            parts = {"exposed": exposed, "waiting": waiting, "computing": whole - exposed - waiting}
            steps.add_metric(own, one.steps)
            for part, value in parts.items():
                seconds.add_metric([*own, part], max(0.0, value))
            operations.add_metric(own, one.counters["operations"])
            reduced.add_metric(own, one.counters["reduced_bytes"])
            sent.add_metric(own, one.counters["network_bytes"])
            silent.add_metric(own, one.age)
            for rank, (times, waited) in one.late.items():
                late.add_metric([str(rank)], times)
                late_seconds.add_metric([str(rank)], waited)
        yield from (steps, seconds, operations, reduced, sent, silent, late, late_seconds)

    def _of_encodings(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        labels = ["process_set", "encoding"]
        before = CounterMetricFamily(
            "horoscale_encoding_before_bytes",
            "Tensor data between hosts before a lossy encoding, on all ranks.",
            labels=labels,
        )
        after = CounterMetricFamily(
            "horoscale_encoding_after_bytes", "The same after it, as it was sent.", labels=labels
        )
        ratio = GaugeMetricFamily(
            "horoscale_encoding_ratio", "Bytes before it, divided by those after it.", labels=labels
        )
        error = GaugeMetricFamily(
            "horoscale_encoding_relative_error",
            "The largest relative error of a lossy encoding on any rank.",
            labels=labels,
        )
        adaptive = GaugeMetricFamily(
            "horoscale_adaptive_tensors",
            "Tensors of adaptive compression by the encoding that was chosen last.",
            labels=labels,
        )
        totals, chosen = self._watch.encodings()
        for one in totals:
            own = [one.process_set, one.encoding]
            before.add_metric(own, one.bytes_before)
            after.add_metric(own, one.bytes_after)
            ratio.add_metric(own, one.ratio)
            error.add_metric(own, one.relative_error)
        for key, count in chosen.items():
            adaptive.add_metric(list(key), count)
        yield from (before, after, ratio, error, adaptive)
