"""A world without git and processes: repositories are tuples of changes, jobs are questions about them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field

from headgate.base.ids import derived
from headgate.base.tasks import unless
from headgate.gate.change import Change, EventKind, Standing, TriggerEvent
from headgate.gate.work import (
    BuildOutcome,
    BuildSpec,
    CatAnswer,
    CatRequest,
    LandAnswer,
    LandRequest,
    MergeAnswer,
    MergeItem,
    MergerAnswer,
    MergeRequest,
    MergerWork,
    ReportAnswer,
    ReportRequest,
    RepoState,
)
from headgate.ports.git import Sighting
from headgate.ports.runner import Pause

HOST = "sim"
UNSERVED = "the service is gone"


class Broken(AssertionError):
    """What must never happen has happened."""


def merged(head: str, item: MergeItem) -> str:
    """The commit after merging: names its whole history."""
    return head if item.commit in head.split("+") else f"{head}+{item.commit}"


@dataclass(slots=True)
class World:
    """Truth: the heads of branches, which changes are open, what was tested.  Outlives every process."""

    chance: random.Random
    config: str
    heads: dict[str, str] = field(default_factory=dict)
    """project -> head of its one branch"""
    open: dict[str, Standing] = field(default_factory=dict)
    conflicting: set[frozenset[str]] = field(default_factory=set)
    """Pairs of commits whose jobs fail together, and single ones that fail alone."""
    unmergeable: set[frozenset[str]] = field(default_factory=set)
    tested: dict[str, set[str]] = field(default_factory=dict)
    """commit -> jobs that passed on exactly it"""
    failed: dict[str, set[str]] = field(default_factory=dict)
    """build that failed -> commits it was run on"""
    proposed: dict[str, str] = field(default_factory=dict)
    """commit -> key of the change"""
    jobs: tuple[str, ...] = ("unit", "together")
    served: tuple[str, ...] = ()
    """Jobs that need a paused one beside them."""
    returned: dict[str, str] = field(default_factory=dict)
    """By every job."""
    serving: set[str] = field(default_factory=set)
    """Buildsets whose paused build is there."""
    landed: list[str] = field(default_factory=list)
    pushes: dict[str, int] = field(default_factory=dict)
    """Change key -> how often it was landed."""
    stirred: list[asyncio.Event] = field(default_factory=list)
    broken: Broken | None = None
    """What was seen that must not be."""
    foreign: int = 0
    """Pushes by others, past the gate."""

    def stir(self) -> None:
        for event in self.stirred:
            event.set()

    def propose(self, change: Change, *, approved: bool) -> None:
        self.proposed[change.commit] = change.key
        self.open[change.key] = Standing(change, approved=change.commit if approved else "")
        self.stir()

    def push_past_the_gate(self, project: str) -> None:
        self.foreign += 1
        self.heads[project] += f"+foreign{self.foreign}"
        self.stir()


@dataclass(slots=True)
class SimForge:
    """`ports.git.Forge` over the world."""

    world: World
    name: str = "sim"

    async def sightings(
        self, known: Mapping[str, Standing], heads: Mapping[str, Mapping[str, str]]
    ) -> AsyncIterator[Sighting]:
        event = asyncio.Event()
        self.world.stirred.append(event)
        try:
            while True:
                event.clear()
                found = self._look(known)
                if found.standings:
                    yield found
                await event.wait()
        finally:
            self.world.stirred.remove(event)

    def _look(self, known: Mapping[str, Standing]) -> Sighting:
        standings, events = list[Standing](), list[TriggerEvent]()
        for key, now in self.world.open.items():
            was = known.get(key)
            if was == now:
                continue
            standings.append(now)
            if was is None or was.change.commit != now.change.commit or not was.open:
                events.append(self._event(EventKind.PROPOSED, now.change))
            if now.is_approved and not (was is not None and was.is_approved and was.change == now.change):
                events.append(self._event(EventKind.APPROVED, now.change))
        for key, was in dict(known).items():
            if was.open and key not in self.world.open:
                landed = was.change.commit in self.world.heads[was.change.project].split("+")
                standings.append(Standing(was.change, open=False, landed=landed))
                if not landed:
                    events.append(self._event(EventKind.ABANDONED, was.change))
        return Sighting(tuple(standings), tuple(events))

    def _event(self, kind: EventKind, change: Change) -> TriggerEvent:
        return TriggerEvent(kind, change, derived(kind, change.key, change.commit, str(self.world.chance.random())))


@dataclass(slots=True)
class SimGit:
    """`ports.git.GitWork` over the world."""

    world: World

    async def do(self, work: MergerWork) -> MergerAnswer:
        await asyncio.sleep(self.world.chance.random() * 0.2)
        match work:
            case MergeRequest():
                return self._merge(work)
            case LandRequest():
                try:
                    return self._land(work)
                except Broken as broken:
                    self.world.broken = broken
                    raise
            case CatRequest():
                text = self.world.config if work.project.endswith("/config") else ""
                files = {"master": {"zuul.yaml": text}} if text else {"master": {}}
                return CatAnswer(work.project, True, branches={"master": "c"}, files=files)
            case ReportRequest():
                return ReportAnswer(True)

    def _merge(self, work: MergeRequest) -> MergeAnswer:
        projects = {*work.projects, *(item.project for item in work.chain)}
        heads = {project: {"refs/heads/master": self.world.heads[project]} for project in projects}
        results: dict[str, dict[str, str]] = {}
        for item in work.chain:
            head = results.get(item.project, {}).get("master", self.world.heads[item.project])
            there = set(head.split("+"))
            if item.commit not in there and any(item.commit in p and p & there for p in self.world.unmergeable):
                return MergeAnswer(work.buildset, False, item.item, f"conflicts in {item.commit}")
            results[item.project] = {"master": merged(head, item)}
        connections = dict.fromkeys(projects, "sim")
        return MergeAnswer(work.buildset, True, state=RepoState(work.chain, heads, results, connections))

    def _land(self, work: LandRequest) -> LandAnswer:
        change, world = work.change, self.world
        head = world.heads[change.project]
        if work.commit in (head, *_history(head)):
            return LandAnswer(work.buildset, True)
        if change.key not in world.open or world.open[change.key].change.commit != change.commit:
            return LandAnswer(work.buildset, False, error="the change is no longer proposed")
        own = next(item for item in work.state.chain if item.commit == change.commit)
        if merged(head, own) != work.commit:
            if not world.foreign:
                raise Broken(f"{change.key} is to land as {work.commit}, but nobody else moved the head from {head}")
            return LandAnswer(work.buildset, False, moved=True)
        missing = set(world.jobs) - world.tested.get(tested_key(work.state), set())
        if missing:
            raise Broken(f"{change.key} lands as {work.commit} but {sorted(missing)} never passed on it")
        world.heads[change.project] = work.commit
        world.landed.append(change.key)
        world.pushes[change.key] = world.pushes.get(change.key, 0) + 1
        del world.open[change.key]
        world.stir()
        return LandAnswer(work.buildset, True)


def _history(head: str) -> list[str]:
    parts = head.split("+")
    return ["+".join(parts[:n]) for n in range(1, len(parts))]


def tested_key(state: RepoState) -> str:
    """All that a job can see."""
    return " ".join(f"{project}={branches['master']}" for project, branches in sorted(state.merged.items()))


@dataclass(slots=True)
class SimRunner:
    """`ports.runner.Runner` over the world."""

    world: World
    flaky: float = 0.05

    async def run(self, spec: BuildSpec, state: RepoState, cancel: asyncio.Event, pause: Pause) -> BuildOutcome:
        """`serves` pauses, and the jobs after it need it until they have ended."""
        served = spec.job.name not in self.world.served or spec.buildset in self.world.serving
        try:
            async with asyncio.timeout(0.1 + self.world.chance.random()):
                await cancel.wait()
            return BuildOutcome(build=spec.build, result="CANCELED")
        except TimeoutError:
            pass
        if self.world.chance.random() < self.flaky:
            return BuildOutcome(build=spec.build, result=None, error="the node went away")
        present = {c for branches in state.merged.values() for head in branches.values() for c in head.split("+")}
        if any(bad <= present for bad in self.world.conflicting):
            self.world.failed[spec.build] = present
            return BuildOutcome(build=spec.build, result="FAILURE")
        if not served or (spec.job.name in self.world.served and spec.buildset not in self.world.serving):
            return BuildOutcome(build=spec.build, result="FAILURE", error=UNSERVED)
        if spec.job.name == "serves":
            self.world.serving.add(spec.buildset)
            try:
                await unless(cancel, pause({"zuul": {"pause": True}, **self.world.returned}))
            finally:
                self.world.serving.discard(spec.buildset)
        if cancel.is_set():
            return BuildOutcome(build=spec.build, result="CANCELED")
        self.world.tested.setdefault(tested_key(state), set()).add(spec.job.name)
        return BuildOutcome(build=spec.build, result="SUCCESS", data=self.world.returned)
