"""Test what is measured, and how it is exported."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from pathlib import Path

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from headgate.adapters.metrics.capacity import MachineLoad
from headgate.adapters.metrics.figures import ProcessMetrics
from headgate.adapters.metrics.store import measured
from headgate.adapters.metrics.traces import Traces
from headgate.base.tasks import about
from headgate.cli.logs import Json, TextFormatter, _Subject
from headgate.gate.state.change import Change
from headgate.map.places import Map
from headgate.map.records import ComponentFacts, ComponentRecord, Finished
from headgate.ports.observer import WorkDone
from headgate.recipes.codec import encode
from headgate.recipes.mirror import Mirror
from headgate.recipes.requestforms import Request
from headgate.store.memory import MemoryBackend
from headgate.store.store import Store
from headgate.store.types import At, Conflict, Entry, Lease, Op, Put, SessionLost, Unavailable, Unwritable, Wide

CHANGE = Change(connection="c", project="h/p", branch="b", topic="t", commit="abc", ref="refs/for/b/t")
BUILD = WorkDone(
    kind="build",
    tenant="T",
    pipeline="gate",
    item="i",
    job="unit",
    id="b1",
    result="SUCCESS",
    start_ms=500,
    end_ms=2500,
)
FINISHED = Finished(
    buildset="s", tenant="T", pipeline="gate", change=CHANGE, event="e", result="FAILURE", message="", enqueued_ms=0,
    ended_ms=9000, item="i",
)  # fmt: skip


class Cut(MemoryBackend):
    """Imitate a store that can be unreachable."""

    away = False

    async def get(self, path: str) -> Entry | None:
        if self.away:
            raise Unavailable("the cable is cut")
        return await super().get(path)


async def test_metrics_of_a_store_show_durations_and_the_start_of_an_outage() -> None:
    figures, clock_ms, inner = ProcessMetrics(), [1000], Cut()
    backend = measured(inner, figures.store, lambda: clock_ms[0])
    assert isinstance(backend, Wide) is isinstance(inner, Wide)
    await backend.commit([], [Put("/a", b"1")])
    with pytest.raises(Conflict):
        await backend.commit([At("/a", None)], [Put("/a", b"2")])
    assert backend.away_since_ms is None
    inner.away = True
    for clock_ms[0] in (2000, 3000):
        with pytest.raises(Unavailable):
            await backend.get("/a")
    assert (backend.away_since_ms, backend.away_why) == (2000, "the cable is cut")
    inner.away = False
    await backend.get("/a")
    assert backend.away_since_ms is None
    text = figures.text().decode()
    for request, outcome, count in (("commit", "ok", 1), ("commit", "conflict", 1), ("get", "unavailable", 2)):
        assert f'headgate_store_request_seconds_count{{outcome="{outcome}",request="{request}"}} {count}.0' in text


class Full(MemoryBackend):
    """Imitate a store whose disk can be full."""

    full = False

    async def commit(self, checks: Sequence[At], ops: Sequence[Op]) -> Sequence[Entry | None]:
        if self.full:
            await super().commit(checks, [])
            raise Unwritable("the disk is full")
        return await super().commit(checks, ops)


async def test_only_a_write_shows_that_a_full_store_is_available_again(caplog: pytest.LogCaptureFixture) -> None:
    inner = Full()
    backend = measured(inner, ProcessMetrics().store, lambda: 1000)
    lease = await backend.grant(10.0)
    inner.full = True
    for _ in range(3):
        with pytest.raises(Unavailable):
            await backend.commit([], [Put("/a", b"1")])
        await backend.keep_alive(lease)
        await backend.get("/a")
        with pytest.raises(Conflict):
            await backend.commit([At("/a", 7)], [Put("/a", b"1")])
    assert backend.away_since_ms == 1000 and len(caplog.records) == 1, caplog.text
    inner.full = False
    await backend.commit([], [Put("/a", b"1")])
    assert backend.away_since_ms is None


class Mute(MemoryBackend):
    """Imitate a store that accepts requests and answers none."""

    async def keep_alive(self, lease: Lease) -> None:
        await asyncio.Event().wait()


async def test_a_store_that_is_silent_for_a_short_session_counts_as_unavailable() -> None:
    """Otherwise the health of a process says that the store can be reached, but no component is a member."""
    backend = measured(Mute(), ProcessMetrics().store, lambda: 1000, ttl_s=0.6)
    with pytest.raises(SessionLost):
        async with Store(backend, ttl_s=0.6).session("executor"):
            await asyncio.Event().wait()
    assert backend.away_since_ms == 1000 and "no answer within 0." in backend.away_why


async def test_metrics_of_the_system_match_the_store() -> None:
    figures, store, map = ProcessMetrics(), Store(MemoryBackend()), Map()
    mirror = Mirror(store, map.path)
    request = Request("r", state="running")
    component = ComponentRecord("host", "executor", data=ComponentFacts(accepting=False))
    item = map.tenant("T").pipeline("gate").item("i").path
    events = map.events.tenant("T").pipelines("gate").result.queue.path
    await store.commit(
        [],
        [
            Put(f"{map.executor.zones('lab').requests.path}/r", encode(request)),
            Put(f"{map.components.executor.path}/host0000000001", encode(component)),
            Put(item, b"{}"),
            Put(f"{events}/0000000001", b"{}"),
        ],
    )
    task = asyncio.ensure_future(mirror.run())
    await mirror.ready()
    figures.turn("T", "gate", 3, 0.01)
    figures.done(BUILD)
    figures.finished(FINISHED)
    assert "headgate_items{" not in figures.text().decode()
    with figures.showing_system(map, mirror):
        text = figures.text().decode()
    assert "headgate_items{" not in figures.text().decode()
    task.cancel()
    for line in (
        'headgate_items{pipeline="gate",tenant="T"} 1.0',
        'headgate_event_queue_length{connection="",pipeline="gate",queue="result",tenant="T"} 1.0',
        'headgate_requests{kind="build",state="running",zone="lab"} 1.0',
        'headgate_components{accepting="false",kind="executor",state="running"} 1.0',
        'headgate_events_total{pipeline="gate",tenant="T"} 3.0',
        'headgate_build_seconds_sum{job="unit",pipeline="gate",result="SUCCESS",tenant="T"} 2.0',
        'headgate_item_seconds_sum{pipeline="gate",result="FAILURE",tenant="T"} 9.0',
    ):
        assert line in text, line


def test_spans_of_several_processes_are_one_trace() -> None:
    exporters = [InMemorySpanExporter(), InMemorySpanExporter()]
    executor, scheduler = (Traces(exporter, "host") for exporter in exporters)
    executor.done(BUILD)
    scheduler.finished(FINISHED)
    for traces in (executor, scheduler):
        traces.close()
    ((build,), (root,)) = (exporter.get_finished_spans() for exporter in exporters)
    assert build.context is not None and root.context is not None and build.parent is not None
    assert build.context.trace_id == root.context.trace_id and build.parent.span_id == root.context.span_id
    assert root.parent is None and not root.status.is_ok
    assert (build.name, root.name) == ("build unit", "gate t,abc")
    assert (build.start_time, build.end_time) == (500_000_000, 2_500_000_000)
    assert build.attributes is not None and build.attributes["headgate.job"] == "unit"


@pytest.mark.parametrize("form", [Json(), TextFormatter()])
def test_a_line_of_the_log_says_what_it_is_about(form: logging.Formatter) -> None:
    record = logging.LogRecord("headgate.x", logging.INFO, "", 0, "said %s", ("this",), None)
    with about(change="t,abc", item=""), about(build="b1"):
        _Subject().filter(record)
    line = form.format(record)
    if isinstance(form, Json):
        document = json.loads(line)
        assert (document["message"], document["change"], document["build"]) == (
            "said this",
            "t,abc",
            "b1",
        ) and "item" not in document
    else:
        assert line.endswith("headgate.x: said this [change=t,abc]"), "ids are for programs"


def test_a_machine_without_room_refuses(tmp_path: Path) -> None:
    assert MachineLoad(tmp_path, 1e9, 0, 0).refuses(1) == ""
    assert "load average" in MachineLoad(tmp_path, -1, 0, 0).refuses(1)
    assert MachineLoad(tmp_path, -1, 0, 0).refuses(0) == "", "the load is not ours to wait for"
    assert "memory" in MachineLoad(tmp_path, 1e9, 101, 0).refuses(0)
    assert MachineLoad(tmp_path, 1e9, 0, 0, lambda: "no space").refuses(0) == "no space"
    assert "disk" in MachineLoad(tmp_path / "none" / "yet", 1e9, 0, 101).refuses(0)
