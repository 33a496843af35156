"""Figures for Prometheus of one process, counted as things happen."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product

import prometheus_client as prometheus

from headgate import __version__
from headgate.adapters.metrics.system import SystemMetrics
from headgate.map.places import Map
from headgate.map.records import Finished
from headgate.ports.observer import WorkDone
from headgate.recipes.mirror import Mirror

_QUICK_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
REQUESTS = ("get", "list", "commit", "grant", "keep_alive", "revoke", "get_many", "scan")
OUTCOMES = ("ok", "conflict", "refused", "unavailable", "given up")
UNTOLD = ("notices", "notices of the inventory", "reports")
SHOWN = ("request", "stream")
"""Label values that are known in advance: their series begin at zero, so that rates include the first event."""

_LONG_S = (1, 5, 15, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400)


class ProcessMetrics:
    """Collect the figures of one process; see `ports.observer.Observer`. `text` is the answer to a scraper."""

    def __init__(self) -> None:
        self.registry = registry = prometheus.CollectorRegistry()
        prometheus.ProcessCollector(registry=registry)
        prometheus.Info("headgate", "This program.", registry=registry).info({"version": __version__})
        self._store = prometheus.Histogram(
            "headgate_store_request_seconds",
            "Requests of the store until they were answered.",
            ("request", "outcome"),
            buckets=_QUICK_S,
            registry=registry,
        )
        self._turns = prometheus.Histogram(
            "headgate_turn_seconds",
            "Turns of a pipeline: deciding and recording.",
            ("tenant", "pipeline"),
            buckets=_QUICK_S,
            registry=registry,
        )
        self._events = prometheus.Counter(
            "headgate_events", "Events that turns took up.", ("tenant", "pipeline"), registry=registry
        )
        self._work = prometheus.Histogram(
            "headgate_work_seconds",
            "Git work done by this process, by kind and result.",
            ("kind", "result"),
            buckets=_QUICK_S,
            registry=registry,
        )
        self._builds = prometheus.Histogram(
            "headgate_build_seconds",
            "Builds run by this process, by result.",
            ("tenant", "pipeline", "job", "result"),
            buckets=_LONG_S,
            registry=registry,
        )
        self._items = prometheus.Histogram(
            "headgate_item_seconds",
            "Items from entering a pipeline to leaving it, by result.",
            ("tenant", "pipeline", "result"),
            buckets=_LONG_S,
            registry=registry,
        )
        self._untold = prometheus.Counter(
            "headgate_messages_untold",
            "Messages about the gate that were given up, by whom they were for.",
            ("to",),
            registry=registry,
        )
        self._shown = prometheus.Counter(
            "headgate_pages_cpu_seconds",
            "Processor time that pages and API took of this process's loop: requests, and all streams together.",
            ("kind",),
            registry=registry,
        )
        for kind in SHOWN:
            self._shown.labels(kind)
        for request, outcome in product(REQUESTS, OUTCOMES):
            self._store.labels(request, outcome)
        for to in UNTOLD:
            self._untold.labels(to)

    def store(self, request: str, outcome: str, took_s: float) -> None:
        self._store.labels(request, outcome).observe(took_s)

    def turn(self, tenant: str, pipeline: str, events: int, took_s: float) -> None:
        self._turns.labels(tenant, pipeline).observe(took_s)
        self._events.labels(tenant, pipeline).inc(events)

    def done(self, work: WorkDone) -> None:
        # Clocks can be set back; a negative duration would lower the sum, which must only grow.
        took_s = max(0, work.end_ms - work.start_ms) / 1000
        if work.kind == "build":
            self._builds.labels(work.tenant, work.pipeline, work.job, work.result).observe(took_s)
        else:
            self._work.labels(work.kind, work.result).observe(took_s)

    def finished(self, finished: Finished) -> None:
        took_s = max(0, finished.ended_ms - finished.enqueued_ms) / 1000
        self._items.labels(finished.tenant, finished.pipeline, finished.result).observe(took_s)

    def untold(self, to: str, messages: int) -> None:
        self._untold.labels(to).inc(messages)

    def shown(self, kind: str, cpu_s: float) -> None:
        self._shown.labels(kind).inc(cpu_s)

    @contextmanager
    def showing_system(self, map: Map, mirror: Mirror) -> Iterator[None]:
        """Show figures of the whole system during the context."""
        metrics = SystemMetrics(map, mirror)
        self.registry.register(metrics)
        try:
            yield
        finally:
            self.registry.unregister(metrics)

    def text(self) -> bytes:
        return prometheus.generate_latest(self.registry)
