"""A month of sixty repositories that share a queue, through the gate itself, in simulated time: what `reuse` spares.

The gate's decisions are the real ones (`gate.absorb`, `gate.settle`); mergers and machines answer after a while that
depends on nothing but the seed.  Beside `reuse` everything is the policy of the reference: one queue, each change
tested on all ahead of it, and anew whenever something ahead fails; a window that shrinks by failures.
"""

from __future__ import annotations

import hashlib
import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count

from msgspec.structs import replace

from headgate.config.model import FrozenGraph, FrozenJob, RequiredProject, Window
from headgate.gate.actions import Action, Cancel, Land, Merge, Record, Run
from headgate.gate.change import Standing
from headgate.gate.model import Build
from headgate.gate.reuse import NOTHING, lasting
from headgate.gate.waiter import Sought
from headgate.gate.work import MergeItem
from headgate.testing.layouts import PlayLayout
from headgate.testing.plays import Play

REPOSITORIES, HUBS, CHAINS = 60, 4, 8
CHANGES = 1_000
DAYS, FIRST_HOUR, HOURS = 22, 8, 10
"""Working days, in whose working hours changes are approved."""
MACHINES = 60
"""Builds at a time; the others wait in the order in which they were asked for."""
MINUTES = {"lint": 5, "unit": 20, "integration": 90}
MERGE_S, LAND_S = 5.0, 3.0


def shapes(chance: random.Random) -> dict[str, tuple[str, ...]]:
    """Return project -> those whose code its integration job has: most use a hub or two, some form chains, some stand
    alone."""
    names = [f"git.example/r{n:02}" for n in range(REPOSITORIES)]
    hubs, rest = names[:HUBS], names[HUBS:]
    found: dict[str, tuple[str, ...]] = {hub: tuple(hubs[:n]) for n, hub in enumerate(hubs)}
    for n, name in enumerate(rest):
        used = chance.sample(hubs, chance.choice((0, 1, 1, 1, 2)))
        if n >= CHAINS and chance.random() < 0.4:  # the one before it in a chain
            used.append(rest[n - CHAINS])
        found[name] = tuple(used)
    return found


@dataclass(slots=True)
class Projects(PlayLayout):
    """Each project has a job for its style, one for itself, and one with what it uses."""

    uses: dict[str, tuple[str, ...]] = field(default_factory=dict)
    reuse: bool = False

    @property
    def reusing(self) -> bool:
        return self.reuse

    def freeze(
        self,
        pipeline: str,
        project: str,
        branch: str,
        ref: str = "",
        files: tuple[str, ...] | None = None,
        ahead: object = None,
    ) -> FrozenGraph:
        required = tuple(RequiredProject(name, "git") for name in self.uses[project])
        return FrozenGraph(
            tuple(
                FrozenJob(name=name, reuse=self.reuse, required_projects=required if name == "integration" else ())
                for name in MINUTES
            )
        )


@dataclass(slots=True)
class Figures:
    """What a month came to."""

    builds: int = 0
    """That began."""
    machine_h: float = 0.0
    reused: int = 0
    landed_s: list[float] = field(default_factory=list)
    """From approval to landing, of each change that landed."""
    rejected: int = 0
    untested: int = 0
    """Landings of which a job did not pass on exactly what it would be given."""


class Month(Play):
    """Plays a month; `run` returns what it came to."""

    def __init__(self, seed: int, failing: float, *, reuse: bool, changes: int, days: int = DAYS) -> None:
        chance = random.Random(seed)
        uses = shapes(chance)
        super().__init__(layout=Projects((), uses=uses, reuse=reuse))
        self.pipeline = replace(self.pipeline, window=Window())
        self.uses, self.heads = uses, dict.fromkeys(uses, "h")
        self.now_s, self.figures = 0.0, Figures()
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._free, self._line, self._began = MACHINES, list[Run](), dict[str, float]()
        self._history: dict[str, Build] = {}
        self._passed_on: set[tuple[str, str]] = set()
        self._sees: dict[str, dict[str, str]] = {}
        """Buildset -> job -> all that it can see."""
        self._landed: set[str] = set()
        self._approved_s: dict[str, float] = {}
        self._bad: dict[str, str] = {}
        """Topic -> the job that fails."""
        self.passed = self._sought
        for n in range(changes):
            at_s = (n * days // changes * 24 + FIRST_HOUR + chance.random() * HOURS) * 3600
            topic, project = f"c{n}", chance.choice(list(uses))
            if chance.random() < failing:
                self._bad[topic] = chance.choice(list(MINUTES))
            self._at(at_s, partial(self._proposed, topic, project))

    def run(self) -> Figures:
        while self._due:
            self.now_s, _, do = heapq.heappop(self._due)
            do()
        assert not list(self.state.items()), "all of them end"
        return self.figures

    def tree(self, project: str, chain: Sequence[MergeItem] = ()) -> str:
        found = self.heads[project]
        for one in chain:
            if one.project == project and one.commit not in self._landed:
                found = hashlib.sha256(f"{found} {one.commit}".encode()).hexdigest()[:20]
        return found

    def _at(self, at_s: float, do: Callable[[], None]) -> None:
        heapq.heappush(self._due, (at_s, next(self._numbers), do))

    def _proposed(self, topic: str, project: str) -> None:
        self._approved_s[topic] = self.now_s
        commit = hashlib.sha1(topic.encode(), usedforsecurity=False).hexdigest()
        change = self.change(topic, project=project, commit=commit)
        self.standings[change.key] = Standing(change)
        self.approve(topic)

    def _sought(self, sought: Sought) -> Build:
        return self._history.get(sought.inputs, NOTHING)

    def _take(self, action: Action) -> None:
        super()._take(action)
        match action:
            case Merge(id=id):
                self._at(self.now_s + MERGE_S, lambda: self._merged(id))
            case Run():
                self._line.append(action)
            case Cancel(id=id):
                self._end(id)
            case Land(id=id):
                self._at(self.now_s + LAND_S, lambda: self._lands(id))
            case Record(item=item, result=result):
                self._left(item.change.topic, result)
        self._begin()

    def _merged(self, id: str) -> None:
        if id in self.merging:
            work = self.merging[id].work
            jobs = self.layout.freeze("gate", work.chain[-1].project, "master").jobs
            self._sees[work.buildset] = {job.name: self._given(work.chain, job) for job in jobs}
            self.merges(self._topic(work.chain[-1].commit))

    def _begin(self) -> None:
        self._line = [run for run in self._line if run.id in self.running]
        while self._free and self._line:
            run = self._line.pop(0)
            self._free -= 1
            self._began[run.id] = self.now_s
            self.figures.builds += 1
            spec = run.spec
            drawn = random.Random(f"{spec.change.topic} {spec.job.name}").uniform(0.7, 1.3)
            self._at(self.now_s + MINUTES[spec.job.name] * 60 * drawn, partial(self._ran, run))

    def _end(self, id: str) -> None:
        if (began_s := self._began.pop(id, None)) is not None:
            self._free += 1
            self.figures.machine_h += (self.now_s - began_s) / 3600

    def _ran(self, run: Run) -> None:
        if run.id not in self.running:
            return
        self._end(run.id)
        topic, job, buildset = run.spec.change.topic, run.spec.job, self.item(run.spec.change.topic).buildset
        assert buildset is not None, "it runs"
        build, good = buildset.builds[job.id], self._bad.get(topic) != job.name
        if good:
            self._passed_on.add((job.name, self._sees[buildset.id][job.name]))
            ended = replace(build, result="SUCCESS", narrow=job.reuse)
            self._history |= {build.inputs: ended} if lasting(ended) else {}
        self.ends(topic, job.name, "SUCCESS" if good else "FAILURE")

    def _given(self, chain: Sequence[MergeItem], job: FrozenJob) -> str:
        """Return all that a build of the last change of a chain can see, worked out apart from the gate."""
        own = chain[-1]
        seen = [own.project, *(one.project for one in job.required_projects)]
        if not job.reuse:
            seen += [one.project for one in chain]
        return f"{own.commit} " + " ".join(f"{name}={self.tree(name, chain)}" for name in sorted(set(seen)))

    def _lands(self, id: str) -> None:
        work = self.landing[id].work
        chain, change = work.state.chain[-1:], work.change
        for job in self.layout.freeze("gate", change.project, "master").jobs:
            self.figures.untested += job.reuse and (job.name, self._given(chain, job)) not in self._passed_on
        self.figures.reused += sum(
            build.error.startswith("reused")
            for build in self.item(change.topic).buildset.builds.values()  # type: ignore[union-attr]  # it has landed
        )
        self.heads = {**self.heads, change.project: self.tree(change.project, chain)}
        self._landed.add(change.commit)
        self.lands(change.topic)

    def _left(self, topic: str, result: str) -> None:
        if result == "SUCCESS":
            self.figures.landed_s.append(self.now_s - self._approved_s[topic])
        else:
            self.figures.rejected += 1
        self.standings = {key: one for key, one in self.standings.items() if one.change.topic != topic}
