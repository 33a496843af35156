"""Ask the gate on behalf of a running build: to pause it, and for the semaphores of its playbooks."""

from __future__ import annotations

import logging
from asyncio import Event, timeout
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import msgspec

from headgate.base.tasks import unless
from headgate.gate.course import NO_COURSE, Course
from headgate.gate.returns.secrets import Sealed
from headgate.gate.work import Answer, BuildFailing, BuildOutcome, BuildPaused
from headgate.recipes.claims import Claim
from headgate.recipes.stream import Stream
from headgate.services.context import Context
from headgate.services.playbooks import PlaybookSemaphores
from headgate.store.types import StoreError

log = logging.getLogger("headgate.executor")

EVENT_DATA_MAX_BYTES = 10_000
"""Size limit of data in an event; larger data lies apart from the event, because every process mirrors events."""
Hold = Callable[[str | None, str, Sequence[str]], Awaitable[str]]
"""Has the contract of `ports.work.Contact.hold`."""


def apart(data: dict[str, Any], secret: Sealed | None) -> bytes | None:
    """Encode data, secret data or both, which do not go into an event. Return None if there are none."""
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
    cancel: Event
    limits: Mapping[str, int]
    """Semaphore -> number of holders that it may have."""
    returned: Callable[[dict[str, Any], Claim], dict[str, Any]]
    """Returns data of the build with this claim in the form in which others may see it."""
    shared: Collection[str] = ()
    """Semaphores that other tenants use, too."""
    waiting: Callable[[], AbstractAsyncContextManager[None]] = nullcontext
    """Entered while the build is paused or waits for semaphores. It takes no place during that time, because otherwise
    the builds that it waits for might never get one."""
    begun: Callable[[], None] = lambda: None
    """Called when the build's first command is about to start."""
    holds: Hold | None = None
    """Holds the ended build if people requested that."""
    lost: list[StoreError] = field(default_factory=list)
    """Errors of the store that led to the cancellation of the build."""
    course: Course = NO_COURSE
    """Course of the build so far."""
    failing: Event = field(default_factory=Event)
    """Set once it is certain that the build will fail, though it still runs."""
    _semaphores: PlaybookSemaphores = field(init=False)

    def __post_init__(self) -> None:
        self._semaphores = PlaybookSemaphores(self.context, self.claim, self.limits, self.shared)

    def fails(self) -> None:
        """Tell `tell_of_failure` that the build will fail."""
        self.failing.set()

    async def tell_of_failure(self) -> None:
        """Report to the gate, once it is certain, that the build will fail, so that nobody waits for a change that
        cannot land."""
        await self.failing.wait()
        if self.claim.request.waited:
            return
        meta = self.claim.request.meta
        word = BuildFailing(meta["buildset"], meta["job"], self.claim.request.id)
        ops = results(self.context, meta).append(word)
        try:
            # The guard proves that the build is still this worker's: another attempt may be under way.
            await self.context.store.commit([], ops, guards=[self.claim.guard])
        except StoreError as error:  # the end of the build reports it, too
            log.info("build %s will fail, which cannot be recorded yet: %s", self.claim.request.id, error)

    async def hold(self, result: str | None, directory: str, machines: Sequence[str]) -> str:
        """Hold what the build used, as the runner requests."""
        return await self.holds(result, directory, machines) if self.holds is not None else ""

    async def pause(self, data: dict[str, Any], secret: Sealed | None = None) -> None:
        """Report that the job is paused, and wait until it may continue."""
        if self.claim.request.waited:
            return  # nothing depends on a build that stands alone
        meta = self.claim.request.meta
        # What pauses may have returned artifacts, which others see in the same form as at the end.
        data = self.returned(BuildOutcome(self.claim.request.id, data=data).fit().data, self.claim)
        large, path = apart(data, secret), f"{self.claim.result_path}.paused"
        word = BuildPaused(meta["buildset"], meta["job"], self.claim.request.id, data, secret=secret)
        if large is not None:
            word = msgspec.structs.replace(word, data={}, secret=None, apart=path, both=secret is not None)
        try:
            wanted = await self.claim.pause(results(self.context, meta).append(word), large, path)
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
    async def holding(self, semaphores: Sequence[str], cancel: Event, limit_s: float | None) -> AsyncIterator[bool]:
        """Hold semaphores as the runner requests, with or without a time limit."""
        held = False
        try:
            try:
                async with timeout(limit_s):
                    held = bool(await unless(cancel, self._semaphores.take(semaphores, self._aside)))
            except TimeoutError:
                pass
            except StoreError as error:
                self._gone(error)
            yield held
        # Also after an error: a place that is kept would block others until the build's end is known.
        finally:
            await self._semaphores.drop(semaphores, gave_up=not held)

    def _gone(self, error: StoreError) -> None:
        # Without the store the build's claim is in doubt, so it stops rather than runs twice.
        self.lost.append(error)
        self.cancel.set()

    @asynccontextmanager
    async def _aside(self) -> AsyncIterator[None]:
        """Give up the worker's place while the build waits, and announce it, so that another build can take the
        place."""
        await self.claim.say("waiting")
        async with self.waiting():
            yield
        await self.claim.say("running")
