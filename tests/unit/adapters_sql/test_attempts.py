"""Test that every attempt is recorded, also in a database of an earlier version, and what can be computed from them."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from msgspec.structs import replace

from headgate.adapters.sql.history import SqlHistory
from headgate.gate.state.returns import Course, FileComment, Range
from headgate.map.records import Finished, FinishedBuild
from headgate.ports.history import HistoryQuery, JobHealth, PastCourse, ResetCost

from .test_history import ENDED

OLD = """
CREATE TABLE buildset (uuid VARCHAR(64) NOT NULL PRIMARY KEY, tenant VARCHAR(255), pipeline VARCHAR(255),
  project VARCHAR(255), branch VARCHAR(255), change VARCHAR(255), patchset VARCHAR(64), ref VARCHAR(255),
  newrev VARCHAR(64), event_id VARCHAR(64), result VARCHAR(32), message TEXT, enqueued_ms BIGINT, ended_ms BIGINT,
  oldrev VARCHAR(64), ref_url TEXT, item VARCHAR(64));
CREATE TABLE build (uuid VARCHAR(64) NOT NULL PRIMARY KEY, buildset VARCHAR(64), job_name VARCHAR(255),
  result VARCHAR(32), voting BOOLEAN, start_ms BIGINT, end_ms BIGINT, log_url TEXT, error_detail TEXT,
  nodeset VARCHAR(255), artifacts JSON, provides JSON);
CREATE TABLE hand_action (id VARCHAR(64) NOT NULL PRIMARY KEY, tenant VARCHAR(255), verb VARCHAR(64), who TEXT,
  authenticator VARCHAR(255), origin TEXT, at_ms BIGINT, subject TEXT, reason TEXT, details JSON, outcome TEXT);
CREATE TABLE history_version (version INTEGER NOT NULL PRIMARY KEY);
INSERT INTO history_version VALUES (2);
INSERT INTO buildset (uuid, tenant, pipeline, project, branch, change, patchset, ref, newrev, event_id, result, message,
  enqueued_ms, ended_ms, item) VALUES ('old', 'acme', 'gate', 'git.example/app', 'main', 't0', 'c', 'r', 'c', 'e',
  'SUCCESS', 'landed', 1000, 2000, 'i');
INSERT INTO build (uuid, buildset, job_name, result, voting, start_ms, end_ms)
  VALUES ('oldb', 'old', 'unit', 'SUCCESS', true, 1200, 1800);
"""
"""Create the database of version 2 of the history."""
EVERY = HistoryQuery(limit=100)


def build(uuid: str, result: str, start_s: int = 0, end_s: int = 0, job: str = "unit", **more: object) -> FinishedBuild:
    times = {"start_ms": start_s * 1000, "end_ms": end_s * 1000}
    return FinishedBuild(uuid=uuid, job_name=job, result=result, **times, **more)  # type: ignore[arg-type]  # of several types


def ended(buildset: str, end_s: int, *builds: FinishedBuild, result: str = "SUCCESS", **more: object) -> Finished:
    found = replace(ENDED, buildset=buildset, ended_ms=end_s * 1000, builds=builds, result=result)
    return replace(found, **more)  # type: ignore[arg-type]  # of several types


async def records_of_an_earlier_version_are_there(history: SqlHistory) -> None:
    """Run the check on any database."""
    old = await history.buildset("acme", "old")
    assert (
        old is not None
        and old.final
        and [(b.uuid, b.final, b.attempt) for b in old.builds or ()] == [("oldb", True, 1)]
    )
    await history.record(ended("new", 9, build("n1", "RETRY", 3, 4, final=False), build("n2", "SUCCESS", 4, 8)))
    found = await history.builds("acme", replace(EVERY, equal={"final": (True,)}))
    assert {one.uuid for one in found} == {"n2", "oldb"}
    assert await history.job_health("acme", EVERY, 0) == [
        JobHealth(
            project="git.example/app",
            job_name="unit",
            builds=2,
            failed=0,
            trees=0,
            flaky=0,
            retried=1,
            seconds=5.6,
            seconds_lost=1.0,
        )
    ]


async def test_a_database_of_the_version_before_is_brought_up(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    with sqlite3.connect(path) as old:
        old.executescript(OLD)
    for _ in range(2):
        history = SqlHistory(f"sqlite:///{path}")
        await records_of_an_earlier_version_are_there(history)
        (buildset,) = await history.buildsets("acme", replace(EVERY, limit=1))
        assert await history.works("acme", buildset.uuid) == {}
        history.close()


async def test_an_attempt_is_found_while_its_buildset_runs_and_after_it_ended(history: SqlHistory) -> None:
    first = build("u1", "RETRY", 3, 4, final=False, error="unreachable", image="debian@sha256:1")
    await history.record(ended("s", 4, first, result="", message=""))
    found = await history.build("acme", "u1")
    assert found is not None and (found.result, found.final, found.error_detail) == ("RETRY", False, "unreachable")
    assert found.image == "debian@sha256:1"
    going = await history.buildset("acme", "s")
    assert going is not None and going.result is None and going.last_build_end_time is None
    assert await history.buildsets("acme", replace(EVERY, equal={"complete": (True,)})) == []
    await history.record(ended("s", 9, build("u2", "SUCCESS", 4, 8, attempt=2)))
    await history.record(ended("s", 4, first, result="", message=""))  # reported again
    over = await history.buildset("acme", "s")
    assert over is not None and over.result == "SUCCESS"
    assert [(b.uuid, b.result, b.final, b.attempt) for b in over.builds or ()] == [
        ("u1", "RETRY", False, 1),
        ("u2", "SUCCESS", True, 2),
    ]


async def test_the_times_of_a_build_that_was_stopped_are_not_forgotten(history: SqlHistory) -> None:
    await history.record(ended("s", 4, build("u1", "CANCELED", 3, 4), result="", message=""))
    await history.record(ended("s", 9, build("u1", "CANCELED"), result="FAILURE"))
    found = await history.build("acme", "u1")
    assert found is not None and found.duration == 1.0


async def test_a_job_is_flaky_where_it_failed_and_then_passed_on_the_same_tree(history: SqlHistory) -> None:
    for number, (tree, result) in enumerate(
        (
            ("same", "FAILURE"),
            ("same", "SUCCESS"),
            ("broken then", "SUCCESS"),
            ("broken then", "FAILURE"),
            ("mended", "FAILURE"),
            ("mended too", "SUCCESS"),
            ("", "FAILURE"),
            ("", "SUCCESS"),
        )
    ):
        one = build(f"u{number}", result, 10 * number + 1, 10 * number + 5)
        good = build(f"l{number}", "SUCCESS", 10 * number + 1, 10 * number + 2, job="lint")
        await history.record(ended(f"s{number}", 10 * number + 9, one, good, result=result, tree=tree))
    found = {h.job_name: h for h in await history.job_health("acme", EVERY, 0)}
    unit, lint = found["unit"], found["lint"]
    assert (unit.builds, unit.failed, unit.trees, unit.flaky, unit.seconds) == (8, 4, 4, 1, 32.0)
    assert (lint.builds, lint.failed, lint.flaky, lint.seconds_lost) == (8, 0, 0, 0.0)
    assert list(found) == ["unit", "lint"], "the flakiest first"
    assert [h.builds for h in await history.job_health("acme", EVERY, 60_000)] == [2, 2]
    only = replace(EVERY, equal={"job_name": ("lint",)})
    assert [h.job_name for h in await history.job_health("acme", only, 0)] == ["lint"]
    assert await history.job_health("other", EVERY, 0) == []


async def test_resets_cost_the_time_of_their_builds(history: SqlHistory) -> None:
    lost = (build("u1", "CANCELED", 1, 31, final=False), build("l1", "CANCELED", job="lint", final=False))
    await history.record(ended("s1", 31, *lost, result="DEQUEUED", final=False))
    await history.record(ended("s2", 40, result="DEQUEUED", final=False))
    await history.record(ended("s3", 99, build("u3", "SUCCESS", 40, 50)))
    assert await history.reset_costs("acme", EVERY, 0) == [
        ResetCost(
            project="git.example/app",
            pipeline="gate",
            buildsets=3,
            resets=2,
            builds_lost=1,
            seconds=40.0,
            seconds_lost=30.0,
        )
    ]
    assert [c.resets for c in await history.reset_costs("acme", EVERY, 35_000)] == [1]


async def test_data_of_a_build_is_stored_and_comments_only_on_request(
    history: SqlHistory,
) -> None:
    course = Course(machines=("node (big)",), had_ms=3_000, paused_ms=4_000, resumed_ms=6_000)
    comments = {"a.py": (FileComment("odd", 3, "warning", Range(3, 1, 3, 5)), FileComment("as a whole"))}
    about = {"needs": ("build",), "semaphores": ("disk",), "course": course, "comments": comments}
    await history.record(ended("s", 9, build("b1", "FAILURE", 4, 8, requested_ms=2_000, **about)))
    (bare,) = await history.builds("acme", EVERY)
    assert bare.execute_time == "1970-01-01T00:00:02"
    assert bare.course == PastCourse(
        needs=("build",),
        semaphores=("disk",),
        machines=("node (big)",),
        had_time="1970-01-01T00:00:03",
        paused_time="1970-01-01T00:00:04",
        resumed_time="1970-01-01T00:00:06",
    )
    assert not bare.comments, "a list of builds may be long"
    (complete,) = await history.builds("acme", replace(EVERY, comments=True))
    assert complete.comments == comments
