"""Figures for Prometheus: counted as things happen, or looked up in the mirror when they are asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from typing import TypeVar

import prometheus_client as prometheus
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from headgate import __version__
from headgate.map.places import Map
from headgate.map.records import ComponentRecord, Finished, Quarantined
from headgate.map.state.layouts import layout_at
from headgate.map.tree import locate, unescape
from headgate.ports.observer import WorkDone
from headgate.recipes.codec import decode, readable
from headgate.recipes.mirror import Mirror
from headgate.recipes.requests import Request

R = TypeVar("R")

_QUICK_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
REQUESTS = ("get", "list", "commit", "grant", "keep_alive", "revoke", "get_many", "scan")
OUTCOMES = ("ok", "conflict", "refused", "unavailable", "given up")
UNTOLD = ("notices", "notices of the inventory", "reports")
"""Values of labels that are known in advance: their series begin at zero, so that rates see the first event."""

_KINDS, _WORKERS = ("scheduler", "merger", "executor", "web"), ("git", "build")
_STATES = ("requested", "running", "waiting", "paused")
_LONG_S = (1, 5, 15, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400)


class ProcessMetrics:
    """Of one process; see `ports.observer.Observer`.  `text` is what a scraper is answered."""

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

    @contextmanager
    def whole(self, map: Map, mirror: Mirror) -> Iterator[None]:
        """Tell figures of the whole system, too, for as long."""
        looking = _Whole(map, mirror)
        self.registry.register(looking)
        try:
            yield
        finally:
            self.registry.unregister(looking)

    def text(self) -> bytes:
        return prometheus.generate_latest(self.registry)


class _Whole(Collector):
    """What the store says when it is asked for."""

    def __init__(self, map: Map, mirror: Mirror) -> None:
        self._map, self._mirror = map, mirror

    def collect(self) -> Iterator[Metric]:
        yield _gauge("headgate_event_queue_length", "Events that wait.", _EVENTS, self._events())
        yield _gauge("headgate_items", "Items in pipelines.", ("tenant", "pipeline"), self._items())
        yield _gauge("headgate_requests", "Work asked for and not done.", ("kind", "zone", "state"), self._requests())
        names = ("kind", "state", "accepting")
        yield _gauge("headgate_components", "Processes that take part.", names, self._components())
        waiting: dict[tuple[str, ...], int] = {(): len(self._mirror.under(self._map.history.queue.path))}
        yield _gauge("headgate_history_queue_length", "Buildsets on their way into the history.", (), waiting)
        yield _gauge(
            "headgate_quarantine", "What was set aside, by kind and tenant.", ("kind", "tenant"), self._aside()
        )
        held = "Branches whose configuration is not in force because of what is wrong with it."
        yield _gauge("headgate_configuration_held", held, ("tenant",), self._held())
        yield _gauge("headgate_messages_waiting", "Turns whose messages wait for a server.", ("to",), self._messages())

    def _held(self) -> dict[tuple[str, ...], int]:
        tenants = (unescape(name) for name in self._mirror.names(self._map.layout.path))
        found = (layout_at(self._map.layout(tenant).record, self._mirror) for tenant in tenants)
        return {(one.tenant,): sum(map(len, one.held.values())) for one in found if one is not None}

    def _aside(self) -> Counter[tuple[str, ...]]:
        entries = self._mirror.under(self._map.quarantine.records.path)
        found = (readable(entry, Quarantined) for entry in entries)
        return Counter((one.kind, one.tenant) for one in found if one is not None)

    def _messages(self) -> Counter[tuple[str, ...]]:
        map, mirror = self._map, self._mirror
        found: Counter[tuple[str, ...]] = Counter({("notices",): len(mirror.under(map.notices.queue.path))})
        for template, keys, _ in self._located(map.reports.path):
            found[keys["connection"],] += template.endswith("/queue")
        return found

    def _located(self, path: str) -> Iterator[tuple[str, dict[str, str], bytes]]:
        """(name of the place, its keys, value)"""
        for entry in self._mirror.under(path):
            found = locate(Map, self._map.path, entry.path)
            if found is not None and found.place is not None:
                yield found.template.removeprefix(self._map.path + "/"), found.keys, entry.value

    def _events(self) -> Counter[tuple[str, ...]]:
        found: Counter[tuple[str, ...]] = Counter()
        for template, keys, _ in self._located(self._map.events.path):
            names = template.split("/")
            if names[-1] == "queue":
                kind = "connection" if names[1] == "connection" else names[-2]
                found[kind, keys.get("connection", ""), keys.get("tenant", ""), keys.get("pipeline", "")] += 1
        return found

    def _items(self) -> Counter[tuple[str, ...]]:
        found: Counter[tuple[str, ...]] = Counter()
        for template, keys, _ in self._located(f"{self._map.path}/tenant"):
            key = (keys["tenant"], keys.get("pipeline", ""))
            found[key] += template.endswith("/<item uuid>")
        return found

    def _requests(self) -> Counter[tuple[str, ...]]:
        found: Counter[tuple[str, ...]] = Counter({(kind, "", state): 0 for kind, state in product(_WORKERS, _STATES)})
        for kind, path in (("build", self._map.executor.path), ("git", self._map.merger.path)):
            for template, keys, value in self._located(path):
                if template.endswith("/requests") and (request := _readable(value, Request)) is not None:
                    found[kind, keys.get("zone", ""), request.state] += 1
        return found

    def _components(self) -> Counter[tuple[str, ...]]:
        found: Counter[tuple[str, ...]] = Counter({(kind, "running", "true"): 0 for kind in _KINDS})
        for _, _, value in self._located(self._map.components.path):
            if (record := _readable(value, ComponentRecord)) is None:
                continue
            found[record.kind, record.state, str(record.data.accepting).lower()] += 1
        return found


def _readable(value: bytes, type: type[R]) -> R | None:
    """Of what is damaged others speak."""
    try:
        return decode(value, type)
    except ValueError:
        return None


_EVENTS = ("queue", "connection", "tenant", "pipeline")


def _gauge(name: str, doc: str, labels: tuple[str, ...], values: dict[tuple[str, ...], int]) -> Metric:
    family = GaugeMetricFamily(name, doc, labels=labels)
    for key, value in sorted(values.items()):
        family.add_metric(key, value)
    return family
