"""Test how the API shows the flakiness of a job and times to land over time, and which parameters it rejects."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

import pytest

from headgate.gate.state.works import BuildOutcome, BuildSpec, RepoState

from .conftest import TENANT, World

AT = "T/job-flakiness?job_name=unit"
DAY_S, MOMENT_S = 86_400, 60
"""A day, and the longest time between the end of a build and that of its buildset."""


def ran(spec: BuildSpec, state: RepoState) -> BuildOutcome:
    now_ms = int(time.time() * 1000)
    return BuildOutcome(build=spec.build, result="SUCCESS", start_ms=now_ms - 1_000, end_ms=now_ms)


def seconds(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


@pytest.mark.long
async def test_ended_builds_are_in_the_last_slot_and_can_be_filtered(world: World) -> None:
    world.running.runner.jobs = {"unit": ran}
    build = await world.landed("done")
    counts: dict[str, Any] = {"builds": 1, "failed": 0, "trees": 1, "flaky": 0, "retried": 0}
    found = await world.get(f"{AT}&pipeline=gate&project=code/api&branch=master")
    (one,) = found["slots"]
    assert one == {"start_time": one["start_time"], "part": "", **counts}
    assert -MOMENT_S < seconds(build["end_time"]) - seconds(one["start_time"]) < DAY_S
    assert seconds(found["end_time"]) - seconds(found["start_time"]) == 30 * DAY_S
    assert seconds(found["end_time"]) % DAY_S == 0 and found["slot_seconds"] == DAY_S
    assert (found["job_name"], found["complete_from"]) == ("unit", None)
    for by, part in (("project", "git.example/code/api"), ("branch", "master"), ("pipeline", "gate")):
        apart = await world.get(f"{AT}&pipeline=gate&by={by}")
        assert [slot["part"] for slot in apart["slots"]] == [part]
    for slot, length in (("hour", 3_600), ("week", 7 * DAY_S)):
        (one,) = (await world.get(f"{AT}&pipeline=gate&days=7&slot={slot}"))["slots"]
        assert one.items() >= counts.items()
        assert -MOMENT_S < seconds(build["end_time"]) - seconds(one["start_time"]) < length
    monday = datetime.fromisoformat((await world.get(f"{AT}&slot=week"))["start_time"])
    assert (monday.weekday(), monday.hour) == (0, 0)
    for nothing in ("&pipeline=none", "&branch=none", "&nodeset=none", "&end_time=2001-01-01T00:00:00", "&project=x"):
        assert (await world.get(AT + nothing))["slots"] == [], nothing
    assert (await world.get("T/job-flakiness?job_name=none"))["slots"] == []
    every = await world.get("T/job-flakiness?pipeline=gate&by=job_name")
    assert (
        every["job_name"] is None and counts.items() <= next(s for s in every["slots"] if s["part"] == "unit").items()
    )
    slots = (await world.get("T/job-flakiness?pipeline=gate"))["slots"]
    assert sum(s["builds"] for s in slots) == sum(s["builds"] for s in every["slots"])


async def test_the_period_ends_with_the_slot_of_its_end_time(world: World) -> None:
    for end, until in (
        ("2001-01-01T00:00:00", "2001-01-01T00:00:00"), ("2001-01-01T00:00:01", "2001-01-02T00:00:00"),
        ("2001-01-01T01:00:00%2B02:00", "2001-01-01T00:00:00"),
    ):  # fmt: skip
        assert (await world.get(f"{AT}&end_time={end}"))["end_time"] == until
    before, far, after = [(await world.get(AT + end))["end_time"] for end in ("", "&end_time=9999-12-31T23:59:59", "")]
    assert far in (before, after), "what is to come ends now"


@pytest.mark.long
async def test_the_last_slot_contains_a_landed_change_with_its_times(world: World) -> None:
    world.running.runner.jobs = {"unit": ran}
    build = await world.landed("done")
    found = await world.get("T/throughput?pipeline=gate&project=code/api&branch=master")
    (one,) = found["slots"]
    assert (one["buildsets"], one["passed"], one["failed"], one["resets"]) == (1, 1, 0, 0)
    assert one["builds"] >= 1 and one["builds_per_passed"] == one["builds"] and one["seconds_lost"] == 0
    assert 0 <= one["to_start_median_s"] <= one["to_end_median_s"] == one["to_end_95_s"] < MOMENT_S
    assert -MOMENT_S < seconds(build["end_time"]) - seconds(one["start_time"]) < DAY_S
    assert found["slot_seconds"] == DAY_S and found["complete_from"] is None
    (altogether,) = [s for s in await world.get("T/statistics?pipeline=gate&project=code/api") if not s["project"]]
    assert {name: one[name] for name in one if name != "start_time"}.items() <= altogether.items()
    for slot, length in (("hour", 3_600), ("week", 7 * DAY_S)):
        again = await world.get(f"T/throughput?pipeline=gate&days=7&slot={slot}")
        assert again["slots"][0].items() >= {"passed": 1}.items() and again["slot_seconds"] == length
    for nothing in (
        "pipeline=none",
        "branch=none",
        "end_time=2001-01-01T00:00:00",
        "project=x",
        "result=none",
    ):
        assert (await world.get(f"T/throughput?{nothing}"))["slots"] == [], nothing


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("days=0", "days must be between 1 and 365"),
        ("days=" + "9" * 400, "days"),
        ("slot=hour&days=17", "days must be at most 16"),
        ("slot=second", "slot must be one of hour, day, week"),
        ("end_time=yesterday", "end_time"),
        ("project=*a*b*c*d*", "project"),
        ("by=project", "there is no filter 'by'"),
        ("limit=1", "there is no filter 'limit'"),
        ("job_name=unit", "there is no filter 'job_name'"),
        ("final=perhaps", "final must be true or false"),
    ],
)
async def test_throughput_names_invalid_parameters(world: World, query: str, message: str) -> None:
    answer = await world.client.get(f"{TENANT}/throughput?{query}")
    assert answer.status_code == 400 and message in answer.text, answer.text


@pytest.mark.long
@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("job_name=", "job_name"),
        ("job_name=*", "job_name"),
        ("job_name=a&job_name=b", "job_name"),
        ("job_name=unit&days=0", "days must be between 1 and 365"),
        ("job_name=unit&days=366", "days must be between 1 and 365"),
        ("job_name=unit&days=-1", "days"),
        ("job_name=unit&days=%D9%A3", "days"),
        ("job_name=unit&days=" + "9" * 400, "days"),
        ("job_name=unit&slot=hour&days=17", "days must be at most 16"),
        ("job_name=unit&slot=second", "slot must be one of hour, day, week"),
        ("job_name=unit&slot=hour&slot=day", "slot must be one of hour, day, week"),
        ("job_name=unit&by=tenant", "by must be one of project, branch, pipeline, nodeset, job_name"),
        ("job_name=unit&by=project&by=branch", "by must be one of"),
        ("job_name=unit&end_time=yesterday", "end_time"),
        ("job_name=unit&end_time=0001-01-01T00:00:00%2B23:00", "end_time"),
        ("job_name=unit&end_time=1970-01-01", "end_time"),
        ("job_name=unit&project=*a*b*c*d*", "project"),
        ("job_name=unit&uuid=x", "there is no filter 'uuid'"),
        ("job_name=unit&limit=1", "there is no filter 'limit'"),
        ("jobname=unit", "there is no filter 'jobname'"),
    ],
)
async def test_job_flakiness_names_invalid_parameters(world: World, query: str, message: str) -> None:
    answer = await world.client.get(f"{TENANT}/job-flakiness?{query}")
    assert answer.status_code == 400 and message in answer.text, answer.text


async def test_odd_texts_and_other_tenants_are_answered(world: World) -> None:
    for odd in ("%00", "%ED%A0%80", "'%20OR%201=1--", "%25", "_nit", "x" * 5_000):
        for name in ("job_name", "branch", "nodeset"):
            query = f"{name}={odd}" + ("" if name == "job_name" else "&job_name=unit")
            answer = await world.client.get(f"{TENANT}/job-flakiness?{query}")
            assert answer.status_code == 200 and answer.json()["slots"] == [], (name, odd, answer.text)
        for name in ("pipeline", "branch", "result"):
            answer = await world.client.get(f"{TENANT}/throughput?{name}={odd}")
            assert answer.status_code == 200 and answer.json()["slots"] == [], (name, odd, answer.text)
    for path in ("job-flakiness?job_name=unit", "throughput"):
        assert (await world.client.get(f"/api/tenant/none/{path}")).status_code == 404
