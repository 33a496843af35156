"""Ask the gate on behalf of a running build: to pause it, and for the semaphores of its playbooks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec.structs import replace

from headgate.base.tasks import unless
from headgate.gate.state.returns import NO_COURSE, Course, Sealed
from headgate.gate.state.works import Answer, BuildFailing, BuildOutcome, BuildPaused
from headgate.gate.state.world import PATIENCE_MS, Waiter
from headgate.map.places import semaphore_of
from headgate.map.records import SemaphoreHolder, SemaphoreRecord
from headgate.map.tree import Address
from headgate.recipes.claims import Claim
from headgate.recipes.codec import readable
from headgate.recipes.patience import answered
from headgate.recipes.stream import Stream
from headgate.services.context import Context
from headgate.store.store import GuardLost
from headgate.store.types import At, Conflict, Op, StoreError

log = logging.getLogger("headgate.executor")

DROP_ATTEMPTS_MAX = 20
PATIENCE_S = PATIENCE_MS / 1000
PLAYBOOKS = ""
"""Replaces the pipeline name when playbooks of a project wait, regardless of the pipelines of their builds."""
EVENT_DATA_MAX_BYTES = 10_000
"""Size limit of data in an event; larger data is stored separately, because every process mirrors events."""
Hold = Callable[[str | None, str, Sequence[str]], Awaitable[str]]
"""Has the contract of `ports.work.Contact.hold`."""


@dataclass(slots=True)
class PlaybookSemaphores:
    """Hold the semaphores of one claim's build.

    Each record has a queue (`Waiter`) in which pipelines wait for their jobs, and the builds of a project for their
    playbooks. A project whose build took a place goes to the end of the queue, so that a flood of builds delays another
    project by one place only. If a waiter does not take a place that is reserved for it, the place becomes available to
    everybody after a while.
    """

    context: Context
    claim: Claim
    limits: Mapping[str, int]
    """Semaphore -> number of holders that it may have."""
    shared: Collection[str] = ()
    """Semaphores that other tenants also use."""
    _since: dict[str, tuple[int, float]] = field(default_factory=dict)
    """Semaphore with a place reserved for others -> its version, and when that was first seen, in loop seconds."""

    async def take(self, semaphores: Sequence[str], aside: Callable[[], AbstractAsyncContextManager[None]]) -> bool:
        """Take all semaphores in one commit, waiting inside `aside` if they are not free.  Raise StoreError."""
        # Usually there is a free place, so the build need not give up its worker slot.
        if await self._done(semaphores):
            return True
        map = self.context.map
        paths = (map.semaphores(self._tenant).path, map.global_semaphores.path)
        async with aside():
            with self.context.mirror.part(*paths) as part:
                while True:
                    seen = part.moves
                    if await self._done(semaphores):
                        return True
                    await part.moved_within(self._patience_s(), seen)

    async def drop(self, semaphores: Sequence[str], *, gave_up: bool) -> None:
        """Release the semaphores and, with `gave_up`, the position in their queues; other builds of the project that
        still wait then rejoin.

        Places that are not released here are removed in the turn that absorbs the build's end.
        """
        try:
            for name in semaphores:
                await self._drop(self._place(name), gave_up)
        except StoreError as error:
            log.info("semaphores of build %s: %s", self.claim.request.id, error)

    @property
    def _tenant(self) -> str:
        return self.claim.request.meta["tenant"]

    def _place(self, semaphore: str) -> Address[SemaphoreRecord]:
        return semaphore_of(self.context.map, self._tenant, semaphore, shared=semaphore in self.shared)

    def _patience_s(self) -> float | None:
        """Return the seconds until a place that is reserved for others becomes available to everybody."""
        now = asyncio.get_running_loop().time()
        left = [since + PATIENCE_S - now for _, since in self._since.values() if since + PATIENCE_S > now]
        return min(left, default=None)

    async def _done(self, semaphores: Sequence[str]) -> bool:
        """Take the semaphores if each has a place for this build, otherwise join their queues; return whether they are
        held."""
        found = {name: self._found(name) for name in semaphores}
        # An earlier attempt may have written them although its answer was lost.
        wanted = {name: one for name, one in found.items() if not any(map(self._ours, one[2].holders))}
        # A list, not a generator: for each semaphore, `_free` must note when a place was reserved for others.
        if all([self._free(name, version, record) for name, (_, version, record) in wanted.items()]):
            return await self._written(wanted, self._with_us)
        ticket = self._ticket()
        outside = {name: one for name, one in wanted.items() if not any(map(self._own, one[2].waiters))}
        if outside:
            await self._written(outside, lambda name, record: self._in_line(record, ticket))
        return False

    def _found(self, name: str) -> tuple[Address[SemaphoreRecord], int | None, SemaphoreRecord]:
        place = self._place(name)
        entry = self.context.mirror.get(place.path)
        return place, entry.version if entry else None, place.decode(entry.value) if entry else SemaphoreRecord(())

    def _free(self, name: str, version: int | None, record: SemaphoreRecord) -> bool:
        """Return whether there is a place that is not reserved for an earlier waiter."""
        places = self.limits.get(name, 1) - len(record.holders)
        before = len(list(self._before(record))) if places > 0 else 0
        if not before:
            self._since.pop(name, None)
            return places > 0
        now = asyncio.get_running_loop().time()
        # Any write shows that a process is active on it, so the waiting time starts again.
        if self._since.get(name, (0, 0.0))[0] != version:
            self._since[name] = version or 0, now
        return places > before or now >= self._since[name][1] + PATIENCE_S

    def _before(self, record: SemaphoreRecord) -> Iterator[Waiter]:
        """Yield the waiters ahead of us, or all waiters if we are not in the queue."""
        for waiter in record.waiters:
            if self._own(waiter):
                return
            yield waiter

    def _ticket(self) -> int:
        """Return our ticket, which is the same in every queue in which our project waits."""
        map, mirror = self.context.map, self.context.mirror
        entries = [
            e for place in (map.semaphores(self._tenant), map.global_semaphores) for e in mirror.under(place.path)
        ]
        records = [readable(entry, SemaphoreRecord) for entry in entries]
        line = [waiter for record in records if record is not None for waiter in record.waiters]
        own = [waiter.ticket for waiter in line if self._own(waiter)]
        # The smallest ticket, so that a project that waits for several semaphores keeps its position in every queue.
        return min(own, default=max((waiter.ticket for waiter in line), default=0) + 1)

    def _own(self, waiter: Waiter) -> bool:
        project = self.claim.request.meta.get("project", "")
        return (waiter.tenant, waiter.pipeline, waiter.project) == (self._tenant, PLAYBOOKS, project)

    def _ours(self, holder: SemaphoreHolder) -> bool:
        return holder.build == self.claim.request.id

    def _with_us(self, name: str, record: SemaphoreRecord) -> SemaphoreRecord:
        meta = self.claim.request.meta
        tenant = self._tenant if name in self.shared else ""
        holder = SemaphoreHolder(meta["pipeline"], meta.get("buildset", ""), meta["job"], self.claim.request.id, tenant)
        passed = list(self._before(record)) if len(record.holders) < self.limits.get(name, 1) else []
        room = self.limits.get(name, 1) - len(record.holders)
        # We pass waiters only after they left their reserved places unused for too long; they must join the queue
        # again.
        late = passed if len(passed) >= room else []
        line = tuple(waiter for waiter in record.waiters if not self._own(waiter) and waiter not in late)
        return SemaphoreRecord((*record.holders, holder), line)

    def _in_line(self, record: SemaphoreRecord, ticket: int) -> SemaphoreRecord:
        me = Waiter(ticket, self._tenant, PLAYBOOKS, self.claim.request.meta.get("project", ""))
        return replace(record, waiters=tuple(sorted([*record.waiters, me])))

    async def _written(
        self,
        found: Mapping[str, tuple[Address[SemaphoreRecord], int | None, SemaphoreRecord]],
        changed: Callable[[str, SemaphoreRecord], SemaphoreRecord],
    ) -> bool:
        """Write the records. Return False if another process was faster. Raise StoreError."""
        # All records in one commit: if builds took semaphores one by one, two builds could wait for each other forever.
        checks, ops = list[At](), list[Op]()
        for name, (place, version, record) in found.items():
            checks.append(At(place.path, version))
            ops.append(place.put(changed(name, record)))
        try:
            await self.context.store.commit(checks, ops, guards=[self.claim.guard])
        except GuardLost:
            raise
        except Conflict as moved:
            log.debug("%s", moved)
            return False
        return True

    async def _drop(self, place: Address[SemaphoreRecord], gave_up: bool) -> None:
        for _ in range(DROP_ATTEMPTS_MAX):
            entry = await answered(self.claim.session, lambda: self.context.store.get(place.path))
            record = place.decode(entry.value) if entry else SemaphoreRecord(())
            line = tuple(waiter for waiter in record.waiters if not (gave_up and self._own(waiter)))
            rest = SemaphoreRecord(tuple(holder for holder in record.holders if not self._ours(holder)), line)
            if entry is None or rest == record:
                return
            try:
                # No guard: even a build that has lost its claim must release its places.
                await self.context.store.commit([At(place.path, entry.version)], [place.put(rest)])
                return
            except Conflict as moved:
                log.debug("%s", moved)


def apart(data: dict[str, Any], secret: Sealed | None) -> bytes | None:
    """Encode data and secret data if they are too large for an event. Return None if the event can contain them."""
    plain = msgspec.json.encode(data if secret is None else (data, secret))
    return plain if len(plain) > EVENT_DATA_MAX_BYTES else None


def results(context: Context, meta: Mapping[str, str]) -> Stream[Answer]:
    """Return the stream on which the pipeline waits for answers."""
    return context.map.events.tenant(meta["tenant"]).pipelines(meta["pipeline"]).result.stream


@dataclass(slots=True)
class ClaimContact:
    """Implement `ports.work.Contact` for the build of one claim."""

    context: Context
    claim: Claim
    cancel: asyncio.Event
    limits: Mapping[str, int]
    """Semaphore -> number of holders that it may have."""
    returned: Callable[[dict[str, Any], Claim], dict[str, Any]]
    """Returns data of the build with this claim in the form for other readers."""
    shared: Collection[str] = ()
    """Semaphores that other tenants also use."""
    waiting: Callable[[], AbstractAsyncContextManager[None]] = nullcontext
    """Entered while the build is paused or waits for semaphores. The build occupies no worker slot during that time,
    because otherwise the builds that it waits for might never get one."""
    begun: Callable[[], None] = lambda: None
    """Called when the build's first command is about to start."""
    lost: list[StoreError] = field(default_factory=list)
    """Errors of the store that led to the cancellation of the build."""
    course: Course = NO_COURSE
    """Course of the build so far."""
    failing: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once it is certain that the build will fail, although it still runs."""
    _autohold: Hold | None = None
    """Holds the ended build if an autohold request matches it."""
    _semaphores: PlaybookSemaphores = field(init=False)

    def __post_init__(self) -> None:
        self._semaphores = PlaybookSemaphores(self.context, self.claim, self.limits, self.shared)

    def begins(self, course: Course, autohold: Hold) -> None:
        """Begin the course of the build, on machines that `autohold` holds if a request for that matches."""
        self.course, self._autohold = course, autohold

    def fails(self) -> None:
        """Tell `tell_of_failure` that the build will fail."""
        self.failing.set()

    async def tell_of_failure(self) -> None:
        """Report to the gate, as soon as that is certain, that the build will fail, so that other changes no longer
        wait for one that cannot land."""
        await self.failing.wait()
        if self.claim.request.waited:
            return
        meta = self.claim.request.meta
        word = BuildFailing(meta["buildset"], meta["job"], self.claim.request.id)
        ops = results(self.context, meta).append(word)
        try:
            # The guard proves that this worker still owns the build: another attempt may be under way.
            await self.context.store.commit([], ops, guards=[self.claim.guard])
        except StoreError as error:  # the end of the build reports it as well
            log.info("build %s will fail, which cannot be recorded yet: %s", self.claim.request.id, error)

    async def hold(self, result: str | None, directory: str, machines: Sequence[str]) -> str:
        """Keep the resources that the build used, if it is to be held; return a message about that, or an empty
        string."""
        return await self._autohold(result, directory, machines) if self._autohold is not None else ""

    async def pause(self, data: dict[str, Any], secret: Sealed | None = None) -> None:
        """Report that the job is paused, and wait until it may continue."""
        if self.claim.request.waited:
            return  # no job depends on a manually started build
        meta = self.claim.request.meta
        # A pausing job may have returned artifacts, whose URLs must be in the same form as at its end.
        data = self.returned(BuildOutcome(self.claim.request.id, data=data).fit().data, self.claim)
        large, path = apart(data, secret), self.claim.places.paused(self.claim.request.id)
        word = BuildPaused(meta["buildset"], meta["job"], self.claim.request.id, data, secret=secret)
        if large is not None:
            word = msgspec.structs.replace(word, data={}, secret=None, apart=path, both=secret is not None)
        try:
            wanted = await self.claim.pause(results(self.context, meta).append(word), large)
        except StoreError as error:
            self._gone(error)
            return
        self.course = msgspec.structs.replace(self.course, paused_ms=self.context.now_ms())
        async with self.waiting():
            await self._resumed(wanted)
        self.course = msgspec.structs.replace(self.course, resumed_ms=self.context.now_ms())

    async def _resumed(self, wanted: str) -> None:
        mirror = self.context.mirror
        with mirror.part(self.claim.seen.path) as own:
            while wanted == "run":
                seen = own.moves
                wanted = self.claim.wanted(mirror)
                if wanted == "run":
                    await own.moved(seen)

    @asynccontextmanager
    async def holding(
        self, semaphores: Sequence[str], cancel: asyncio.Event, limit_s: float | None
    ) -> AsyncIterator[bool]:
        """Hold semaphores as the runner requests, with or without a time limit."""
        held = False
        try:
            try:
                async with asyncio.timeout(limit_s):
                    held = bool(await unless(cancel, self._semaphores.take(semaphores, self._aside)))
            except TimeoutError:
                pass
            except StoreError as error:
                self._gone(error)
            yield held
        # Also after an error: otherwise the place would block other builds until the build's end is known.
        finally:
            await self._semaphores.drop(semaphores, gave_up=not held)

    def _gone(self, error: StoreError) -> None:
        # Without the store the build may have lost its claim, so it stops instead of possibly running twice.
        self.lost.append(error)
        self.cancel.set()

    @asynccontextmanager
    async def _aside(self) -> AsyncIterator[None]:
        """Give up the worker slot while the build waits, and announce that, so that another build can use the slot."""
        await self.claim.say("waiting")
        async with self.waiting():
            yield
        await self.claim.say("running")
