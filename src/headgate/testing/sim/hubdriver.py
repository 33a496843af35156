"""Drive the modelled forge, which answers late and not always. Only the port is used.

Hints only say where the driver polls; events are differences between the forge and the reported state.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress

from msgspec.structs import replace

from headgate.base.ids import derived
from headgate.config.forges.facts import ForgeEvent
from headgate.config.operator.model import TenantProject
from headgate.gate.state.change import ZEROS, Change, ChangeState, EventKind, TriggerEvent
from headgate.gate.state.works import Landing, LandRequest
from headgate.map.outbox import OutboxMessage
from headgate.ports import forge
from headgate.testing.sim.hub import NAME, SimForgeHub, SimPull, named
from headgate.testing.sim.worlds import BRANCH, CONFIG, HEAD, InvariantBroken, SimWorld

EVERY_S = 30.0
"""Interval between full polls, which need no hint."""
SILENT, UNHEARD = 0.05, 0.1
"""Chances that a call gets no answer, and that the answer to a merge is lost."""


class Still:
    """Imitate a connection with the configuration, where nothing happens."""

    name = "sim"

    def __init__(self, world: SimWorld) -> None:
        self._world = world

    def look_at(self, projects: Mapping[str, TenantProject]) -> None:
        """Ignore the projects: the world has its own."""

    def stir(self, hint: forge.Hint) -> None:
        """Ignore hints."""

    async def sightings(
        self,
        known: Mapping[str, ChangeState],
        heads: Mapping[str, Mapping[str, str]],
        refs: Mapping[str, Mapping[str, str]],
    ) -> AsyncIterator[forge.Sighting]:
        yield forge.Sighting(heads={CONFIG: {HEAD: self._world.heads[CONFIG]}})
        await asyncio.Event().wait()


class SimHub:
    """Implement `ports.forge.Forge` for one process, which forgets its hints when it dies."""

    name = NAME
    can = forge.Abilities(lands="merge", votes=True, labels=True, statuses=True, webhooks=True)

    def __init__(self, hub: SimForgeHub, chance: random.Random) -> None:
        self._hub, self._chance = hub, chance
        self._projects: set[str] = set()
        self._hints: list[forge.Hint] = []
        self._stirred = asyncio.Event()

    def look_at(self, projects: Mapping[str, TenantProject]) -> None:
        self._projects = set(projects)

    def stir(self, hint: forge.Hint) -> None:
        self._hints.append(hint)
        self._stirred.set()

    def webhook(self, headers: Mapping[str, str], body: bytes) -> forge.Hint | forge.Ignored:
        delivery = json.loads(body)
        if delivery["number"]:
            return forge.Hint(delivery["id"], delivery["project"], str(delivery["number"]))
        return forge.Hint(delivery["id"], delivery["project"], ref=HEAD)

    def named(self, url: str) -> str:
        return named(url)

    async def look_up(self, key: str) -> ChangeState | None:
        await self._ask()
        pull = self._hub.pulls.get(key)
        return self._hub.change_state(pull, 0)[0] if pull is not None else None

    # --- polling

    async def sightings(
        self,
        known: Mapping[str, ChangeState],
        heads: Mapping[str, Mapping[str, str]],
        refs: Mapping[str, Mapping[str, str]],
    ) -> AsyncIterator[forge.Sighting]:
        loop, next_complete_s = asyncio.get_running_loop(), 0.0
        while True:
            self._stirred.clear()
            hints, self._hints = self._hints, []
            # Deliveries get lost: only a complete poll finds what no hint mentioned.
            complete = loop.time() >= next_complete_s
            try:
                async for sighting in self._look(known, heads, hints, complete=complete):
                    yield sighting
                if hints:
                    yield forge.Sighting(answered=tuple(hint.id for hint in hints))
            except forge.ReporterAway as away:
                # Nothing is forgotten when the forge is unavailable; hints are acknowledged only after the poll that
                # they requested.
                self._hints = [*hints, *self._hints]
                await asyncio.sleep(max(away.wait_s, 1.0))
                continue
            if complete:
                next_complete_s = loop.time() + EVERY_S
            with suppress(TimeoutError):
                async with asyncio.timeout(next_complete_s - loop.time()):
                    await self._stirred.wait()

    async def _look(
        self,
        known: Mapping[str, ChangeState],
        heads: Mapping[str, Mapping[str, str]],
        hints: list[forge.Hint],
        *,
        complete: bool,
    ) -> AsyncIterator[forge.Sighting]:
        if complete or any(hint.ref for hint in hints):
            await self._ask()
            now = {project: refs for project, refs in self._hub.heads().items() if project in self._projects}
            moved = {project: refs for project, refs in now.items() if heads.get(project) != refs}
            found = [
                self._updated(project, heads[project], refs) for project, refs in moved.items() if project in heads
            ]
            if moved:
                yield forge.Sighting(heads=moved, events=tuple(found))
        hinted = {(hint.project, hint.number) for hint in hints}
        for pull in list(self._hub.pulls.values()):
            if pull.project in self._projects and (complete or (pull.project, str(pull.number)) in hinted):
                await self._ask()
                sighting = self._seen(pull, known.get(pull.key))
                if sighting is not None:
                    yield sighting

    def _seen(self, pull: SimPull, known: ChangeState | None) -> forge.Sighting | None:
        """Return the unreported events of one pull request."""
        details = known.details if known is not None else None
        known_count = int(details.mark) if details is not None and details.mark else 0
        now, happened = self._hub.change_state(pull, known_count)
        if known is not None:
            now = _carrying(now, known)
        if now == known and not happened:
            return None
        return forge.Sighting((now,), tuple(_event(now.change, *one) for one in happened))

    def _updated(self, project: str, before: Mapping[str, str], now: Mapping[str, str]) -> TriggerEvent:
        old, new = before.get(HEAD, ZEROS), now[HEAD]
        change = Change(NAME, project, BRANCH, commit=new, old_commit=old, ref=HEAD, files=("x",))
        happening = ForgeEvent("push")
        return TriggerEvent(EventKind.REF_UPDATED, change, derived(project, old, new), happening=happening)

    # --- reporting and merging

    async def report(self, outgoing: OutboxMessage) -> None:
        await self._ask()
        change, state = outgoing.change, outgoing.how.get("status")
        # The key is the same when a report is repeated after a lost answer.
        if change is None or outgoing.key in self._hub.pulls[change.key].reported:
            return
        if state is not None:
            self._hub.statuses[change.commit, f"{outgoing.report.tenant}/{outgoing.report.pipeline}"] = state
        self._hub.pulls[change.key].reported.add(outgoing.key)
        self._late()

    async def land(self, work: LandRequest, part: Landing) -> forge.MergeLanded | forge.NotLanded:
        await self._ask()
        hub, change = self._hub, part.change
        pull = hub.pulls[change.key]
        # The answer to an earlier request was lost: the merge is not asked for twice.
        if pull.merged and pull.head == change.commit:
            return forge.MergeLanded(pull.merged)
        # Between the last poll and the merge: the moment at which a real forge can still change.
        hub.meddles(pull)
        if why := hub.refuses(pull, change.commit):
            return forge.NotLanded(why)
        if pull.undecided:
            pull.undecided -= 1
            raise forge.ReportPutOff("whether it can be merged is not known yet")
        if not forge.is_tested_on(work, change, hub.world.heads[pull.project]):
            return forge.NotLanded(f"{BRANCH} has moved", moved=True)
        try:
            merged = hub.land(pull, work, part)
        except InvariantBroken as broken:
            hub.world.broken = hub.world.broken or broken
            raise
        # After the merge: the driver must find out that it has happened without an answer.
        self._late(UNHEARD)
        return forge.MergeLanded(merged)

    async def _ask(self) -> None:
        """Make a call of the forge. Raise ReporterAway while it does not answer."""
        await asyncio.sleep(self._chance.random() * 0.2)
        left_s = self._hub.away_until_s - asyncio.get_running_loop().time()
        if left_s > 0:
            raise forge.ReporterAway("the limit is used up", left_s)
        self._late(SILENT)
        self._hub.calls += 1

    def _late(self, chance: float = SILENT) -> None:
        """Lose the answer at random, after the action took effect."""
        if not self._hub.faithful and self._chance.random() < chance:
            raise forge.ReporterAway("no answer")


def _carrying(now: ChangeState, known: ChangeState) -> ChangeState:
    """Return the change state with the data that the driver does not own."""
    change = replace(now.change, needs=known.change.needs, ignored=known.change.ignored)
    return replace(now, change=change)


def _event(change: Change, number: int, kind: EventKind, happening: ForgeEvent) -> TriggerEvent:
    return TriggerEvent(kind, change, derived(change.key, str(number)), 1, number == 0, happening=happening)
