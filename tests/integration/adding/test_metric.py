"""Test that a metric of the system is a row: `docs/how-to/add/a-metric.md`."""

from __future__ import annotations

import asyncio

import pytest

from headgate.adapters.metrics.figures import GAUGES, ProcessMetrics, Series, SystemGauge
from headgate.cli.pages import docs
from headgate.map.places import Map
from headgate.recipes.mirror import Mirror
from headgate.store.memory import MemoryBackend
from headgate.store.store import Store
from headgate.store.types import Put


def aside(map: Map, mirror: Mirror) -> Series:
    return {(): len(mirror.under(map.quarantine.records.path))}


@pytest.fixture(autouse=True)
def row(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [*GAUGES, SystemGauge("headgate_aside", "Set aside.", (), aside)]
    monkeypatch.setattr("headgate.adapters.metrics.figures.GAUGES", rows)
    monkeypatch.setattr(docs, "GAUGES", rows)


async def test_one_process_reports_the_metric_from_the_store() -> None:
    backend, figures, map = MemoryBackend(), ProcessMetrics(), Map()
    mirror = Mirror(Store(backend), map.path)
    running = asyncio.ensure_future(mirror.run())
    await mirror.ready()
    with figures.showing_system(map, mirror):
        assert b"headgate_aside 0.0\n" in figures.text(), "it begins at zero"
        path = f"{map.quarantine.records.path}/one"
        (entry,) = await backend.commit([], [Put(path, b"no record of ours, and counted all the same")])
        assert entry is not None
        await mirror.reached(path, entry.version)
        assert b"headgate_aside 1.0\n" in figures.text() and b"headgate_items" in figures.text()
    assert b"headgate_aside" not in figures.text(), "another process tells it now"
    running.cancel()


def test_the_reference_page_has_it() -> None:
    assert "| `headgate_aside` | gauge |  | Set aside. |" in docs.metrics_page()
