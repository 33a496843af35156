"""Start pipelines for new messages or object changes of one connection.

One commit writes each pipeline's position in a partition, the record of the started occasion, and the event that starts
it: so each message starts a pipeline once, even if a process dies.  Only a few occasions of each partition and trigger
run at a time, and the rest stay at their source: a flood does not delay others, and does not fill the store.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

import msgspec

from headgate.base.ids import derived
from headgate.base.tasks import run_until
from headgate.base.texts import line
from headgate.config.model import Pipeline, TriggerFilter
from headgate.gate.state.change import HEADS, Change, Occasion, TriggerEvent
from headgate.map.connections import Begun, OccasionProgress
from headgate.map.forms import ITEM
from headgate.map.records import BranchCache, RepositoryProblem, RepositoryProblems
from headgate.ports.occasions import NextOccasion, OccasionPartition, OccasionSource, SourceUnavailable
from headgate.recipes import blob
from headgate.recipes.codec import encode, readable
from headgate.recipes.lock import lock
from headgate.recipes.mirrorpart import MirrorPart
from headgate.services.configuration import Configuration
from headgate.services.context import LENGTHY_MAX, Context
from headgate.services.orders import state_of
from headgate.services.scheduler.turn import TurnPart, packed
from headgate.store.store import Session
from headgate.store.types import At, Delete, Op, Put


class LostOccasions:
    """Find lost occasions of one connection, to free their places. That each occasion starts once does not depend on
    this."""

    def __init__(self, context: Context, connection: str) -> None:
        self._context = context
        self._place = context.map.cache.connection(connection).occasions
        self._suspects: set[str] = set()

    async def sweep(self, guard: At, whose: Collection[tuple[str, str]]) -> None:
        """Forget occasions that had no event or item at two checks. `whose`: (tenant, pipeline) of all triggers."""
        mirror, found = self._context.mirror, set[str]()
        known = dict[tuple[str, str], set[str]]()
        for entry in mirror.under(self._place.begun.path):
            begun = readable(entry, Begun)
            if begun is None:
                found.add(entry.path)
                continue
            of = begun.tenant, begun.pipeline
            if of not in known:
                known[of] = set(self._alive(*of)) if of in whose else set()
            # The record is named by the id of its event, which both the waiting event and the item carry.
            if entry.path.rpartition("/")[2] not in known[of]:
                found.add(entry.path)
        # One check is not enough: the mirror may show the end of an event before it shows the resulting item.
        for commit in packed(TurnPart([Delete(path)]) for path in sorted(found & self._suspects)):
            await self._context.store.commit([], commit.ops, guards=[guard])
        self._suspects = found

    def _alive(self, tenant: str, pipeline: str) -> Iterator[str]:
        """Yield the ids of waiting events and of the events of items."""
        mirror, map = self._context.mirror, self._context.map
        stream = map.events.tenant(tenant).pipelines(pipeline).trigger.stream
        yield from (one.event.id for one in stream.waiting(mirror, limit=stream.length(mirror)))
        place = map.tenant(tenant).pipeline(pipeline).item
        for entry in mirror.under(place.path):
            own = "/" not in place.relative(entry.path)
            if own and (item := readable(entry, ITEM.type)) is not None:
                yield item.event


log = logging.getLogger("headgate.occasions")

OF_A_TRIGGER_MAX = 100
"""Limit on the unfinished items of one trigger."""
AT_ONCE_MAX = 20
"""Limit on the events taken from one partition in one round."""
LOOK_S = 30.0
"""Longest interval between two checks of everything, even without news."""
PAUSE_FIRST_S, PAUSE_MAX_S = 1.0, 60.0


class Bound(NamedTuple):
    """Bind a trigger to its pipeline."""

    tenant: str
    pipeline: Pipeline
    trigger: TriggerFilter

    @property
    def whose(self) -> tuple[str, str]:
        return self.tenant, self.pipeline.name

    def place(self, partition: OccasionPartition) -> str:
        """Return the name of the partition's record."""
        return derived("taken", *self.whose, *partition)


class OccasionRunner:
    """Run one connection of occasions. One process at a time calls `run`: the one that leads the connection's
    election."""

    def __init__(self, context: Context, watched: OccasionSource, tenants: Mapping[str, Configuration]) -> None:
        self._context, self._watched, self._tenants = context, watched, tenants
        self._place = context.map.cache.connection(watched.name)
        self._taken: dict[str, str] = {}
        """Name of a progress record -> position."""
        self._still: set[tuple[str, OccasionPartition]] = set()
        """Place and partition that had nothing new at the last check."""
        self._lost = LostOccasions(context, watched.name)
        self._problem: str | None = None

    async def run(self, session: Session) -> None:
        context, name = self._context, self._watched.name
        election = context.map.events.connection(name).events.election
        async with lock(context.store, session, election.path).hold() as guard:
            await self._recall()
            prefixes = (context.map.layout.path, self._place.occasions.path, context.map.reports.path)
            with context.mirror.part(*prefixes) as stirs:
                await run_until(asyncio.Event(), self._listen(stirs), self._rounds(stirs, guard))

    async def _recall(self) -> None:
        """Read the last leader's positions from the store, because the mirror may lag."""
        self._still.clear()
        self._taken, self._problem = {}, None
        place = self._place.occasions.taken
        for entry in await self._context.store.list(place.path):
            self._taken[entry.path.rpartition("/")[2]] = place.decode(entry.value).position

    async def _listen(self, stirs: MirrorPart) -> None:
        """Listen until cancelled; if the source is unavailable, listen again after a growing pause."""
        pause_s = PAUSE_FIRST_S
        while True:
            try:
                async for partitions in self._watched.stirs():
                    self._heard(partitions)
                    stirs.nudge()
                    pause_s = PAUSE_FIRST_S
                # A source without a stream ends without an error; it is polled at fixed intervals.
                pause_s = LOOK_S
            except SourceUnavailable as away:
                log.info("%s: %s", self._watched.name, away)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_MAX_S)

    def _heard(self, partitions: Collection[OccasionPartition] | None) -> None:
        self._still = set() if partitions is None else {one for one in self._still if one[1] not in partitions}

    async def _rounds(self, stirs: MirrorPart, guard: At) -> None:
        pause_s, loop = PAUSE_FIRST_S, asyncio.get_running_loop()
        looked_s = loop.time()
        while True:
            seen = stirs.moves
            if loop.time() - looked_s >= LOOK_S:
                looked_s = loop.time()
                self._heard(None)
                await self._lost.sweep(guard, {bound.whose for bound in self._bound()})
            try:
                if await self._round(guard):
                    continue
                await self._tell("", guard)
                pause_s, wait_s = PAUSE_FIRST_S, LOOK_S
            except SourceUnavailable as away:
                await self._tell(str(away), guard)
                pause_s, wait_s = min(2 * pause_s, PAUSE_MAX_S), pause_s
            await stirs.moved_within(wait_s, seen)

    def _bound(self) -> Iterator[Bound]:
        """Yield the triggers that name this connection."""
        for name, configuration in self._tenants.items():
            for pipeline in configuration.layouts.landed.pipelines.values():
                for trigger in pipeline.triggers:
                    if trigger.connection == self._watched.name:
                        yield Bound(name, pipeline, trigger)

    async def _round(self, guard: At) -> bool:
        """Check everything once and return whether anything was started. Raise SourceUnavailable after everything was
        checked."""
        heads = dict[str, dict[str, dict[str, str]]]()
        open, took, away = self._open(), False, None
        for bound in self._bound():
            if self._waits(bound):
                continue
            try:
                took = await self._look(bound, open, heads, guard) or took
            except SourceUnavailable as error:
                away = error
        # If something was taken, the next round follows immediately, and raises this error if it persists.
        if away is not None and not took:
            raise away
        return took

    def _open(self) -> Counter[tuple[str, ...]]:
        """Count the items that have not ended, for each pipeline and each of its partitions."""
        found = Counter[tuple[str, ...]]()
        for entry in self._context.mirror.under(self._place.occasions.begun.path):
            if (one := readable(entry, Begun)) is not None:
                found[one.tenant, one.pipeline] += 1
                found[one.tenant, one.pipeline, one.source, one.partition] += 1
        return found

    def _waits(self, bound: Bound) -> bool:
        """Return whether nothing may be started now, because a person paused the tenant or too many answers wait."""
        context = self._context
        if state_of(context, bound.tenant).trigger_queue_paused:
            return True
        lengths = (context.map.reports(name).stream.length(context.mirror) for name in bound.pipeline.posts)
        return any(length >= LENGTHY_MAX for length in lengths)

    async def _look(
        self,
        bound: Bound,
        open: Counter[tuple[str, ...]],
        heads: dict[str, dict[str, dict[str, str]]],
        guard: At,
    ) -> bool:
        """Check the partitions of one trigger in turn; return whether any of them had something new."""
        took = False
        for partition in await self._watched.partitions(bound.trigger):
            key = bound.place(partition)
            if key not in self._taken:
                await self._begin(bound, partition, await self._watched.start(bound.trigger, partition), guard)
            of_partition = (*bound.whose, *partition)
            # Each partition has its own limit, so that a flooded one leaves room to the others of the trigger.
            free = min(
                self._watched.of_a_partition_max - open[of_partition], OF_A_TRIGGER_MAX - open[bound.whose], AT_ONCE_MAX
            )
            if free <= 0 or (key, partition) in self._still:
                continue
            found = await self._watched.after(bound.trigger, partition, self._taken[key], free)
            if not found:
                self._still.add((key, partition))
                continue
            began = await self._take(bound, partition, found, heads, guard)
            open[of_partition] += began
            open[bound.whose] += began
            took = True
        return took

    async def _begin(self, bound: Bound, partition: OccasionPartition, position: str, guard: At) -> None:
        """Record the starting position of a new partition."""
        record, key = OccasionProgress(*bound.whose, *partition, position), bound.place(partition)
        put = Put(self._place.occasions.taken.inside(key), encode(record))
        await self._context.store.commit([], [put], guards=[guard])
        self._taken[key] = position

    async def _take(
        self,
        bound: Bound,
        partition: OccasionPartition,
        found: Collection[NextOccasion],
        heads: dict[str, dict[str, dict[str, str]]],
        guard: At,
    ) -> int:
        """Commit the occasions, each with the position after it. Return how many items this starts."""
        context, key = self._context, bound.place(partition)
        discarding = state_of(context, bound.tenant).trigger_queue_discarding
        stream = context.map.events.tenant(bound.tenant).pipelines(bound.pipeline.name).trigger.stream
        path, begins = self._place.occasions.taken.inside(key), 0
        pieces, position = list[TurnPart](), ""
        for seen in found:
            position = seen.position
            # Every part has the position after it, so that a crash between two commits repeats nothing; within one
            # commit, `packed` keeps only the last position.
            ops: list[Op] = [Put(path, encode(OccasionProgress(*bound.whose, *partition, position)))]
            if seen.occasion is not None and not discarding:
                event = await self._event(bound, seen, seen.occasion, heads)
                begun = Begun(*bound.whose, *partition, seen.occasion.id, context.now_ms())
                ops += [Put(self._place.occasions.begun.inside(event.id), encode(begun))]
                ops += stream.append(event)
                begins += 1
            pieces.append(TurnPart(ops))
        for commit in packed(pieces):
            written = await context.store.commit(commit.checks, commit.ops, guards=[guard])
            # `_open` counts in the mirror: without this wait, the next round would exceed the limits.
            for entry in written:
                if entry is not None and entry.path == path:
                    await context.mirror.reached(path, entry.version)
        self._taken[key] = position
        return begins

    async def _event(
        self, bound: Bound, seen: NextOccasion, occasion: Occasion, heads: dict[str, dict[str, dict[str, str]]]
    ) -> TriggerEvent:
        """Make the pipeline's event: the head of a branch, and the occasion."""
        configuration, settings = self._tenants[bound.tenant], bound.trigger.more
        source = configuration.tenant.find(str(settings.get("project", "")))
        branches = configuration.layouts.landed.branches.get(source.project, ()) if source is not None else ()
        branch = str(settings.get("branch") or next(iter(branches), ""))
        ref = f"{HEADS}{branch}"
        commit = await self._head(source.connection, source.project, ref, heads) if source is not None else ""
        if not commit and not occasion.problem:
            why = f"the project {settings.get('project')} of the trigger has no branch {branch}".rstrip()
            occasion = msgspec.structs.replace(occasion, problem=why)
        project, connection = (source.project, source.connection) if source is not None else ("", "")
        change = Change(connection, project, branch, commit=commit, ref=ref, occasion=occasion)
        id = derived(
            "occasion", self._watched.name, *bound.whose, bound.place(OccasionPartition(occasion.source)), occasion.id
        )
        return TriggerEvent(seen.kind, change, id, self._context.now_ms(), pipeline=bound.pipeline.name)

    async def _head(self, connection: str, project: str, ref: str, known: dict[str, dict[str, dict[str, str]]]) -> str:
        """Return the commit of a branch as last seen, or nothing if there is no such branch. Raise SourceUnavailable
        until the project has been read; until then, messages wait.
        """
        if connection not in known:
            stored = await blob.read(
                self._context.store, self._context.map.cache.connection(connection).branches.data.path
            )
            # One read serves all occasions of a round, because a connection may have thousands of branches.
            known[connection] = msgspec.json.decode(stored, type=BranchCache).projects if stored else {}
        if project not in known[connection]:
            raise SourceUnavailable(f"the branches of {project} have not been read yet")
        return known[connection][project].get(ref, "")

    async def _tell(self, why: str, guard: At) -> None:
        """Record the problem, once while it stays the same."""
        why = line(why, 500)
        if why == self._problem:
            return
        if why:
            log.warning("%s: its messages or objects cannot be read: %s", self._watched.name, why)
        projects = {self._watched.name: RepositoryProblem(self._context.now_ms(), why)} if why else {}
        await self._context.store.commit([], [self._place.problems.put(RepositoryProblems(projects))], guards=[guard])
        self._problem = why
