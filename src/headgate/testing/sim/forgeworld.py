"""Simulate a gate on a forge that loses deliveries, sends them late and twice, and does not always answer.

Whichever process dies at any moment, the gate must reach the same state as one that saw everything in order.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import cast

from headgate.config.operator.file import parse_tenant_file
from headgate.config.operator.model import Connection, TenantFile
from headgate.config.parse import ParseCache
from headgate.gate.state.change import ChangeState
from headgate.map.records import Finished
from headgate.ports.forge import Forge, ForgeWatch
from headgate.recipes.codec import readable
from headgate.services.context import Context
from headgate.services.courier import Courier
from headgate.services.forgework import ForgeReporter, store_hint
from headgate.services.membership import Body
from headgate.services.scheduler.scheduler import Scheduler
from headgate.store.memory import MemoryBackend
from headgate.store.store import Session
from headgate.store.types import StoreError
from headgate.testing.clock import tidily
from headgate.testing.sim.hub import CHECK, FAILED, GATE, NAME, PASSED, SimForgeHub, SimPull
from headgate.testing.sim.hubdriver import SimHub, Still
from headgate.testing.sim.judge import Notes, StoreJudge
from headgate.testing.sim.simulation import Processes, Simulation
from headgate.testing.sim.worlds import HOST, PROJECTS, InvariantBroken, SimWorld

TENANTS = """
- tenant:
    name: t
    source:
      sim: {config-projects: [config]}
      hub: {untrusted-projects: [a, b]}
"""
CONFIG = """
- job: {name: base, parent: null, run: jobs/x}
- job: {name: unit}
- semaphore: {name: one, max: 2}
- pipeline:
    name: check
    manager: independent
    trigger:
      hub:
        - {event: pull_request, action: [opened, changed, reopened]}
        - {event: pull_request, action: comment, comment: ^recheck$}
    success: {hub: {status: success}}
    failure: {hub: {status: failure}}
- pipeline:
    name: gate
    manager: dependent
    window: 3
    window-floor: 2
    trigger:
      hub:
        - {event: pull_request_review, action: submitted, state: approved}
        - {event: pull_request, action: [labeled, changed, reopened]}
    require: {hub: {open: true, review: [{type: approved}], label: gate}}
    success: {hub: {status: success, merge: true}}
    failure: {hub: {status: failure}}
- project:
    name: ^sim/(a|b)$
    queue: shared
    check: {jobs: [unit]}
    gate: {jobs: [unit]}
"""
PULLS_MAX, ACTS_MAX, PAUSE_MAX_S, AWAY_MAX_S = 5, 14, 4.0, 15.0


@cache
def _tenants() -> TenantFile:
    return parse_tenant_file(
        TENANTS, "tenants.yaml", {"sim": Connection("sim", HOST), NAME: Connection(NAME, HOST, "github")}
    )


_PARSED = ParseCache()


@dataclass(slots=True)
class HubPeople:
    """Act as people at the forge; equal chances give equal runs."""

    hub: SimForgeHub
    chance: random.Random
    _commits: int = 0

    def meddle(self, pull: SimPull) -> None:
        """Interfere at the moment of a merge."""
        # The faithful run is the one that others are compared with, so nothing disturbs it.
        if self.chance.random() < 0.1 and pull.open and not self.hub.faithful:
            self.hub.push(pull, self._head())

    async def run(self) -> None:
        self.hub.meddles = self.meddle
        for _ in range(self.chance.randrange(1, PULLS_MAX)):
            self._propose()
            await self._pause()
        for _ in range(self.chance.randrange(ACTS_MAX + 1)):
            self._act()
            await self._pause()
        # In the end, most changes are ready to land, so that runs do not end with an idle gate.
        for pull in list(self.hub.pulls.values()):
            if not pull.merged and self.chance.random() < 0.7:
                await self._made_ready(pull)

    async def _made_ready(self, pull: SimPull) -> None:
        if not pull.open:
            self.hub.reopen(pull)
            await self._pause()
        if not pull.merged and "gate" not in pull.labels:
            self.hub.label(pull, "gate")
            await self._pause()
        if not pull.merged and not pull.approval:
            self.hub.approve(pull)
            await self._pause()

    async def _pause(self) -> None:
        # The cube makes most pauses short, so that acts overlap, and some long enough for everything to settle.
        await asyncio.sleep(self.chance.random() ** 3 * PAUSE_MAX_S)

    def _head(self) -> str:
        self._commits += 1
        head = f"c{self._commits}"
        if self.chance.random() < 0.2:
            self.hub.world.conflicting.add(frozenset({head}))
        return head

    def _propose(self) -> None:
        needed = [one for one in self.hub.pulls.values() if self.chance.random() < 0.25]
        body = "".join(f"Depends-On: {one.url}\n" for one in needed[:1])
        self.hub.propose(self.chance.choice(PROJECTS), self._head(), body)

    def _act(self) -> None:
        hub, loop = self.hub, asyncio.get_running_loop()
        if not hub.faithful and self.chance.random() < 0.1:
            hub.away_until_s = loop.time() + self.chance.random() * AWAY_MAX_S
        if self.chance.random() < 0.1:
            hub.push_past_the_gate(self.chance.choice(PROJECTS))
        if len(hub.pulls) < PULLS_MAX and self.chance.random() < 0.2:
            self._propose()
        pull = self.chance.choice(list(hub.pulls.values()))
        if pull.merged:
            return
        if not pull.open:
            hub.reopen(pull)
            return
        acts: dict[str, Callable[[], object]] = {
            "push": lambda: hub.push(pull, self._head()),
            "approve": lambda: hub.approve(pull),
            "label": lambda: hub.label(pull, "gate"),
            "unlabel": lambda: hub.label(pull, "gate", off=True),
            "disapprove": lambda: hub.disapprove(pull),
            "comment": lambda: hub.comment(pull, "recheck"),
            "close": lambda: hub.close(pull),
            "merge": lambda: hub.merge(pull),
        }
        weights = (3, 6, 6, 2, 3, 3, 2, 1)
        (name,) = self.chance.choices([*acts], weights)
        # Nobody merges by hand what fails or what needs an open change: how later checks end would depend on that
        # moment.
        if name != "merge" or not (hub.fails(pull.head) or any(not one.merged for one in hub.needs(pull))):
            acts[name]()


class HubJudge(StoreJudge):
    """Check what must hold once all is quiet."""

    def __init__(self, store: MemoryBackend, world: SimWorld, notes: Notes, hub: SimForgeHub) -> None:
        super().__init__(store, world, notes)
        self._hub = hub
        self._known_at = self._map.cache.connection(NAME).data.path + "/"

    def left(self) -> list[str]:
        return [*self._unknown(), *self._unchecked(), *self._unlanded(), *self._waiting(), *self._outbox()]

    def unserved(self) -> list[str]:
        """Return nothing: the forge determines how long people wait."""
        return []

    def _change_states(self) -> dict[str, ChangeState]:
        entries = (e for e in self._tree.under(self._known_at[:-1]) if e.path.startswith(self._known_at))
        found = (readable(entry, ChangeState) for entry in entries)
        return {one.change.key: one for one in found if one is not None}

    def _unknown(self) -> Iterator[str]:
        """Yield the pull requests whose recorded state is wrong."""
        known = self._change_states()
        for pull in self._hub.pulls.values():
            old = known.get(pull.key)
            now, _ = self._hub.as_it_is(pull)
            if old is None or old.details is None or now.details is None:
                yield f"{pull.key} is not known"
                continue
            recorded = (old.open, old.landed, old.change.commit, old.details.votes, old.details.labels)
            if recorded != (now.open, now.landed, now.change.commit, now.details.votes, now.details.labels):
                yield f"{pull.key} is known as {recorded}"

    def _unchecked(self) -> Iterator[str]:
        for pull in self._hub.pulls.values():
            if not pull.open or any(self._hub.needs(pull)):  # the outcome of a needed one decides that, too
                continue
            wanted = FAILED if self._fails(pull) else PASSED
            if self._hub.statuses.get((pull.head, CHECK)) != wanted:
                yield f"{pull.key} is not checked: {wanted} is due"
            done = self._hub.checks(pull.head)
            if any(head == pull.head and done <= before for head, before in pull.remarks):
                yield f"{pull.key} is not checked again"

    def _unlanded(self) -> Iterator[str]:
        for pull in self._hub.pulls.values():
            if not self._hub.is_ready(pull):
                continue
            if not self._fails(pull):
                yield f"{pull.key} has not landed"
            elif self._hub.statuses.get((pull.head, GATE)) != FAILED and self._hub.fails(pull.head):
                yield f"{pull.key} has no status for its failure"

    def _fails(self, pull: SimPull) -> bool:
        return self._hub.fails(pull.head) or any(not one.merged and self._fails(one) for one in self._hub.needs(pull))

    def _outbox(self) -> Iterator[str]:
        places = (self._map.reports(NAME).queue.path, self._map.events.connection(NAME).events.hints.stream.queue)
        yield from (entry.path for path in places for entry in self._tree.under(path))

    def verify(self) -> None:
        """Check the landings and the final state. Raise InvariantBroken."""
        successes = {f.change.key: f for f in self._notes.finished_in("gate") if f.result == "SUCCESS"}
        for key, finished in successes.items():
            if not self._hub.pulls[key].merged or self._hub.pulls[key].head != finished.change.commit:
                raise InvariantBroken(f"{key} is reported as landed at {finished.change.commit}, but did not land")
        for key, commit in self._hub.ours.items():
            if key not in successes or successes[key].change.commit != commit:
                raise InvariantBroken(f"{key} landed as {commit}, but no report says so")
        for pull in self._hub.pulls.values():
            self._forbid_unrequested_checks(pull)
        if aside := [entry.value for entry in self._tree.under(self._map.quarantine.path)]:
            raise InvariantBroken(f"set aside: {aside}")

    def _forbid_unrequested_checks(self, pull: SimPull) -> None:
        news = ("opened", "changed", "reopened")
        requested = sum(one.action in (*news, "comment") for _, one in pull.happened)
        requested += sum(one.action in news for needed in self._hub.needs(pull) for _, one in needed.happened)
        done = [f for f in self._notes.finished_in("check") if f.change.key == pull.key and _has_result(f)]
        if len(done) > requested:
            raise InvariantBroken(f"{pull.key} was checked {len(done)} times and asked for {requested} times")


def _has_result(finished: Finished) -> bool:
    """Return whether all of its jobs have a result."""
    return bool(finished.builds) and all(build.result in ("SUCCESS", "FAILURE") for build in finished.builds)


class HubProcesses(Processes):
    """Run processes, each with its own driver."""

    __slots__ = ()

    @property
    def forges(self) -> Mapping[str, Forge]:
        simulation = cast(HubSimulation, self.simulation)
        return {NAME: SimHub(simulation.hub, simulation.chance)}

    def scheduler(self, context: Context) -> Scheduler:
        forges: dict[str, ForgeWatch] = {"sim": Still(self.world), NAME: cast(SimHub, context.forges[NAME])}
        return Scheduler.of(context, TENANTS, _tenants(), "tenants.yaml", forges, _PARSED)

    def beside(self, context: Context) -> list[Body]:
        forge = cast(SimHub, context.forges[NAME])
        reporter = ForgeReporter(context, forge)
        return [Courier(context, NAME, reporter, reporter).run, partial(self._take, context, forge)]

    async def _take(self, context: Context, forge: SimHub, session: Session) -> None:
        """Take deliveries as the web does; the forge never sends one again."""
        mail = cast(HubSimulation, self.simulation).hub.mail
        while True:
            one = await mail.get()
            body = json.dumps({"id": one.id, "project": one.project, "number": one.number}).encode()
            found = forge.webhook({}, body)
            try:
                await store_hint(context, NAME, found)  # type: ignore[arg-type]  # this forge sends nothing that is ignored
            # As after an error that the forge does not repeat: the next complete poll finds what this one announced.
            except StoreError:
                continue


@dataclass(slots=True)
class HubSimulation(Simulation):
    """Simulate one gate, one forge and some people."""

    hub: SimForgeHub = field(init=False)
    chance: random.Random = field(init=False)

    def run(self) -> SimWorld:
        return self.run_on(MemoryBackend())

    def world(self, chance: random.Random) -> SimWorld:
        world = SimWorld(chance, CONFIG, pipelines={"check": "t", "gate": "t"})
        self.chance = random.Random(f"driver {self.seed}")
        self.hub = SimForgeHub(
            world, random.Random(f"hub {self.seed}"), faithful=self.calm, dismisses=bool(self.seed % 2)
        )
        return world

    def judge(self, store: MemoryBackend, world: SimWorld, notes: Notes) -> StoreJudge:
        self.hub.notes = notes
        return HubJudge(store, world, notes, self.hub)

    def processes(self, *of: object) -> Processes:
        return HubProcesses(*of)  # type: ignore[arg-type]

    async def people(self, world: SimWorld, chance: random.Random, judge: StoreJudge) -> None:
        await HubPeople(self.hub, random.Random(f"people {self.seed}")).run()


def simulate_hub(seeds: Iterable[int], *, calm: bool = False) -> int:
    """Run them all; return how many deaths there were.  Raise InvariantBroken."""
    return sum(tidily(partial(_deaths, seed, calm) for seed in seeds))


def _deaths(seed: int, calm: bool) -> int:
    simulation = HubSimulation(seed, calm)
    simulation.run()
    return simulation.deaths
