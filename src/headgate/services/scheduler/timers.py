"""Fire timers: at the times of a pipeline's timer, enqueue every branch that has jobs in the pipeline."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Mapping
from datetime import UTC, datetime
from typing import NamedTuple

import msgspec

from headgate.base.ids import derived
from headgate.config.cron import BadTime, next_put_off, schedule
from headgate.gate.state.change import Change
from headgate.gate.state.management import Enqueue
from headgate.map.records import BranchCache, ForPipeline
from headgate.recipes import blob
from headgate.recipes.lock import lock
from headgate.recipes.mirrorpart import MirrorPart
from headgate.services.configuration import Configuration
from headgate.services.context import Context
from headgate.services.scheduler.turn import TurnPart, packed
from headgate.store.store import Session
from headgate.store.types import At

log = logging.getLogger("headgate.timers")


class DueTimer(NamedTuple):
    at: datetime
    tenant: str
    pipeline: str


class Timers:
    """Fire timers in the elected process. Times that passed while no process was elected are skipped."""

    def __init__(self, context: Context, tenants: Mapping[str, Configuration]) -> None:
        self._context, self._tenants = context, tenants

    async def run(self, session: Session) -> None:
        context, map = self._context, self._context.map
        election = lock(context.store, session, map.scheduler.timer_election.path)
        async with election.hold() as guard:
            with context.mirror.part(map.layout.path) as stirs:
                after = self._now()
                while True:
                    after = await self._round(after, stirs, guard)

    async def _round(self, after: datetime, stirs: MirrorPart, guard: At) -> datetime:
        """Wait until the next timer is due and fire it, or until the layout changes. Return the time up to which timers
        have fired."""
        seen, due = stirs.moves, self._due(after)
        wait_s = max(0.0, (due[0].at - self._now()).total_seconds()) if due else None
        try:
            async with asyncio.timeout(wait_s):
                await stirs.moved(seen)
                # A timer of the new layout must not fire for an earlier time, so times count from now. Timers that have
                # just become due have not fired yet, so their time stays ahead.
                now = max(after, self._now())
                return min(now, due[0].at - datetime.resolution) if due else now
        except TimeoutError:
            moment = due[0].at
        # Several timers often share a time, such as midnight, so all due ones share commits.
        pieces = [piece for one in due if one.at <= moment async for piece in self._pieces(one)]
        for commit in packed(pieces):
            await self._context.store.commit(commit.checks, commit.ops, guards=[guard])
        # Returning the present would skip a time that passed during the commit.
        return moment

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._context.now_ms() / 1000, UTC)

    def _due(self, after: datetime) -> list[DueTimer]:
        """Return the next time of every timer, the soonest first."""
        return sorted(due for name, one in self._tenants.items() for due in _timers(name, one, after))

    async def _pieces(self, due: DueTimer) -> AsyncIterator[TurnPart]:
        map, layout = self._context.map, self._tenants[due.tenant].layouts.landed
        stream = map.events.tenant(due.tenant).pipelines(due.pipeline).management.stream
        heads: dict[str, dict[str, dict[str, str]]] = {}
        for source in self._tenants[due.tenant].tenant.projects:
            if source.connection not in heads:
                path = map.cache.connection(source.connection).branches.data.path
                stored = await blob.read(self._context.store, path)
                heads[source.connection] = msgspec.json.decode(stored, type=BranchCache).projects if stored else {}
            for branch in layout.branches.get(source.project, ()):
                # If the head of a branch is unknown, its connection has not seen the branch yet.
                ref = f"refs/heads/{branch}"
                commit = heads[source.connection].get(source.project, {}).get(ref, "")
                if commit and layout.takes_part(due.pipeline, source.project, branch):
                    change = Change(source.connection, source.project, branch, commit=commit, ref=ref)
                    id = derived("timer", *due[1:], source.project, branch, due.at.isoformat())
                    yield TurnPart(stream.append(ForPipeline(due.pipeline, Enqueue(change, id))))


def _timers(tenant: str, configuration: Configuration, after: datetime) -> Iterator[DueTimer]:
    for name, pipeline in configuration.layouts.landed.pipelines.items():
        for trigger in pipeline.triggers:
            times = trigger.more.get("time", ())
            for text in (times,) if isinstance(times, str) else times:
                try:
                    found = schedule(text)
                except BadTime as bad:
                    log.warning("tenant %s: pipeline %s has a timer that never fires: %s", tenant, name, bad)
                    continue
                moment = next_put_off(found, after, f"{tenant} {name}")
                if moment is not None:
                    yield DueTimer(moment, tenant, name)
