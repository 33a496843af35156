"""How quickly changes come through, counted from what ended."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa
from msgspec.structs import replace

from headgate.adapters.sql.history import SqlHistory
from headgate.adapters.sql.schema import BUILDSETS
from headgate.ports.history import HistoryQuery, Throughput
from headgate.ports.statistics import Span

from .test_attempts import build, ended
from .test_history import ENDED


async def test_a_change_took_from_its_event_to_its_landing_whatever_was_reset(history: SqlHistory) -> None:
    await history.record(ended("reset", 41, build("r", "CANCELED", 11, 41, final=False), final=False))
    await history.record(ended("landed", 101, build("l", "SUCCESS", 41, 91), build("m", "SUCCESS", 42, 62, job="lint")))
    await history.record(ended("failed", 120, build("f", "FAILURE", 110, 120), result="FAILURE"))
    await history.record(ended("out", 130, build("o", "CANCELED"), result="DEQUEUED"))
    total, alone, *rest = await history.throughput("acme", HistoryQuery(), 0)
    assert total == Throughput(
        project="",
        pipeline="gate",
        buildsets=4,
        passed=1,
        failed=1,
        resets=1,
        builds=4,
        builds_per_passed=4.0,
        seconds=110.0,
        seconds_lost=30.0,
        to_start_median_s=40.0,
        to_end_median_s=100.0,
        to_end_95_s=100.0,
    )
    assert alone == replace(total, project="git.example/app", pipeline="")
    assert rest == [replace(total, project="git.example/app")]


async def test_a_buildset_that_still_runs_counts_once_it_ends(history: SqlHistory) -> None:
    retried = build("r", "RETRY", 11, 41, final=False)
    await history.record(ended("runs", 41, retried, result=""))
    span = Span(0, 100_000, 10_000)
    assert await history.throughput("acme", HistoryQuery(), 0) == []
    assert (await history.throughput_over_time("acme", HistoryQuery(), span)).slots == ()
    await history.record(ended("runs", 91, retried, build("s", "SUCCESS", 41, 91)))
    total = (await history.throughput("acme", HistoryQuery(), 0))[0]
    assert (total.buildsets, total.passed, total.failed, total.builds) == (1, 1, 0, 2)


@pytest.mark.long
@pytest.mark.heavy
async def test_the_median_and_the_slowest_are_distinguished(history: SqlHistory) -> None:
    for n in range(1, 101):
        change = replace(ENDED.change, project="git.example/odd" if n % 2 else "git.example/app")
        await history.record(ended(f"s{n:03}", 1 + n, build(f"b{n}", "SUCCESS", 1, 1 + n), change=change))
    found = {(one.project, one.pipeline): one for one in await history.throughput("acme", HistoryQuery(), 0)}
    assert set(found) == {
        (project, pipeline) for project in ("", "git.example/app", "git.example/odd") for pipeline in ("", "gate")
    } - {("", "")}
    assert (found["", "gate"].to_end_median_s, found["", "gate"].to_end_95_s) == (50.0, 95.0)
    assert found["git.example/odd", ""].to_end_median_s == 49.0
    only = HistoryQuery({"project": ("git.example/app",)})
    assert {one.project for one in await history.throughput("acme", only, 0)} == {"", "git.example/app"}
    assert sum(one.passed for one in await history.throughput("acme", HistoryQuery(), 92_000) if not one.project) == 10
    assert await history.throughput("other", HistoryQuery(), 0) == []


def test_the_latest_of_a_tenant_are_found_by_an_index(tmp_path: Path, history: SqlHistory) -> None:
    latest = sa.select(BUILDSETS.c.uuid).where(BUILDSETS.c.tenant == "acme", BUILDSETS.c.ended_ms >= 1)
    text = str(latest.order_by(BUILDSETS.c.ended_ms.desc()).compile(compile_kwargs={"literal_binds": True}))
    with sa.create_engine(f"sqlite:///{tmp_path / 'history.db'}").connect() as connection:
        plan = " ".join(row[3] for row in connection.execute(sa.text(f"EXPLAIN QUERY PLAN {text}")))
    assert "ix_buildset_tenant_ended_ms" in plan and "TEMP B-TREE" not in plan
