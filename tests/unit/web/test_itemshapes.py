"""Test that a status costs only what has changed since the last one, and equals one that is built from scratch."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from headgate.config.model import FrozenGraph, FrozenJob, JobDependency
from headgate.gate.builds.graph import holding, waiting_for
from headgate.gate.state.change import Change, ChangeState
from headgate.gate.state.model import Build, BuildSet, Item, Phase, Queue
from headgate.recipes.requestforms import Owner, Request
from headgate.web.itemshapes import Moment, PipelineShaper
from headgate.web.shapes import Length, PipelineShape, QueueShape, StateShape, StatusShape
from headgate.web.shots import ESTIMATE_AGE_MAX_MS, EncodedStatus, Estimates, StatusEncoder

JOBS = tuple(
    FrozenJob(f"job{n}", dependencies=(JobDependency("job0"),) if n > 7 else (), hold_following_changes=n == 9)
    for n in range(10)
)
STEPS = 400


@dataclass(eq=False)
class CountingEstimates:
    """Count the shaped jobs: each is requested once."""

    usual_s: float = 60.0
    number: int = 0
    queries: int = 0

    def edition(self) -> int:
        return self.number

    def of(self, tenant: str, job: str, project: str, branch: str) -> float | None:
        self.queries += 1
        return self.usual_s


@dataclass
class PlayedPipeline:
    """Hold the data that one pipeline is shown from."""

    queue: Queue
    estimates: CountingEstimates = field(default_factory=CountingEstimates)
    running: dict[str, Request] = field(default_factory=dict)
    awaited: dict[str, str] = field(default_factory=dict)
    change_states: dict[str, ChangeState] = field(default_factory=dict)
    root: str = ""

    def shown(self, shaper: PipelineShaper) -> Sequence[QueueShape]:
        number = self.estimates.edition()
        now = Moment(
            dict(self.running), dict(self.awaited), dict(self.change_states), self.estimates, number, self.root
        )  # fmt: skip
        return shaper.queues([self.queue], now, (), lambda name: None)

    def put(self, number: int, one: Item) -> None:
        items = self.queue.items
        self.queue = replace(self.queue, items=(*items[:number], one, *items[number + 1 :]))


def item(number: int, ahead: int | None = None) -> Item:
    change = Change("local", "git.example/code", "master", f"t{number}", f"{number:040x}", f"refs/for/master/t{number}")
    above = f"s{ahead}" if ahead is not None else None
    buildset = BuildSet(id=f"s{number}", ahead=above, merge=Phase.MERGED, graph=FrozenGraph(JOBS))
    return Item(id=f"i{number}", change=change, event="e", enqueued_ms=number, buildset=buildset)


def with_build(one: Item, job: str, **fields: Any) -> Item:
    assert one.buildset is not None, "it was begun"
    build = replace(one.buildset.builds.get(job) or Build(id=f"{one.id}{job}", job=job, requested_ms=1), **fields)
    return replace(one, buildset=replace(one.buildset, builds={**one.buildset.builds, job: build}))


def status_of(queues: Sequence[QueueShape]) -> StatusShape:
    pipeline = PipelineShape(
        name="gate", description="", state="normal", manager="dependent", triggers=(), trigger_events=0,
        result_events=0, management_events=0, change_queues=tuple(queues),
    )  # fmt: skip
    return StatusShape(
        zuul_version="1", state=StateShape(loaded=True), trigger_event_queue=Length(0), connection_event_queues={},
        management_event_queue=Length(0), last_reconfigured=None, pipelines=(pipeline,),
    )  # fmt: skip


def line(count: int) -> Queue:
    return Queue("q", "code", tuple(item(n, n - 1 if n else None) for n in range(count)), window=0)


def test_a_change_of_one_item_of_forty_shapes_and_encodes_that_one() -> None:
    played, shaper, encoder = PlayedPipeline(line(40)), PipelineShaper("example", "gate"), StatusEncoder()

    def look() -> tuple[int, EncodedStatus]:
        before = played.estimates.queries
        encoded = encoder.encoded(status_of(played.shown(shaper)))
        return played.estimates.queries - before, encoded

    jobs, first = look()
    assert (jobs, len(first.items)) == (400, 40)
    jobs, same = look()
    assert (jobs, same.tag) == (0, first.tag)
    assert all(same.items[name] is text for name, text in first.items.items())
    played.put(17, with_build(played.queue.items[17], "job3", result="SUCCESS", start_ms=1, end_ms=2))
    jobs, second = look()
    assert jobs == 10 and second.tag != first.tag
    assert [name for name, text in second.items.items() if first.items[name] is not text] == [b'"i17"']
    played.running["i17job4"], played.awaited["i3job1"] = Request(id="i17job4", state="running"), "an executor"
    assert look()[0] == 0, "there are no such builds"
    played.queue = replace(played.queue, items=played.queue.items[1:])
    jobs, third = look()
    assert jobs == 10 and b'"i0"' not in third.items, "only the next one has lost what it rested on"
    played.estimates.number += 1
    jobs, fourth = look()
    assert jobs == 390 and fourth.tag == third.tag
    assert all(fourth.items[name] is text for name, text in third.items.items()), "as they take as long as was said"


def moved(chance: random.Random, played: PlayedPipeline) -> None:
    """Change the queue, one of its items, or what is known of it."""
    items = played.queue.items
    number = chance.randrange(len(items)) if items else 0
    match chance.randrange(4) if items else 0:
        case 0:
            played.queue = replace(played.queue, items=(*items, item(chance.randrange(1_000, 9_999))))
        case 1:
            played.queue = replace(played.queue, items=(*items[:number], *items[number + 1 :]))
        case 2:
            played.queue = replace(played.queue, window=chance.randrange(4), dynamic=chance.random() < 0.2)
        case 3:
            played.put(number, other(chance, items[number], chance.choice(items)))
    if items:
        learnt(chance, played, chance.choice(items))


def other(chance: random.Random, one: Item, ahead: Item) -> Item:
    """Return an item that has changed; `ahead`: what it may rest on now."""
    assert one.buildset is not None and ahead.buildset is not None, "each was begun"
    match chance.randrange(4):
        case 0:
            return replace(one, buildset=replace(one.buildset, ahead=ahead.buildset.id))
        case 1:
            return replace(one, problem=chance.choice(("", "a needed change is gone")))
    result, paused = chance.choice((None, None, "SUCCESS", "FAILURE")), chance.random() < 0.2
    return with_build(one, chance.choice(JOBS).name, result=result, paused=paused, end_ms=2 if result else 0)


def learnt(chance: random.Random, played: PlayedPipeline, one: Item) -> None:
    """Learn something of an item, or of all items."""
    assert one.buildset is not None, "it was begun"
    going_on = [build.id for build in one.buildset.builds.values() if build.result is None]
    build = chance.choice(going_on or [f"{one.id}job0"])
    match chance.randrange(8):
        case 0:
            if played.running.pop(build, None) is None:
                played.running[build] = Request(id=build, state="running", owner=Owner(start_ms=chance.randrange(9)))
        case 1:
            played.awaited[build] = chance.choice(("an executor", "nodes: small"))
        case 2:
            played.change_states[one.change.key] = ChangeState(one.change, proposers=(chance.choice(("Ada", "Bob")),))
        case 3:
            played.estimates.usual_s, played.estimates.number = chance.random(), played.estimates.number + 1
        case 4:
            played.root = chance.choice(("", "https://ci.example/t/example/"))


def waiting(status: StatusShape) -> list[str | None]:
    """Return the shown jobs without a build."""
    (queue,) = status.pipelines[0].change_queues
    return [job.waiting_status for head in queue.heads for one in head for job in one.jobs if job.uuid is None]


def expected(played: PlayedPipeline) -> list[str | None]:
    """Return what each of these jobs waits for, from the gate's own words."""
    found = list[str | None]()
    for number, one in enumerate(played.queue.items):
        assert one.buildset is not None, "it was begun"
        ahead = () if played.queue.dynamic else played.queue.items[:number]
        held = holding(one for one in ahead if not one.failing)
        active = number < (played.queue.window or len(played.queue.items))
        jobs = (job for job in JOBS if job.id not in one.buildset.builds)
        found += [(waiting_for(job, one.buildset, held=held) or None) if active else "its turn" for job in jobs]
    return found


def assembled(status: EncodedStatus) -> Any:
    """Return the document with items in place of their ids."""
    document = json.loads(status.text)
    items = {json.loads(name): json.loads(text) for name, text in status.items.items()}
    for queue in (queue for pipeline in document["pipelines"] for queue in pipeline["change_queues"]):
        queue["heads"] = [[items[id] for id in head] for head in queue["heads"]]
    return document


@pytest.mark.long
@pytest.mark.heavy
def test_an_updated_status_equals_a_new_one_and_tags_distinguish_statuses() -> None:
    chance, played = random.Random(20), PlayedPipeline(replace(line(4), window=2))
    shaper, encoder, tags = PipelineShaper("example", "gate"), StatusEncoder(), dict[str, StatusShape]()
    for _ in range(STEPS):
        for _ in range(chance.randrange(3)):
            moved(chance, played)
        updated = status_of(played.shown(shaper))
        fresh = status_of(played.shown(PipelineShaper("example", "gate")))
        assert updated == fresh and waiting(updated) == expected(played)
        encoded = encoder.encoded(updated)
        assert encoded == StatusEncoder().encoded(fresh)
        assert assembled(encoded) == json.loads(msgspec.json.encode(fresh))
        assert tags.setdefault(encoded.tag, fresh) == fresh
    different = list[StatusShape]()
    different.extend(one for one in tags.values() if one not in different)
    assert len(different) == len(tags) > STEPS / 4


class Slept:
    """A history in which every job took a minute."""

    def __init__(self) -> None:
        self.queries = 0

    async def durations_ms(self, *key: str, limit: int) -> list[int]:
        self.queries += 1
        return [60_000]


async def test_estimates_are_requested_again_once_they_are_old() -> None:
    now, history = [0], Slept()
    estimates = Estimates(history, lambda: now[0])  # type: ignore[arg-type]  # of a history it needs this alone
    editions = [estimates.edition()]
    assert estimates.of("t", "unit", "code", "master") is None and await estimates.learn()
    editions.append(estimates.edition())
    now[0] = ESTIMATE_AGE_MAX_MS
    assert estimates.edition() == editions[-1], "what is shaped stays as it is"
    now[0] += 1
    editions += [estimates.edition(), estimates.edition()]
    assert estimates.of("t", "unit", "code", "master") == 60.0 and not await estimates.learn()
    assert (history.queries, editions, estimates.edition()) == (2, [0, 1, 2, 2], 2)
