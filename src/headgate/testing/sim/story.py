"""Act as people: propose, approve, replace, withdraw, close the gate, and sometimes push past it."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from dataclasses import dataclass

from msgspec.structs import replace

from headgate.gate.state.change import Change
from headgate.gate.state.world import Closing
from headgate.services.context import Context
from headgate.services.orders import landings_over, ordered
from headgate.testing.sim.kinds import SimKind
from headgate.testing.sim.worlds import BRANCH, CONFIG, PROJECTS, SHARED, SimProposal, SimWorld

CHANGES_MAX, OFTEN_MAX = 6, 2
OFTEN = 0.9
"""Chance of at most `OFTEN_MAX` changes: small worlds find most faults, and more of them can be run."""
PAUSE_MAX_S = 2.0
CLOSINGS_MAX, CLOSED_MAX_S, WATCHED, TAKEN_UP_S = 12, 2.0, 0.7, 0.01
"""Largest number of closings of the gate, the longest pause before and during one, the chance that a pause ends when a
build passes, and the longest delay that then follows.
"""
TAGGINGS_MAX, TAGS_MAX, TAGS_OFTEN = 4, 25, 0.2
"""Largest number of pushes of tags, the number of tags in a large one, and the chance that a push is large."""
MOVES_MAX, GONE, TORN = 6, 0.3, 0.2
"""Largest number of changes to the configuration, and the chances that a pipeline is missing and that it is unreadable.
"""
AGAIN_MAX, AGAIN_PAUSE_MAX_S = 4, 8.0
"""Number of proposals that are repeated if builds may be reused, and the longest pause between them."""
LOOK_S, LOOKS_MAX = 0.1, 3_000
DOUBTS_MAX, DOUBT_PAUSE_MAX_S, GIVEN_AGAIN = 10, 1.0, 0.8
"""Number of times that approvals are withdrawn, the longest pause between them, and the chance that they are given
again.
"""


@dataclass(slots=True)
class Story:
    """Act as people; equal chances give equal runs."""

    world: SimWorld
    chance: random.Random
    _commits: int = 0

    async def run(self) -> None:
        few = self._maybe(OFTEN) and not self.world.reusing  # reuse needs several changes
        most = OFTEN_MAX + self.world.circular if few else CHANGES_MAX
        for number in range(self.chance.randrange(1, most + 1)):
            self._propose(number)
            await asyncio.sleep(self.chance.random() * PAUSE_MAX_S)
            self._disturb()
        if self.world.reusing:
            await self._again()
        await asyncio.sleep(self.chance.random() * PAUSE_MAX_S)
        for key in self._open():
            if not self.world.is_approved(self.world.open[key]) and self._maybe(0.8):
                self._approve(key)

    async def _again(self) -> None:
        """Withdraw some open changes, and propose the same patchsets again."""
        for _ in range(self.chance.randrange(1, AGAIN_MAX + 1)):
            await asyncio.sleep(self.chance.random() * AGAIN_PAUSE_MAX_S)
            if not self._open():
                continue
            change = self.world.open[key := self._some_open()].change
            self.world.withdraw(key)
            await asyncio.sleep(self.chance.random())
            self.world.propose(change, approved=self._maybe(0.9))

    def _maybe(self, chance: float) -> bool:
        return self.chance.random() < chance

    def _propose(self, number: int) -> None:
        project = self.chance.choice(PROJECTS)
        needs = (self._some_open(),) if self._open() and self._maybe(0.3) else ()
        change = Change(
            "sim", project, BRANCH, f"t{number}", ref=f"refs/for/{BRANCH}/t{number}", files=("x",), needs=needs
        )
        self.world.propose(self._patchset(change), approved=self._maybe(0.8))
        if self.world.circular and self._maybe(0.6):
            self._close_a_circle(change.key)

    def _close_a_circle(self, key: str) -> None:
        """Let two open changes come to need each other, by newer patchsets of both."""
        others = [other for other in self._open() if other != key]
        if not others:
            return
        other = self.chance.choice(others)
        for one, needed in ((key, other), (other, key)):
            change = self.world.open[one].change
            needs = tuple(dict.fromkeys((*change.needs, needed)))
            fresh = self._patchset(replace(change, needs=needs, files=("x",)))
            self.world.propose(fresh, approved=self._maybe(0.85))

    def _patchset(self, change: Change) -> Change:
        """Draw a commit, and whether it fails."""
        world, commit = self.world, f"c{self._commits}"
        earlier = f"c{self.chance.randrange(self._commits)}" if self._commits else ""
        self._commits += 1
        if self._maybe(0.15):
            world.conflicting.add(frozenset([commit]))
        elif earlier and self._maybe(0.25):
            world.conflicting.add(frozenset([commit, earlier]))
        if earlier and self._maybe(0.1):
            world.unmergeable.add(frozenset([commit, earlier]))
        if not self._maybe(0.3):
            return replace(change, commit=commit)
        parent = earlier if earlier in world.proposals and self._maybe(0.6) else ""
        world.proposals[commit] = SimProposal(commit, wrong=self._maybe(0.3), parent=parent)
        # Some edit their configuration at a path that the branch has renamed, so that only the merge shows it.
        return replace(change, commit=commit, files=("x",) if self._commits % 3 == 0 else ("x", "zuul.yaml"))

    def _disturb(self) -> None:
        world = self.world
        if self._maybe(0.1):
            world.push_past_the_gate(self.chance.choice(PROJECTS))
        if self._maybe(0.1):
            world.push_past_the_gate(CONFIG)
        if world.beside and self._maybe(0.3):
            world.push_past_the_gate(SHARED)
        if self._open() and self._maybe(0.1):
            world.withdraw(self._some_open())
        if self._open() and self._maybe(0.1):
            change_state = world.open[self._some_open()]
            world.propose(self._patchset(replace(change_state.change, files=("x",))), approved=self._maybe(0.5))
        if self._open() and self._maybe(0.3):
            self._approve(self._some_open())

    def _approve(self, key: str) -> None:
        self.world.propose(self.world.open[key].change, approved=True)

    def _open(self) -> list[str]:
        """List the open changes of honest people."""
        return sorted(key for key, change_state in self.world.open.items() if change_state.change.project in PROJECTS)

    def _some_open(self) -> str:
        return self.chance.choice(self._open())


@dataclass(slots=True)
class Tagger:
    """Push tags, one or many together, and move some; delete none."""

    world: SimWorld
    chance: random.Random

    async def run(self) -> None:
        pushed = 0
        for _ in range(self.chance.randrange(1, TAGGINGS_MAX + 1)):
            await asyncio.sleep(self.chance.random() * PAUSE_MAX_S)
            for _ in range(TAGS_MAX if self.chance.random() < TAGS_OFTEN else 1):
                name = self.chance.randrange(pushed + 1)  # an existing one is moved
                pushed += 1
                self.world.tag(PROJECTS[name % 2], f"refs/tags/v{name}", f"tag{pushed}")


@dataclass(slots=True)
class Doubter:
    """Withdraw approvals at any moment, also during a landing, and give most of them again."""

    world: SimWorld
    chance: random.Random

    async def run(self) -> None:
        for _ in range(self.chance.randrange(1, DOUBTS_MAX + 1)):
            await asyncio.sleep(self.chance.random() * DOUBT_PAUSE_MAX_S)
            if approved := self._approved():
                change_state = self.world.open[self.chance.choice(approved)]
                self.world.propose(change_state.change, approved=False)
                if self.chance.random() < GIVEN_AGAIN:
                    await asyncio.sleep(self.chance.random() * DOUBT_PAUSE_MAX_S)
                    self._give_again(change_state.change)

    def _approved(self) -> list[str]:
        return sorted(
            k for k, s in self.world.open.items() if self.world.is_approved(s) and s.change.project in PROJECTS
        )

    def _give_again(self, change: Change) -> None:
        """Approve the change again, unless it landed or is another one now."""
        now = self.world.open.get(change.key)
        if now is not None and now.change == change:
            self.world.propose(change, approved=True)


@dataclass(slots=True)
class Mover:
    """Remove pipelines and restore them, rename queues, move projects between queues, and now and then push what
    cannot be read. At the end, the gate exists and open changes are proposed again."""

    world: SimWorld
    chance: random.Random
    kind: SimKind

    async def run(self) -> None:
        names = sorted(name for name, tenant in self.kind.pipelines.items() if tenant == "t")
        for _ in range(self.chance.randrange(1, MOVES_MAX + 1)):
            await asyncio.sleep(self.chance.random() * PAUSE_MAX_S)
            if self.chance.random() < TORN:
                self.world.configure(f"- pipeline: {{name: [\n{self.world.config}", self.world.gone)
            else:
                self._configures([name for name in names if self.chance.random() < GONE])
        self._configures([name for name in names if name != "gate" and self.chance.random() < GONE])
        # Proposed again only once the gate exists for everybody: a change that is proposed before has no pipeline to
        # end in.
        for _ in range(LOOKS_MAX):
            if self.world.seen.get(CONFIG) == self.world.heads[CONFIG]:
                break
            await asyncio.sleep(LOOK_S)
        for number, key in enumerate(sorted(self.world.open)):
            change_state = self.world.open[key]
            change = replace(change_state.change, commit=f"moved{number}", files=("x",))
            self.world.propose(change, approved=change_state.is_approved)

    def _configures(self, gone: list[str]) -> None:
        queue, apart = self.chance.choice(("shared", "shared", "other")), self.chance.choice(("", "", *PROJECTS))
        self.world.configure(self.kind.config(gone, queue, apart), gone)


@dataclass(slots=True)
class GateCloser:
    """Close the gate at any moment, as the API does, and open it again."""

    world: SimWorld
    chance: random.Random
    context: Context

    async def run(self) -> None:
        for _ in range(self.chance.randrange(1, CLOSINGS_MAX + 1)):
            await self._pause()
            queue = "" if self.world.moving else self.chance.choice(("", "shared"))
            closing = Closing("gate", queue, "for now", "ada", self.context.now_ms())
            await ordered(self.context, "t", lambda now: replace(now, closings=(closing,)))  # noqa: B023
            # Pushes that had begun may still land: the API reports them to those who close a gate, so they are
            # excused here.
            self.world.shut = frozenset(await landings_over(self.context, "t", "gate"))
            self.world.closed += 1
            await self._pause()
            # Before the order to open, which takes effect somewhere during the next call.
            self.world.shut = None
            await ordered(self.context, "t", lambda now: replace(now, closings=()))

    async def _pause(self) -> None:
        """Wait for some time, often until a build has passed, so that a landing is due."""
        if self.chance.random() < WATCHED:
            self.world.passing.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(CLOSED_MAX_S):
                    await self.world.passing.wait()
            await asyncio.sleep(self.chance.random() * TAKEN_UP_S)
        else:
            await asyncio.sleep(self.chance.random() * CLOSED_MAX_S)
