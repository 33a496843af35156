"""Announce running components and endpoints, follow desired states, and agree on the format of records."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any

from msgspec.structs import replace

from headgate import __version__
from headgate.base.tasks import run_until
from headgate.map.records import FACTS, RESETTING, ComponentFacts, ComponentRecord, DesiredState, Formats
from headgate.map.tree import Undecodable, escape
from headgate.recipes.codec import readable
from headgate.recipes.mirrorpart import MirrorPart
from headgate.recipes.patience import answered
from headgate.services.context import Context
from headgate.store.store import GuardLost, Session, Store, Txn
from headgate.store.types import Append, At, Conflict, Delete, Entry, Op, Put, SessionLost, StoreError, Unavailable

log = logging.getLogger("headgate")
endpoint_log = logging.getLogger("headgate.inventory")

REJOIN_FIRST_S = 0.1
REJOIN_MAX_S = 10.0
UNFORESEEN_S = 1.0
"""Shortest pause before a component joins again after an unexpected error."""
STATES = {"running": "running", "paused": "paused", "stopped": "stopping"}
"""Desired state -> state that a component announces when it follows it."""
ENDPOINT_RETRY_S = 2.0
Body = Callable[[Session], Coroutine[Any, Any, None]]


class TooOld(StoreError):
    """Report that this program does not know the format in which records are written."""


def refuse_formats(now: Formats, knows: int) -> None:
    """Refuse a format that this program does not know. Raise TooOld."""
    if knows < now.number:
        raise TooOld(
            f"the store has records in format {now.number}, but this Headgate knows only formats up to {knows}: "
            "upgrade it. Nothing was written"
        )


def check_format(context: Context) -> None:
    """Check the format once the component has joined and is visible in the mirror. Raise TooOld or Unavailable."""
    now = _read(context, context.mirror.get(context.map.system.formats.path))
    refuse_formats(now, context.knows)
    if now.next == RESETTING:
        raise Unavailable(
            "`headgate store reset` is emptying the store; if it was interrupted, run it again to complete it"
        )
    # An upgrade is in progress. Waiting helps, because the announcement is withdrawn if a component does not know the
    # format.
    if context.knows < now.next:
        raise Unavailable(
            f"an upgrade to format {now.next} is in progress, and this Headgate does not know this format"
        )


def written_format(context: Context) -> int:
    """Return the format in which to write records, as the mirror shows it."""
    return _read(context, context.mirror.get(context.map.system.formats.path)).number


async def agree_on_format(context: Context) -> None:
    """Raise the format to the newest one that every component knows. Return when it is the newest one that this
    scheduler knows.

    A scheduler first announces the next format, and then checks the running components. It sees those that joined
    before the announcement; those that join later see the announcement, and leave if they do not know the format.
    """
    place, mirror = context.map.system.formats, context.mirror
    with mirror.part(context.map.components.path, place.path) as part:
        while written_format(context) < context.knows:
            seen, entry = part.moves, mirror.get(place.path)
            following = _following(_read(context, entry), _common(context))
            if following is not None:
                with suppress(Conflict):  # another scheduler was faster, and the mirror will show it
                    check = At(place.path, entry.version if entry else None)
                    (put,) = await context.store.commit([check], [place.put(following)])
                    assert put is not None, "a put answers with its entry"
                    await mirror.reached(place.path, put.version)
                    to_be = f"; format {following.next} is next" if following.next else ""
                    log.info("records are written in format %d%s", following.number, to_be)
                    continue
            await part.moved(seen)


def _following(now: Formats, common: int) -> Formats | None:
    """Return the formats to write next if all running components know `common`; None if nothing changes."""
    if now.next:
        # If a component that does not know the format has joined since, the announcement is withdrawn.
        return Formats(now.next if now.next <= common else now.number)
    return Formats(now.number, common) if now.number < common else None


def _common(context: Context) -> int:
    # A component with a damaged record does not count, so that it does not block an upgrade.
    return min([context.knows, *(record.formats for record in context.members(context.map.components.path).values())])


def _read(context: Context, entry: Entry | None) -> Formats:
    """Read the formats. A damaged entry counts as the first format, because records in a newer format name it
    themselves."""
    return (readable(entry, Formats) if entry is not None else None) or Formats(1)


class Membership:
    """Run one component with `serve`."""

    def __init__(self, context: Context, kind: str, facts: ComponentFacts = FACTS, *, finishes: bool = False) -> None:
        """Create a membership. The component announces `facts` about itself. With `finishes`, its body completes its
        work and ends when it must stop; otherwise it is cancelled."""
        self.context, self.kind, self._finishes = context, kind, finishes
        self.session: Session | None = None
        """Session of the component; None while it is not a member."""
        self.joined = asyncio.Event()
        """Set while the component is a member."""
        self.problem = "it has not joined yet"
        """A message that explains why the component is not a member."""
        self._facts = facts
        self._own: MirrorPart | None = None
        """The part of the mirror with its entry and its desired state, while the component is a member."""
        self._wanted = ""
        """State that this process itself demands."""

    def say(self, **facts: Any) -> None:  # members of Facts
        """Change the facts that the component announces about itself."""
        announced = replace(self._facts, **facts)
        if announced != self._facts:
            self._facts = announced
            self._keep_up_soon()

    def want(self, state: str) -> None:
        """Set the state of the component for its lifetime, as if the store demanded it."""
        self._wanted = state
        self._keep_up_soon()

    def _keep_up_soon(self) -> None:
        if self._own is not None:
            self._own.nudge()

    @property
    def wanted(self) -> str:
        """Return the desired state: running, paused or stopped."""
        if self._wanted or self.session is None:
            # Stopping the process takes precedence over the desired state of the component.
            return self._wanted or "running"
        entry = self.context.mirror.get(self._desired_path)
        desired = readable(entry, DesiredState) if entry is not None else None
        return desired.state if desired is not None and desired.state in STATES else "running"

    @property
    def _desired_path(self) -> str:
        return desired_path(self.context, self.session.name) if self.session else ""

    @property
    def state(self) -> str:
        """Return the current state: initializing, running, paused or stopping."""
        return STATES.get(self.wanted, "running") if self.session else "initializing"

    @property
    def _place(self) -> Any:  # the address depends on the kind of the component
        return getattr(self.context.map.components, self.kind)

    async def serve(self, body: Body, stop: asyncio.Event) -> None:
        """Run `body` until `stop`, or until the store demands that it stops. Raise TooOld.

        If the store is unavailable, or the session or a lock is lost, the component gives up everything that it holds,
        and joins again when the store answers.  It does the same after any other failure; the process continues.
        """
        wait_s, context, waits = REJOIN_FIRST_S, self.context, False
        while not stop.is_set():
            try:
                name = f"{self.kind}@{context.settings.hostname}:{os.getpid()}"
                async with context.store.session(name, stop=stop) as session:
                    await self._join(session)
                    wait_s, waits = REJOIN_FIRST_S, False
                    try:
                        await run_until(stop, self._until_done(body, session))
                    finally:
                        # The path of the desired state depends on the session's name, which is reset below.
                        await self._forget()
                    return
            except (SessionLost, GuardLost, Unavailable) as lost:
                self.problem = str(lost)
                # An unavailable store may stay so for hours, so it is logged once, not at each attempt.
                level = logging.DEBUG if waits else logging.WARNING
                log.log(level, "%s: %s; joining again in %.1f s", self.kind, lost, wait_s)
                waits = isinstance(lost, Unavailable)
            except Undecodable as damaged:
                self.problem, wait_s = f"{damaged}; repair or remove it", REJOIN_MAX_S
                log.error("%s: %s; it does nothing until then", self.kind, self.problem)
            except TooOld:
                # Waiting does not help, because only another version of the program can use this store.
                raise
            except Exception as error:
                self.problem, wait_s = f"{type(error).__name__}: {error}", max(wait_s, UNFORESEEN_S)
                log.exception("%s failed with an unexpected error; joining again in %.1f s", self.kind, wait_s)
            finally:
                self.session = None
                self.joined.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await stop.wait()
            wait_s = min(2 * wait_s, REJOIN_MAX_S)

    @property
    def record(self) -> ComponentRecord:
        """Return the component's record."""
        return ComponentRecord(
            self.context.settings.hostname,
            self.kind,
            version=__version__,
            pid=os.getpid(),
            formats=self.context.knows,
            data=self._facts,
        )

    def begins(self, session: Session) -> None:
        """Take part with this session."""
        self.session, self.problem = session, ""

    async def _join(self, session: Session) -> None:
        """Join the registry; the session is then named after the component's entry."""
        context, record = self.context, self.record
        append = Append(self._place.path, self._place.encode(record), session.lease, escape(context.settings.hostname))
        (entry,) = await context.store.commit([], [append])
        assert entry is not None, "an append answers with its entry"
        # Lock entries contain the session's name, so that pages can show which component holds a lock.
        session.rename(entry.path)
        # The component must not act on a mirror that lacks earlier members' writes.
        await context.mirror.ready()
        await context.mirror.reached(entry.path, entry.version)
        # The component's entry is visible now, so a scheduler that raises the format either sees it or announced the
        # format earlier.
        check_format(context)
        self.begins(session)
        self.joined.set()

    async def _forget(self) -> None:
        """Delete the desired state of the component; if that fails, the sweeper does it later."""
        with suppress(StoreError):
            if self.context.mirror.get(self._desired_path) is not None:
                await self.context.store.commit([], [Delete(self._desired_path)])

    async def _until_done(self, body: Body, session: Session) -> None:
        done = asyncio.Event()

        async def work() -> None:
            await body(session)
            done.set()

        await run_until(done, work(), self._keep(session, done))

    async def _keep(self, session: Session, done: asyncio.Event) -> None:
        """Follow the desired state. Set `done` when the component must stop and need not finish its work first."""
        mirror = self.context.mirror
        with mirror.part(session.name, self._desired_path) as own:
            self._own = own
            try:
                await self._keep_up(session, done, own)
            finally:
                self._own = None

    async def _keep_up(self, session: Session, done: asyncio.Event, own: MirrorPart) -> None:
        while True:
            seen = own.moves
            entry = self.context.mirror.get(session.name)
            if entry is None:
                # Somebody deleted it manually, or the lease expired unnoticed; others have already taken over its work.
                raise SessionLost(f"the entry {session.name} is gone")
            record, wanted = readable(entry, ComponentRecord), self.wanted
            now = replace(self.record, state=STATES[wanted])
            if now != record:
                put = Put(entry.path, self._place.encode(now), session.lease)
                check = At(entry.path, entry.version)
                with suppress(Conflict):  # it has changed in the meantime; this runs again when the mirror shows that
                    await answered(session, lambda: self.context.store.commit([check], [put]))  # noqa: B023
                log.info("%s is %s", self.kind, now.state)
            if wanted == "stopped" and not self._finishes:
                done.set()
            await own.moved(seen)


def desired_path(context: Context, component: str) -> str:
    """Return the path of the desired state of the component with this entry."""
    kind, _, name = context.map.components.relative(component).partition("/")
    return context.map.desired_states.inside(f"{kind}.{name}")


async def want(context: Context, component: str, state: str, besides: Sequence[Op] = ()) -> bool:
    """Set the desired state of a component (`<kind>/<name>`): running, paused or stopped. Return False if it does
    not exist. The same commit also includes the operations `besides`."""
    path = context.map.components.inside(component)
    desired = desired_path(context, path)

    async def body(txn: Txn) -> bool:
        if await txn.get(path) is None:
            return False
        # Without an entry, the desired state is "running".
        txn.do(
            Delete(desired)
            if state == "running"
            else Put(desired, context.map.desired_states.encode(DesiredState(state))),
            *besides,
        )
        return True

    return await context.store.transact(body)


async def serve(context: Context, kind: str, body: Body, stop: asyncio.Event) -> None:
    """Serve a component that announces nothing but its kind."""
    await Membership(context, kind).serve(body, stop)


async def found_at(store: Store, path: str) -> None:
    """Keep the endpoint registered in the store until cancelled. If the session is lost, start a new one."""
    while True:
        try:
            async with store.session(f"endpoint {path}") as session:
                await store.commit([], [Put(path, b"", session.lease)])
                await asyncio.Event().wait()
        except (SessionLost, Unavailable) as lost:
            endpoint_log.warning("%s is not registered: %s; trying again in %.0f s", path, lost, ENDPOINT_RETRY_S)
            await asyncio.sleep(ENDPOINT_RETRY_S)
