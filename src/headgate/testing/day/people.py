"""People of a day: they propose, wait for results, mend, try again, approve and give up, as the plan has it."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Coroutine
from typing import NamedTuple

from headgate.base.tasks import end
from headgate.testing.day.hub import DayHub
from headgate.testing.day.plan import DayPlan, DayProposal

TRIES_MAX = 20
"""Limit on the attempts of one change in one pipeline: a day that needs more does not end."""
TAGGED = 50
"""Number of landings per tagged release."""


class DayOutcome(NamedTuple):
    """Record what a pipeline decided about a change."""

    topic: str
    pipeline: str
    result: str


class DayPeople:
    """Act as the people of a day. `day` returns once each change has landed or was given up."""

    def __init__(self, hub: DayHub, plan: DayPlan, day_s: float, patience_s: float) -> None:
        """Set up a day of `day_s` seconds; `patience_s`: how long people take at most to approve what passed."""
        self._hub, self._plan, self._day_s, self._patience_s = hub, plan, day_s, patience_s
        self._of = {one.topic: one for one in plan.proposals}
        self._needed = plan.needed
        self._patchset = Counter[str]()
        self._tries = Counter[tuple[str, str]]()
        self._landing = {topic: asyncio.Event() for topic in self._of}
        self._approving = {topic: asyncio.Event() for topic in self._of}
        self._over, self._errands = asyncio.Event(), set[asyncio.Task[None]]()
        self.landed, self.abandoned = list[str](), list[str]()
        self.proposed_s, self.approved_s = dict[str, float](), dict[str, float]()
        """When each change was first proposed and approved, in seconds of the clock."""

    async def day(self) -> None:
        """Play the day. Raise RuntimeError if a change neither enters nor gets a reason why not."""
        coming, over = asyncio.ensure_future(self._come()), asyncio.ensure_future(self._over.wait())
        try:
            await asyncio.wait({coming, over}, return_when=asyncio.FIRST_COMPLETED)
            while not self._over.is_set():
                await coming
                await asyncio.wait({over, *self._errands}, return_when=asyncio.FIRST_COMPLETED)
                for errand in [one for one in self._errands if one.done()]:
                    self._errands.remove(errand)
                    await errand
        finally:
            await end(coming, over, *self._errands)

    def tell(self, ended: DayOutcome) -> None:
        """Have the owner of the change react to the result. Raises RuntimeError for a change that fails again and
        again.
        """
        proposal = self._of.get(ended.topic)
        if proposal is None or ended.pipeline not in ("check", "gate"):
            return
        self._tries[ended.topic, ended.pipeline] += 1
        if self._tries[ended.topic, ended.pipeline] > TRIES_MAX:
            raise RuntimeError(f"{proposal} does not get through {ended.pipeline}: {ended.result}")
        if ended.pipeline == "gate" and ended.result == "SUCCESS":
            self._has_landed(proposal)
        elif ended.pipeline == "gate":
            self._errand(self._again(proposal))
        elif ended.result == "SUCCESS":
            self._errand(self._judge(proposal))
        elif not self._landing[ended.topic].is_set() and ended.topic not in self.abandoned:
            mended = proposal.fails and self._patchset[ended.topic] == 1
            self._propose(proposal) if mended else self._hub.recheck(proposal)

    @property
    def open(self) -> list[str]:
        """Return the changes that are neither landed nor given up."""
        return sorted(self._of.keys() - set(self.landed) - set(self.abandoned))

    async def _come(self) -> None:
        began = time.monotonic()
        for proposal in self._plan.proposals:
            await asyncio.sleep(max(0.0, began + proposal.at * self._day_s - time.monotonic()))
            self._propose(proposal)

    def _propose(self, proposal: DayProposal) -> None:
        self._patchset[proposal.topic] += 1
        self.proposed_s.setdefault(proposal.topic, time.time())
        self._hub.propose(proposal, self._patchset[proposal.topic])

    async def _judge(self, proposal: DayProposal) -> None:
        """Approve what passed, or give it up; what needs another change is approved once that may be there first."""
        topic = proposal.topic
        if self._approving[topic].is_set() or topic in self.abandoned:
            return
        await asyncio.sleep(proposal.later * self._patience_s)
        if proposal.abandoned:
            self.abandoned.append(topic)
            self._hub.abandon(proposal)
            return self._look()
        if (needed := self._needed.get(proposal.number)) is not None:
            # In one queue the gate lands both in order; across queues the needed change has to have landed.
            await (self._approving if _beside(proposal, needed) else self._landing)[needed.topic].wait()
        if not self._approving[topic].is_set():
            self.approved_s[topic] = time.time()
            self._hub.approve(proposal)
            self._approving[topic].set()

    async def _again(self, proposal: DayProposal) -> None:
        """Have a change that failed in the gate tested again, once what it needs has landed."""
        if (needed := self._needed.get(proposal.number)) is not None:
            await self._landing[needed.topic].wait()
        self._hub.recheck(proposal)

    def _has_landed(self, proposal: DayProposal) -> None:
        self.landed.append(proposal.topic)
        self._landing[proposal.topic].set()
        if len(self.landed) % TAGGED == 0:
            self._hub.tag(proposal.project, f"{proposal.number}.0.0")
        self._look()

    def _look(self) -> None:
        if not self.open:
            self._over.set()

    def _errand(self, work: Coroutine[object, object, None]) -> None:
        self._errands.add(asyncio.ensure_future(work))


def _beside(one: DayProposal, other: DayProposal) -> bool:
    """Return whether the projects of the two share a queue of the gate."""
    return one.project is other.project or (one.project.queue != "" and one.project.queue == other.project.queue)
