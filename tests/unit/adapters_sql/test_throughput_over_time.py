"""How quickly changes came through over time, compared with what counting one by one finds."""

from __future__ import annotations

import math
import random
from typing import NamedTuple

import pytest
from msgspec.structs import replace

from headgate.adapters.sql import flakiness
from headgate.adapters.sql.history import SqlHistory
from headgate.ports.history import HistoryQuery
from headgate.ports.statistics import Span, ThroughputSlot
from tests.tiers import share

from .test_attempts import build, ended
from .test_history import ENDED

HOUR_S, SLOTS = 3_600, 6
SPAN = Span(HOUR_S * 1_000, (1 + SLOTS) * HOUR_S * 1_000, HOUR_S * 1_000)
RESULTS = ("SUCCESS", "SUCCESS", "SUCCESS", "FAILURE", "MERGE_CONFLICT", "DEQUEUED", "NO_JOBS", "CANCELED")
ENQUEUED_S = ENDED.enqueued_ms // 1_000


class Seen(NamedTuple):
    """Describe a buildset of a random history; times of its builds are in seconds."""

    tenant: str
    project: str
    pipeline: str
    result: str
    final: bool
    builds: tuple[tuple[int, int], ...]
    end_s: int


def drawn(chance: random.Random, count: int) -> list[Seen]:
    """Return buildsets of all kinds, some of which end on the very edge of a slot or of the span."""
    edges = [n * HOUR_S for n in range(1, SLOTS + 3)]
    found = []
    for _ in range(count):
        end_s = chance.choice([chance.choice(edges), chance.randrange(HOUR_S // 2, (SLOTS + 2) * HOUR_S)])
        builds = []
        for _ in range(chance.choice([0, 1, 3])):
            start_s = chance.choice([0, chance.randrange(1, end_s)])
            builds.append((start_s, chance.randrange(start_s, end_s + 1) if start_s else 0))
        found.append(
            Seen(
                chance.choice(["acme", "acme", "acme", "other"]),
                f"git.example/{chance.choice('ab')}",
                chance.choice(["check", "gate"]),
                chance.choice(RESULTS),
                chance.random() < 0.7,
                tuple(builds),
                end_s,
            )
        )
    return found


async def record_all(history: SqlHistory, every: list[Seen], prefix: str) -> None:
    for n, one in enumerate(every):
        change = replace(ENDED.change, project=one.project)
        ran = [
            build(f"{prefix}b{n}-{m}", "SUCCESS", start_s, end_s, job=f"j{m}")
            for m, (start_s, end_s) in enumerate(one.builds)
        ]
        about = {"tenant": one.tenant, "pipeline": one.pipeline, "final": one.final, "change": change}
        await history.record(ended(f"{prefix}s{n}", one.end_s, *ran, result=one.result, **about))


def middle(times: list[int], share: float) -> float | None:
    """Return the smallest time that the given fraction of times does not exceed."""
    return next((t for t in sorted(times) if sum(u <= t for u in times) >= math.ceil(share * len(times))), None)


def counted(every: list[Seen], only: dict[str, str]) -> dict[str, ThroughputSlot]:
    """Count by the definition: slot by slot and buildset by buildset."""
    found = {}
    for slot in range(1, SLOTS + 1):
        here = [
            one
            for one in every
            if one.tenant == "acme"
            and one.end_s // HOUR_S == slot
            and all(getattr(one, name) == value for name, value in only.items())
        ]
        resets = [one for one in here if not one.final]
        passed = [one for one in here if one.final and one.result == "SUCCESS"]
        failed = [one for one in here if one.final and one.result in ("FAILURE", "MERGE_CONFLICT")]
        began = [start for one in here for start, _ in one.builds if start]
        starts = [[start for start, _ in one.builds if start] for one in passed]
        waits = [max(0, min(some) - ENQUEUED_S) for some in starts if some]
        ends = [max(0, one.end_s - ENQUEUED_S) for one in passed]
        if here:
            start_time = f"1970-01-01T{slot:02}:00:00"
            found[start_time] = ThroughputSlot(
                start_time=start_time,
                buildsets=len(here),
                passed=len(passed),
                failed=len(failed),
                resets=len(resets),
                builds=len(began),
                builds_per_passed=len(began) / len(passed) if passed else None,
                seconds=sum(end - start for one in here for start, end in one.builds if start and end),
                seconds_lost=sum(end - start for one in resets for start, end in one.builds if start and end),
                to_start_median_s=middle(waits, 0.5),
                to_end_median_s=middle(ends, 0.5),
                to_end_95_s=middle(ends, 0.95),
            )
    return found


async def random_throughput_is_counted_right(history: SqlHistory, seeds: range) -> None:
    """Check this for any database, which is empty."""
    every: list[Seen] = []
    resets = passed = 0
    for seed in seeds:
        chance = random.Random(seed)
        more = drawn(chance, chance.choice([1, 5, 40]))
        await record_all(history, more, f"{seed}-")
        every += more
        for only in (
            {},
            {"project": "git.example/a"},
            {"pipeline": "gate"},
            {"project": "git.example/b", "pipeline": "check"},
        ):
            query = HistoryQuery({name: (value,) for name, value in only.items()})
            answer = await history.throughput_over_time("acme", query, SPAN)
            expected = counted(every, only)
            assert {one.start_time: one for one in answer.slots} == expected, (seed, only)
            resets += sum(one.resets for one in expected.values())
            passed += sum(one.passed for one in expected.values())
    assert resets and passed, "there are some"


async def test_random_histories_are_counted_right(history: SqlHistory) -> None:
    await random_throughput_is_counted_right(history, range(share(20)))


async def test_only_the_latest_of_too_many_buildsets_count_and_the_answer_says_from_when(
    history: SqlHistory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flakiness, "LOOKED_AT_MAX", 3)
    for n in range(1, 6):
        for tenant in ("acme", "other"):
            at_s = n * HOUR_S + 60
            await history.record(ended(f"s{tenant}{n}", at_s, build(f"{tenant}{n}", "SUCCESS", 1, at_s), tenant=tenant))
    answer = await history.throughput_over_time("acme", HistoryQuery(), SPAN)
    assert [one.start_time[11:] for one in answer.slots] == ["03:00:00", "04:00:00", "05:00:00"]
    assert answer.complete_from == "1970-01-01T02:01:00"
    monkeypatch.setattr(flakiness, "LOOKED_AT_MAX", 5)
    found = await history.throughput_over_time("acme", HistoryQuery(), SPAN)
    assert (len(found.slots), found.complete_from) == (5, None)
    assert (found.start_time, found.end_time, found.slot_seconds) == (
        "1970-01-01T01:00:00", "1970-01-01T07:00:00", HOUR_S,
    )  # fmt: skip


async def test_the_buildsets_are_found_by_an_index_and_no_other_tenants_are_read(
    history: SqlHistory, planned: list[list[str]]
) -> None:
    await history.throughput_over_time("acme", HistoryQuery({"pipeline": ("gate",)}), SPAN)
    assert len(planned) == 2
    for reads in planned:
        assert reads and all("ix_buildset_tenant_ended_ms" in line or "ix_build_buildset" in line for line in reads)
