"""How flaky jobs are over time, compared with what counting one by one finds."""

from __future__ import annotations

import random
from typing import NamedTuple

import pytest
from msgspec.structs import replace

from headgate.adapters.sql import flakiness
from headgate.adapters.sql.history import SqlHistory
from headgate.ports.history import HistoryQuery
from headgate.ports.statistics import PARTS_MAX, Flakiness, Span
from tests.tiers import share

from .test_attempts import build, ended
from .test_history import ENDED

HOUR_S, SLOTS = 3_600, 6
SPAN = Span(HOUR_S * 1_000, (1 + SLOTS) * HOUR_S * 1_000, HOUR_S * 1_000)
FAILED = ("FAILURE", "POST_FAILURE", "TIMED_OUT", "RETRY_LIMIT", "DISK_FULL")
RESULTS = (*FAILED, *["SUCCESS"] * 6, "FAILURE", "FAILURE", "RETRY", "CANCELED", "SKIPPED", "NODE_FAILURE", "ABORTED")
COUNTS = ("builds", "failed", "trees", "flaky", "retried")


class Ran(NamedTuple):
    """Describe a build of a random history."""

    tenant: str
    job: str
    project: str
    branch: str
    pipeline: str
    nodeset: str
    tree: str
    result: str
    end_s: int
    set_end_s: int


def drawn(chance: random.Random, count: int) -> list[Ran]:
    """Return builds of all kinds, some of which end on the very edge of a slot or of the span."""
    edges = [n * HOUR_S for n in range(SLOTS + 3)]
    found = []
    for _ in range(count):
        until_s = chance.choice([chance.choice(edges), chance.randrange(1, (SLOTS + 2) * HOUR_S)]) or 1
        found.append(
            Ran(
                chance.choice(["acme", "acme", "acme", "other"]),
                chance.choice(["unit", "unit", "lint"]),
                f"git.example/{chance.choice('ab')}",
                chance.choice(["main", "stable"]),
                chance.choice(["check", "gate"]),
                chance.choice(["", "big", "small"]),
                chance.choice(["", *"tuvwxyz"]),
                chance.choice(RESULTS),
                max(1, until_s - chance.choice([0, 5, 300])),
                until_s,
            )
        )
    return found


async def record_all(history: SqlHistory, every: list[Ran], prefix: str) -> None:
    for n, one in enumerate(every):
        change = replace(ENDED.change, project=one.project, branch=one.branch)
        ran = build(f"{prefix}b{n}", one.result, 1, one.end_s, job=one.job, nodeset=one.nodeset)
        about = {"tenant": one.tenant, "pipeline": one.pipeline, "tree": one.tree, "change": change}
        await history.record(ended(f"{prefix}s{n}", one.set_end_s, ran, **about))


def part_of(one: Ran, name: str) -> str:
    return str(getattr(one, name.removesuffix("_name"))) if name else ""


def state_of(one: Ran, part: str) -> tuple[str, ...]:
    return one.project, one.tree, one.job, part_of(one, part)


def counted(every: list[Ran], job: str, span: Span, only: dict[str, str]) -> dict[tuple[int, str], dict[str, int]]:
    """Count by the definition: slot by slot, build by build, tree by tree of each job."""
    seen = [
        one
        for one in every
        if one.tenant == "acme"
        and one.job == (job or one.job)
        and span.since_ms <= one.set_end_s * 1_000 < span.until_ms
        and all(getattr(one, name) == value for name, value in only.items())
    ]
    found: dict[tuple[int, str], dict[str, int]] = {}

    def add(one: Ran, what: str) -> None:
        slot = one.set_end_s // HOUR_S * HOUR_S
        found.setdefault((slot, part_of(one, span.part)), dict.fromkeys(COUNTS, 0))[what] += 1

    for one in seen:
        if one.result in (*FAILED, "SUCCESS"):
            add(one, "builds")
        if one.result in FAILED:
            add(one, "failed")
        if one.result == "RETRY":
            add(one, "retried")
    for state in {state_of(one, span.part) for one in seen if one.tree}:
        same = [one for one in seen if state_of(one, span.part) == state and one.result in (*FAILED, "SUCCESS")]
        if same:
            first = min(same, key=lambda one: one.set_end_s)
            add(first, "trees")
            if any(a.result in FAILED and b.result == "SUCCESS" and a.end_s < b.end_s for a in same for b in same):
                add(first, "flaky")
    return found


def as_counted(answer: Flakiness) -> dict[tuple[int, str], dict[str, int]]:
    """Return the answer in the form of `counted`; times are of the first day of 1970."""
    return {
        (int(one.start_time[11:13]) * HOUR_S, one.part or ""): {name: getattr(one, name) for name in COUNTS}
        for one in answer.slots
    }


async def random_histories_are_counted_right(history: SqlHistory, seeds: range) -> None:
    """Check this for any database, which is empty."""
    every: list[Ran] = []
    flaky = 0
    for seed in seeds:
        chance = random.Random(seed)
        more = drawn(chance, chance.choice([1, 5, 40]))
        await record_all(history, more, f"{seed}-")
        every += more
        for part in ("", "project", "branch", "pipeline", "nodeset", "job_name"):
            span = replace(SPAN, part=part)
            for only in ({}, {"branch": "main"}, {"nodeset": "big", "pipeline": "gate"}):
                query = HistoryQuery({name: (value,) for name, value in only.items()})
                for job in ("unit", ""):
                    expected = counted(every, job, span, only)
                    answer = await history.flakiness("acme", query, job, span)
                    assert as_counted(answer) == expected, (seed, part, only, job)
                    flaky += sum(one["flaky"] for one in expected.values())
    assert flaky, "some are"


@pytest.mark.long
@pytest.mark.heavy
async def test_random_histories_are_counted_right(history: SqlHistory) -> None:
    await random_histories_are_counted_right(history, range(share(30)))


async def test_a_tree_counts_in_the_slot_of_its_first_result(history: SqlHistory) -> None:
    for n, (result, hour) in enumerate((("FAILURE", 1), ("SUCCESS", 3), ("FAILURE", 4))):
        at_s = hour * HOUR_S + 60
        await history.record(ended(f"s{n}", at_s, build(f"b{n}", result, 1, at_s), tree="t"))
    answer = await history.flakiness("acme", HistoryQuery(), "unit", SPAN)
    assert [(one.start_time, one.builds, one.failed, one.trees, one.flaky) for one in answer.slots] == [
        ("1970-01-01T01:00:00", 1, 1, 1, 1),
        ("1970-01-01T03:00:00", 1, 0, 0, 0),
        ("1970-01-01T04:00:00", 1, 1, 0, 0),
    ]
    assert (answer.start_time, answer.end_time) == ("1970-01-01T01:00:00", "1970-01-01T07:00:00")
    assert (answer.slot_seconds, answer.complete_from) == (HOUR_S, None)
    later = await history.flakiness("acme", HistoryQuery(), "unit", replace(SPAN, since_ms=3 * HOUR_S * 1_000))
    assert [(one.trees, one.flaky) for one in later.slots] == [(1, 0), (0, 0)], "it failed before that time"


@pytest.mark.heavy
async def test_parts_beyond_the_largest_are_counted_as_one(history: SqlHistory) -> None:
    for n in range(PARTS_MAX + 5):
        change = replace(ENDED.change, branch=f"b{n:02}")
        for again in range(2 if n >= 5 else 1):
            one = build(f"b{n}-{again}", "SUCCESS", 1, HOUR_S)
            await history.record(ended(f"s{n}-{again}", HOUR_S, one, change=change, tree=f"t{n}"))
    (*parts, rest) = (await history.flakiness("acme", HistoryQuery(), "unit", replace(SPAN, part="branch"))).slots
    assert [one.part for one in parts] == [f"b{n:02}" for n in range(5, PARTS_MAX + 5)]
    assert (rest.part, rest.builds, rest.trees) == (None, 5, 5)


async def test_only_the_latest_of_too_many_buildsets_count_and_the_answer_says_from_when(
    history: SqlHistory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flakiness, "LOOKED_AT_MAX", 3)
    for n in range(1, 6):
        for tenant in ("acme", "other"):
            at_s = n * HOUR_S + 60
            one = build(f"{tenant}{n}", "SUCCESS", 1, at_s, job="unit" if n != 4 else "lint")
            await history.record(ended(f"s{tenant}{n}", at_s, one, tenant=tenant))
    answer = await history.flakiness("acme", HistoryQuery(), "unit", SPAN)
    assert [one.start_time for one in answer.slots] == ["1970-01-01T03:00:00", "1970-01-01T05:00:00"]
    assert answer.complete_from == "1970-01-01T02:01:00"
    monkeypatch.setattr(flakiness, "LOOKED_AT_MAX", 5)
    found = await history.flakiness("acme", HistoryQuery(), "unit", SPAN)
    assert (len(found.slots), found.complete_from) == (4, None)


async def test_the_buildsets_are_found_by_an_index_and_no_other_tenants_builds_are_read(
    history: SqlHistory, planned: list[list[str]]
) -> None:
    await history.flakiness("acme", HistoryQuery({"job_name": ("unit",)}), "unit", replace(SPAN, part="nodeset"))
    await history.flakiness("acme", HistoryQuery({"pipeline": ("gate",)}), "", replace(SPAN, part="job_name"))
    assert len(planned) == 4
    for reads in planned:
        assert reads and all("ix_buildset_tenant_ended_ms" in line or "ix_build_buildset" in line for line in reads)
