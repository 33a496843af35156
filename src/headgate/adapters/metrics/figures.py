"""Provide metrics for Prometheus: those of the complete system, one row of GAUGES each, and those of one process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import product
from typing import NamedTuple, TypeVar

import prometheus_client as prometheus
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from headgate import __version__
from headgate.adapters.metrics.former import FormerMetric
from headgate.map.places import Map
from headgate.map.projects import layout_at
from headgate.map.records import ComponentRecord, Finished, Quarantined
from headgate.map.tree import locate, unescape
from headgate.ports.observer import WorkDone
from headgate.recipes.codec import decode, readable
from headgate.recipes.mirror import Mirror
from headgate.recipes.requestforms import Request

R = TypeVar("R")
Series = Mapping[tuple[str, ...], int]
"""Values of the labels -> count."""

_KINDS, _WORKERS = ("scheduler", "merger", "executor", "web"), ("git", "build")
_STATES = ("requested", "running", "waiting", "paused")
_QUICK_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
_LONG_S = (1, 5, 15, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400)
REQUESTS = ("get", "list", "commit", "grant", "keep_alive", "revoke", "get_many", "scan")
OUTCOMES = ("ok", "conflict", "refused", "unavailable", "given up")
RECEIVERS = ("published events", "published inventory changes", "reports")
SHOWN = ("request", "stream")
"""Label values that are known in advance: their series begin at zero, so that rates include the first event."""


class SystemGauge(NamedTuple):
    """Declare one metric of the complete system."""

    name: str
    doc: str
    labels: tuple[str, ...]
    counted: Callable[[Map, Mirror], Series]
    """Computes the series from the mirror; it includes series whose labels are known in advance, with zero."""


class SystemMetrics(Collector):
    """Collect the metrics of the complete system from the store's mirror at each scrape."""

    def __init__(self, map: Map, mirror: Mirror) -> None:
        self._map, self._mirror = map, mirror

    def collect(self) -> Iterator[Metric]:
        for gauge in GAUGES:
            family = GaugeMetricFamily(gauge.name, gauge.doc, labels=gauge.labels)
            for key, value in sorted(gauge.counted(self._map, self._mirror).items()):
                family.add_metric(key, value)
            yield family


def _located(map: Map, mirror: Mirror, path: str) -> Iterator[tuple[str, dict[str, str], bytes]]:
    """Yield the name of the place, its keys and the value of each entry under a path."""
    for entry in mirror.under(path):
        found = locate(Map, map.path, entry.path)
        if found is not None and found.place is not None:
            yield map.relative(found.template), found.keys, entry.value


def _decoded(value: bytes, type: type[R]) -> R | None:
    """Decode a value; None: it is damaged, which other code reports."""
    try:
        return decode(value, type)
    except ValueError:
        return None


def _events(map: Map, mirror: Mirror) -> Series:
    found: Counter[tuple[str, ...]] = Counter()
    for template, keys, _ in _located(map, mirror, map.events.path):
        names = template.split("/")
        if names[-1] == "queue":
            kind = "connection" if names[1] == "connection" else names[-2]
            found[kind, keys.get("connection", ""), keys.get("tenant", ""), keys.get("pipeline", "")] += 1
    return found


def _items(map: Map, mirror: Mirror) -> Series:
    found: Counter[tuple[str, ...]] = Counter()
    for template, keys, _ in _located(map, mirror, map.inside("tenant")):
        key = (keys["tenant"], keys.get("pipeline", ""))
        # Adding False (0) creates the series of a pipeline without items, so that its graph shows zero, not a gap.
        found[key] += template.endswith("/<item uuid>")
    return found


def _requests(map: Map, mirror: Mirror) -> Series:
    found: Counter[tuple[str, ...]] = Counter({(kind, "", state): 0 for kind, state in product(_WORKERS, _STATES)})
    for kind, path in (("build", map.executor.path), ("git", map.merger.path)):
        for template, keys, value in _located(map, mirror, path):
            if template.endswith("/requests") and (request := _decoded(value, Request)) is not None:
                found[kind, keys.get("zone", ""), request.state] += 1
    return found


def _components(map: Map, mirror: Mirror) -> Series:
    found: Counter[tuple[str, ...]] = Counter({(kind, "running", "true"): 0 for kind in _KINDS})
    for _, _, value in _located(map, mirror, map.components.path):
        if (record := _decoded(value, ComponentRecord)) is None:
            continue
        found[record.kind, record.state, str(record.data.accepting).lower()] += 1
    return found


def _history(map: Map, mirror: Mirror) -> Series:
    return {(): len(mirror.under(map.history.queue.path))}


def _aside(map: Map, mirror: Mirror) -> Series:
    found = (readable(entry, Quarantined) for entry in mirror.under(map.quarantine.records.path))
    return Counter((one.kind, one.tenant) for one in found if one is not None)


def _held(map: Map, mirror: Mirror) -> Series:
    tenants = (unescape(name) for name in mirror.names(map.layout.path))
    found = (layout_at(map.layout(tenant).record, mirror) for tenant in tenants)
    return {(one.tenant,): sum(len(branches) for branches in one.held.values()) for one in found if one is not None}


def _messages(map: Map, mirror: Mirror) -> Series:
    found: Counter[tuple[str, ...]] = Counter(
        {("published events",): len(mirror.under(map.published_events.queue.path))}
    )
    for template, keys, _ in _located(map, mirror, map.reports.path):
        # A connection whose outbox is empty counts as zero.
        found[keys["connection"],] += template.endswith("/queue")
    return found


GAUGES = [
    SystemGauge(
        "headgate_event_queue_length", "Events that wait.", ("queue", "connection", "tenant", "pipeline"), _events
    ),
    SystemGauge("headgate_items", "Items in pipelines.", ("tenant", "pipeline"), _items),
    SystemGauge("headgate_requests", "Requested work that is not done yet.", ("kind", "zone", "state"), _requests),
    SystemGauge("headgate_components", "Running processes.", ("kind", "state", "accepting"), _components),
    SystemGauge("headgate_history_queue_length", "Buildsets on their way into the history.", (), _history),
    SystemGauge(
        "headgate_quarantine", "Records in quarantine because of an error, by kind.", ("kind", "tenant"), _aside
    ),
    SystemGauge(
        "headgate_configuration_held",
        "Branches whose configuration is not used because of errors in it.",
        ("tenant",),
        _held,
    ),
    SystemGauge(
        "headgate_messages_waiting",
        "Reports and published events that wait for delivery, by receiver.",
        ("to",),
        _messages,
    ),
]


JOBS_MAX = 5_000
"""Maximum number of jobs of a tenant with series of their own, since each proposal may define jobs with new names."""
OTHERS = "(others)"
"""Label of further jobs."""


class ProcessMetrics:
    """Collect the metrics of one process; see `ports.observer.Observer`. `text` is the answer to a scrape."""

    def __init__(self) -> None:
        self.registry = registry = prometheus.CollectorRegistry()
        self._jobs: dict[str, set[str]] = {}
        """Tenant -> its jobs that have series of their own."""
        prometheus.ProcessCollector(registry=registry)
        prometheus.Info("headgate", "This program.", registry=registry).info({"version": __version__})
        self._store = prometheus.Histogram(
            "headgate_store_request_seconds",
            "Duration of requests to the store.",
            ("request", "outcome"),
            buckets=_QUICK_S,
            registry=registry,
        )
        self._turns = prometheus.Histogram(
            "headgate_turn_seconds",
            "Duration of a pipeline's turns: deciding and committing.",
            ("tenant", "pipeline"),
            buckets=_QUICK_S,
            registry=registry,
        )
        self._events = prometheus.Counter(
            "headgate_events", "Events that turns handled.", ("tenant", "pipeline"), registry=registry
        )
        self._work = prometheus.Histogram(
            "headgate_work_seconds",
            "Duration of git work in this process, by kind and result.",
            ("kind", "result"),
            buckets=_QUICK_S,
            registry=registry,
        )
        self._builds = prometheus.Histogram(
            "headgate_build_seconds",
            f"Duration of builds in this process, by result. Of a tenant, {JOBS_MAX:,} jobs have series of their own.",
            ("tenant", "pipeline", "job", "result"),
            buckets=_LONG_S,
            registry=registry,
        )
        self._items = prometheus.Histogram(
            "headgate_item_seconds",
            "Time of items in a pipeline, by result.",
            ("tenant", "pipeline", "result"),
            buckets=_LONG_S,
            registry=registry,
        )
        self._dropped = prometheus.Counter(
            "headgate_messages_dropped",
            "Messages about the gate that were dropped, by receiver.",
            ("to",),
            registry=registry,
        )
        self._shown = prometheus.Counter(
            "headgate_pages_cpu_seconds",
            "CPU time of pages and API in this process's event loop: requests, and all streams together.",
            ("kind",),
            registry=registry,
        )
        registry.register(FormerMetric("headgate_messages_untold", self._dropped))
        self._begin_at_zero()

    def _begin_at_zero(self) -> None:
        """Create the series whose labels are known in advance."""
        for kind in SHOWN:
            self._shown.labels(kind)
        for request, outcome in product(REQUESTS, OUTCOMES):
            self._store.labels(request, outcome)
        for to in RECEIVERS:
            self._dropped.labels(to)

    def store(self, request: str, outcome: str, took_s: float) -> None:
        self._store.labels(request, outcome).observe(took_s)

    def turn(self, tenant: str, pipeline: str, events: int, took_s: float) -> None:
        self._turns.labels(tenant, pipeline).observe(took_s)
        self._events.labels(tenant, pipeline).inc(events)

    def done(self, work: WorkDone) -> None:
        # Clocks can be set back, and a negative duration would reduce the sum, which must only grow.
        took_s = max(0, work.end_ms - work.start_ms) / 1000
        if work.kind == "build":
            jobs = self._jobs.setdefault(work.tenant, set())
            if len(jobs) < JOBS_MAX:
                jobs.add(work.job)
            job = work.job if work.job in jobs else OTHERS
            self._builds.labels(work.tenant, work.pipeline, job, work.result).observe(took_s)
        else:
            self._work.labels(work.kind, work.result).observe(took_s)

    def finished(self, finished: Finished) -> None:
        took_s = max(0, finished.ended_ms - finished.enqueued_ms) / 1000
        self._items.labels(finished.tenant, finished.pipeline, finished.result).observe(took_s)

    def dropped(self, to: str, messages: int) -> None:
        self._dropped.labels(to).inc(messages)

    def shown(self, kind: str, cpu_s: float) -> None:
        self._shown.labels(kind).inc(cpu_s)

    @contextmanager
    def showing_system(self, map: Map, mirror: Mirror) -> Iterator[None]:
        """Show metrics of the complete system, too, while the context lasts."""
        metrics = SystemMetrics(map, mirror)
        self.registry.register(metrics)
        try:
            yield
        finally:
            self.registry.unregister(metrics)

    def text(self) -> bytes:
        return prometheus.generate_latest(self.registry)
