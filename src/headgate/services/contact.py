"""What a build under way asks of the gate: to be paused, and semaphores for its playbooks."""

from __future__ import annotations

import logging
from asyncio import Event, timeout
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec.structs import replace

from headgate.base.tasks import unless
from headgate.gate.work import Answer, BuildFailing, BuildOutcome, BuildPaused
from headgate.map.places import semaphore_of
from headgate.map.records import Holder, SemaphoreRecord
from headgate.map.tree import Address
from headgate.recipes.patience import answered
from headgate.recipes.requests import Claim, say
from headgate.recipes.stream import Stream
from headgate.services.context import Context
from headgate.store.store import GuardLost
from headgate.store.types import At, Conflict, Op, StoreError

log = logging.getLogger("headgate.executor")

EVENT_DATA_MAX_BYTES = 10_000
"""More than this lies apart from the event: every process mirrors events."""
DROP_ATTEMPTS_MAX = 20
Hold = Callable[[str | None, str, Sequence[str]], Awaitable[str]]
"""See `ports.runner.Contact.hold`."""


def apart(data: dict[str, Any]) -> bytes | None:
    """Data that does not go into an event."""
    plain = msgspec.json.encode(data)
    return plain if len(plain) > EVENT_DATA_MAX_BYTES else None


def results(context: Context, meta: Mapping[str, str]) -> Stream[Answer]:
    """Where the pipeline waits for answers."""
    return context.map.events.tenant(meta["tenant"]).pipelines(meta["pipeline"]).result.stream


@dataclass(slots=True)
class Contact:
    """`ports.runner.Contact` of the build of one claim."""

    context: Context
    claim: Claim
    cancel: Event
    limits: Mapping[str, int]
    """Semaphore -> how many may hold it."""
    told: Callable[[dict[str, Any], Claim], dict[str, Any]]
    """Data as others are to see it, of the build with this id."""
    shared: Collection[str] = ()
    """Those that other tenants use, too."""
    waiting: Callable[[], AbstractAsyncContextManager[None]] = nullcontext
    """Entered while the build is paused, or waits for semaphores: it takes no place then, or those that it waits for
    might never get one."""
    begun: Callable[[], None] = lambda: None
    """Called once its first command is about to start."""
    holds: Hold | None = None
    """Holds the build, when it has ended as people asked for."""
    lost: list[StoreError] = field(default_factory=list)
    """Why the build was cancelled, when it was for the store's sake."""
    failing: Event = field(default_factory=Event)
    """It runs still, and will fail."""

    def fails(self) -> None:
        """Has `tell_of_failure` do so."""
        self.failing.set()

    async def tell_of_failure(self) -> None:
        """Tell the gate, once it is known, that the build will fail: nobody need go on waiting for what cannot land."""
        await self.failing.wait()
        if self.claim.request.waited:
            return
        meta = self.claim.request.meta
        word = BuildFailing(meta["buildset"], meta["job"], self.claim.request.id)
        said = results(self.context, meta).append(word)
        try:
            await self.context.store.commit([], said, guards=[self.claim.guard])
        except StoreError as error:  # the end of the build tells it, too
            log.info("build %s fails, which cannot be told yet: %s", self.claim.request.id, error)

    async def hold(self, result: str | None, directory: str, machines: Sequence[str]) -> str:
        """As the runner asks for it."""
        return await self.holds(result, directory, machines) if self.holds is not None else ""

    async def pause(self, data: dict[str, Any]) -> None:
        """Says so, and waits until it is to go on."""
        if self.claim.request.waited:
            return  # nothing depends on a build that stands alone
        builds, meta = self.context.builds, self.claim.request.meta
        data = self.told(BuildOutcome(self.claim.request.id, data=data).fit().data, self.claim)
        large, path = apart(data), f"{builds.result_path(self.claim)}.paused"
        word = BuildPaused(meta["buildset"], meta["job"], self.claim.request.id, data)
        if large is not None:
            word = msgspec.structs.replace(word, data={}, apart=path)
        try:
            wanted = await builds.pause(self.claim, results(self.context, meta).append(word), large, path)
        except StoreError as error:
            self._gone(error)
            return
        async with self.waiting():
            await self._resumed(wanted)

    async def _resumed(self, wanted: str) -> None:
        mirror, builds = self.context.mirror, self.context.builds
        with mirror.part(self.claim.seen.path) as own:
            while wanted == "run":
                seen = own.moves
                wanted = builds.wanted(self.claim, mirror)
                if wanted == "run":
                    await own.moved(seen)

    @asynccontextmanager
    async def holding(self, semaphores: Sequence[str], cancel: Event, limit_s: float | None) -> AsyncIterator[bool]:
        """As the runner asks for it; without a limit, too."""
        held = False
        try:
            try:
                async with timeout(limit_s):
                    held = bool(await unless(cancel, self._taken(semaphores)))
            except TimeoutError:
                pass
            except StoreError as error:
                self._gone(error)
            yield held
        finally:
            await self._dropped(semaphores)

    def _gone(self, error: StoreError) -> None:
        self.lost.append(error)
        self.cancel.set()

    def _place(self, semaphore: str) -> Address[SemaphoreRecord]:
        tenant = self.claim.request.meta["tenant"]
        return semaphore_of(self.context.map, tenant, semaphore, shared=semaphore in self.shared)

    async def _taken(self, semaphores: Sequence[str]) -> bool:
        """Waits for all of them, and takes them in one commit."""
        if await self._free(semaphores):
            return True
        map = self.context.map
        paths = (map.semaphores(self.claim.request.meta["tenant"]).path, map.global_semaphores.path)
        async with self._aside():
            with self.context.mirror.part(*paths) as part:
                while True:
                    seen = part.moves
                    if await self._free(semaphores):
                        return True
                    await part.moved(seen)

    @asynccontextmanager
    async def _aside(self) -> AsyncIterator[None]:
        """Take no place, and say so: whose it is may have another one meanwhile."""
        builds = self.context.builds
        await say(builds, self.claim, "waiting")
        async with self.waiting():
            yield
        await say(builds, self.claim, "running")

    async def _free(self, semaphores: Sequence[str]) -> bool:
        """Take them if nobody else holds too much of one; return whether they are ours."""
        wanted = self._taking(semaphores)
        return wanted is not None and await self._written(*wanted)

    async def _written(self, checks: list[At], ops: list[Op]) -> bool:
        """False: somebody else was quicker."""
        try:
            await self.context.store.commit(checks, ops, guards=[self.claim.guard])
        except GuardLost:
            raise
        except Conflict as moved:
            log.debug("%s", moved)
            return False
        return True

    def _taking(self, semaphores: Sequence[str]) -> tuple[list[At], list[Op]] | None:
        """None: somebody else holds too much of one, as far as the mirror knows."""
        checks, ops = list[At](), list[Op]()
        for name in semaphores:
            place = self._place(name)
            entry = self.context.mirror.get(place.path)
            record = place.decode(entry.value) if entry else SemaphoreRecord(())
            holders = record.holders
            if any(self._ours(holder) for holder in holders):
                continue  # kept from when this build was begun before
            if len(holders) >= self.limits.get(name, 1):
                return None
            meta = self.claim.request.meta
            tenant = meta["tenant"] if name in self.shared else ""
            holder = Holder(meta["pipeline"], meta.get("buildset", ""), meta["job"], self.claim.request.id, tenant)
            checks.append(At(place.path, entry.version if entry else None))
            ops.append(place.put(replace(record, holders=(*holders, holder))))
        return checks, ops

    def _ours(self, holder: Holder) -> bool:
        return holder.build == self.claim.request.id

    async def _dropped(self, semaphores: Sequence[str]) -> None:
        """What is not taken away here goes in the turn that learns of the build's end."""
        try:
            for name in semaphores:
                await self._drop(self._place(name))
        except StoreError as error:
            log.info("semaphores of build %s: %s", self.claim.request.id, error)

    async def _drop(self, place: Address[SemaphoreRecord]) -> None:
        for _ in range(DROP_ATTEMPTS_MAX):
            entry = await answered(self.claim.session, lambda: self.context.store.get(place.path))
            record = place.decode(entry.value) if entry else SemaphoreRecord(())
            rest = replace(record, holders=tuple(holder for holder in record.holders if not self._ours(holder)))
            if entry is None or rest == record:
                return
            try:
                await self.context.store.commit([At(place.path, entry.version)], [place.put(rest)])
                return
            except Conflict as moved:
                log.debug("%s", moved)
