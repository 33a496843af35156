"""Simulate a month of sixty repositories that share a queue, through the gate itself, to see what `reuse` saves.

The gate's decisions are the real ones (`gate.absorb`, `gate.decide`); mergers and machines answer after delays that
depend only on the seed.  Apart from `reuse`, the policy is Zuul's: one queue, each change tested on all changes ahead
of it, and again whenever a change ahead fails; a window that shrinks after failures.

The repositories have the shape of a platform with an integrated gate, like OpenStack: some services that one large job
tests together, libraries that they use, and clients and plugins, each of which uses a few of these.  How often a
repository is used and how often it changes follow power laws: popular dependencies are used more (preferential
attachment), and the n-th busiest repository has one n-th of the changes of the busiest (Zipf).
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
from headgate.gate.builds.reuse import NOTHING, lasting
from headgate.gate.state.actions import Action, Cancel, Land, Merge, Record, Run
from headgate.gate.state.change import ChangeState
from headgate.gate.state.gitwork import MergeItem
from headgate.gate.state.model import Build
from headgate.gate.state.world import Sought
from headgate.testing.layouts import PlayLayout
from headgate.testing.plays import Play

SERVICES, LIBRARIES, CLIENTS = 12, 18, 30
REPOSITORIES = SERVICES + LIBRARIES + CLIENTS
CHANGES = 1_000
DAYS, FIRST_HOUR, HOURS = 22, 8, 10
"""Working days, and the hours in which changes are approved."""
MACHINES = 60
"""Builds at a time; others wait in the order of their requests."""
MINUTES = {"lint": 5, "unit": 20, "functional": 40, "integrated": 90}
MERGE_S, LAND_S = 5.0, 3.0


def shapes(chance: random.Random) -> dict[str, dict[str, tuple[str, ...]]]:
    """Map each project, the busiest first, to its jobs, and each job to the other projects whose code it gets."""
    services = [f"git.example/service{n:02}" for n in range(SERVICES)]
    libraries = [f"git.example/library{n:02}" for n in range(LIBRARIES)]
    clients = [f"git.example/client{n:02}" for n in range(CLIENTS)]
    users, uses = dict.fromkeys([*services, *libraries], 1), dict[str, tuple[str, ...]]()
    for project, among in [
        *((name, libraries[:n]) for n, name in enumerate(libraries)),
        *((name, libraries) for name in services),
        *((name, [*services, *libraries]) for name in clients),
    ]:
        wanted = chance.choice((1, 1, 2, 3)) if among else 0
        found = dict.fromkeys(chance.choices(among, [users[one] for one in among], k=wanted)) if wanted else {}
        for one in found:
            users[one] += 1
        uses[project] = tuple(found)
    together = tuple(dict.fromkeys([*services, *(one for name in services for one in uses[name])]))
    jobs: dict[str, dict[str, tuple[str, ...]]] = {}
    for project, used in uses.items():
        large = {"integrated": together} if project in together else {"functional": used}
        jobs[project] = {"lint": (), "unit": (), **large}
    busy = sorted(jobs, key=lambda name: (chance.random() * (1 if name in services else 2), name))
    return {name: jobs[name] for name in busy}


@dataclass(slots=True)
class Projects(PlayLayout):
    """Give each project a job for its style, one for its own code, and one with the projects that it uses or is used
    with."""

    uses: dict[str, dict[str, tuple[str, ...]]] = field(default_factory=dict)
    reuse: bool = False
    graphs: dict[str, FrozenGraph] = field(default_factory=dict)

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
        return self.graphs[project]

    def __post_init__(self) -> None:
        for project, jobs in self.uses.items():
            required = {job: tuple(RequiredProject(one, "git") for one in given) for job, given in jobs.items()}
            self.graphs[project] = FrozenGraph(
                tuple(FrozenJob(name=job, reuse=self.reuse, required_projects=required[job]) for job in jobs)
            )


@dataclass(slots=True)
class MonthFigures:
    """Hold the results of a month."""

    builds: int = 0
    """Number of builds that began."""
    machine_h: float = 0.0
    reused: int = 0
    carried: int = 0
    landed_s: list[float] = field(default_factory=list)
    """Seconds from approval to landing, of each change that landed."""
    rejected: int = 0
    untested: int = 0
    """Landings for which a job did not pass on exactly its inputs."""


class Month(Play):
    """Play a month; `run` returns the results."""

    def __init__(self, seed: int, failing: float, *, reuse: bool, changes: int, days: int = DAYS) -> None:
        chance = random.Random(seed)
        uses = shapes(chance)
        super().__init__(layout=Projects((), uses=uses, reuse=reuse))
        self.pipeline = replace(self.pipeline, window=Window())
        self.heads = dict.fromkeys(uses, "h")
        self.now_s, self.figures = 0.0, MonthFigures()
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._free, self._line, self._began = MACHINES, list[Run](), dict[str, float]()
        self._history: dict[str, Build] = {}
        self._passed_on: set[tuple[str, str]] = set()
        self._sees: dict[str, dict[str, str]] = {}
        """Buildset -> job -> all inputs that it can see."""
        self._landed: set[str] = set()
        self._approved_s: dict[str, float] = {}
        self._bad: dict[str, str] = {}
        """Topic -> the job that fails for it."""
        self.passed = self._sought
        for n in range(changes):
            at_s = (n * days // changes * 24 + FIRST_HOUR + chance.random() * HOURS) * 3600
            topic, project = f"c{n}", chance.choices(list(uses), [1 / (rank + 1) for rank in range(len(uses))])[0]
            if chance.random() < failing:
                self._bad[topic] = chance.choice(list(uses[project]))
            self._at(at_s, partial(self._proposed, topic, project))

    def run(self) -> MonthFigures:
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
        self.change_states[change.key] = ChangeState(change)
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
        # Cancelled before it got a machine.
        self._line = [run for run in self._line if run.id in self.running]
        while self._free and self._line:
            run = self._line.pop(0)
            self._free -= 1
            self._began[run.id] = self.now_s
            self.figures.builds += 1
            spec = run.spec
            # Drawn from what the build is, so that months with and without `reuse` compare builds of equal length.
            drawn = random.Random(f"{spec.change.topic} {spec.job.name}").uniform(0.7, 1.3)
            self._at(self.now_s + MINUTES[spec.job.name] * 60 * drawn, partial(self._ran, run))

    def _end(self, id: str) -> None:
        if (began_s := self._began.pop(id, None)) is not None:
            self._free += 1
            self.figures.machine_h += (self.now_s - began_s) / 3600

    def _ran(self, run: Run) -> None:
        # Cancelled while it ran: its machine was released then.
        if run.id not in self.running:
            return
        self._end(run.id)
        topic, job = run.spec.change.topic, run.spec.job
        build = next(one for one in self.item(topic).under_way if one.id == run.id)
        if good := self._bad.get(topic) != job.name:
            self._passed_on.add((job.name, self._sees[run.spec.buildset][job.name]))
            ended = replace(build, result="SUCCESS", narrow=job.reuse)
            self._history |= {build.inputs: ended} if lasting(ended) else {}
        self.ends(topic, job.name, "SUCCESS" if good else "FAILURE")

    def _given(self, chain: Sequence[MergeItem], job: FrozenJob) -> str:
        """Return the facts that a build of the last change of a chain can see, computed independently of the gate."""
        own = chain[-1]
        seen = [own.project, *(one.project for one in job.required_projects)]
        if not job.reuse:
            seen += [one.project for one in chain]
        return f"{own.commit} " + " ".join(f"{name}={self.tree(name, chain)}" for name in sorted(set(seen)))

    def _lands(self, id: str) -> None:
        work = self.landing[id].work
        # Only the change itself: what was ahead of it has landed, and is in `heads`.
        chain, change = work.state.chain[-1:], work.change
        for job in self.layout.freeze("gate", change.project, "master").jobs:
            self.figures.untested += job.reuse and (job.name, self._given(chain, job)) not in self._passed_on
        builds = self.item(change.topic).buildset.builds.values()  # type: ignore[union-attr]  # it has landed
        self.figures.reused += sum(build.error.startswith("reused") for build in builds)
        self.figures.carried += sum(build.origin != "" for build in builds)
        self.heads = {**self.heads, change.project: self.tree(change.project, chain)}
        self._landed.add(change.commit)
        self.lands(change.topic)

    def _left(self, topic: str, result: str) -> None:
        if result == "SUCCESS":
            self.figures.landed_s.append(self.now_s - self._approved_s[topic])
        else:
            self.figures.rejected += 1
        # Turns look at every open change: a thousand ended ones would make the month quadratic.
        self.change_states = {key: one for key, one in self.change_states.items() if one.change.topic != topic}
