"""A component of this process: announced in the registry while it lives, and told there what is wanted of it."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any

from msgspec.structs import replace

from headgate import __version__
from headgate.base.tasks import run_until
from headgate.map.records import ComponentRecord
from headgate.map.tree import escape
from headgate.recipes.patience import answered
from headgate.services.context import Context
from headgate.store.store import GuardLost, Session, Txn
from headgate.store.types import Append, At, Conflict, Put, SessionLost, Unavailable

log = logging.getLogger("headgate")

REJOIN_FIRST_S = 0.1
REJOIN_MAX_S = 10.0
STATES = {"running": "running", "paused": "paused", "stopped": "stopping"}
"""What is wanted -> how a component that knows it calls itself."""

Body = Callable[[Session], Coroutine[Any, Any, None]]


class Membership:
    """One component; `serve` runs it."""

    def __init__(
        self, context: Context, kind: str, facts: Mapping[str, Any] | None = None, *, finishes: bool = False
    ) -> None:
        """`facts`: what it tells of itself, JSON.  `finishes`: asked to stop, its body ends by itself, with its work
        done; that of others is cancelled."""
        self.context, self.kind, self._finishes = context, kind, finishes
        self.session: Session | None = None
        """While it is a member."""
        self.joined = asyncio.Event()
        """Set while it is one."""
        self.trouble = "it has not joined yet"
        """Why it is no member, for people."""
        self._facts = dict(facts or {})
        self._told = asyncio.Event()
        self._asked = ""
        """What this process wants itself, to be put into the registry."""

    def say(self, **facts: Any) -> None:  # JSON
        """Changes what it tells of itself."""
        if any(self._facts.get(name) != value for name, value in facts.items()):
            self._facts.update(facts)
            self._told.set()

    def want(self, state: str) -> None:
        """As if it were asked in the registry; it is shown there."""
        self._asked = state
        self._told.set()

    @property
    def wanted(self) -> str:
        """running | paused | stopped, as the registry says."""
        record = self._record()
        return self._asked or (record.wanted if record else "running")

    @property
    def state(self) -> str:
        """initializing | running | paused | stopping"""
        return STATES.get(self.wanted, "running") if self.session else "initializing"

    def _record(self) -> ComponentRecord | None:
        entry = self.context.mirror.get(self.session.name) if self.session else None
        return self._place.decode(entry.value) if entry else None

    @property
    def _place(self) -> Any:  # an address of components: which one depends on the kind
        return getattr(self.context.map.components, self.kind)

    async def serve(self, body: Body, stop: asyncio.Event) -> None:
        """Runs `body` until `stop`, or until it is asked to stop in the registry.

        A store that is out of reach, a lost session, a lost lock: what the component held is dropped, and it joins anew
        once the store answers.
        """
        wait_s, context = REJOIN_FIRST_S, self.context
        while not stop.is_set():
            try:
                async with context.store.session(f"{self.kind}@{context.hostname}:{os.getpid()}") as session:
                    await self._join(session)
                    wait_s = REJOIN_FIRST_S
                    await run_until(stop, self._until_done(body, session))
                    return
            except (SessionLost, GuardLost, Unavailable) as lost:
                self.trouble = str(lost)
                log.warning("%s: %s; joining anew in %.1f s", self.kind, lost, wait_s)
            finally:
                self.session = None
                self.joined.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), wait_s)
            wait_s = min(2 * wait_s, REJOIN_MAX_S)

    async def _join(self, session: Session) -> None:
        """From then on the session is named after the component's entry."""
        context = self.context
        record = ComponentRecord(
            context.hostname, self.kind, version=__version__, pid=os.getpid(), data=dict(self._facts)
        )
        append = Append(self._place.path, self._place.encode(record), session.lease, escape(context.hostname))
        (entry,) = await context.store.commit([], [append])
        assert entry is not None, "an append answers with its entry"
        session.name = entry.path
        await context.mirror.ready()
        await context.mirror.reached(entry.path, entry.version)
        self.session, self.trouble = session, ""
        self.joined.set()

    async def _until_done(self, body: Body, session: Session) -> None:
        done = asyncio.Event()

        async def work() -> None:
            await body(session)
            done.set()

        await run_until(done, work(), self._keep(session, done))

    async def _keep(self, session: Session, done: asyncio.Event) -> None:
        """The entry says what the component is; `done` is set when it is to stop and needs no time for it."""
        mirror = self.context.mirror
        while True:
            seen = mirror.moves
            self._told.clear()
            entry = mirror.get(session.name)
            if entry is None:
                raise SessionLost(f"the entry {session.name} is gone")
            record: ComponentRecord = self._place.decode(entry.value)
            wanted = self._asked or record.wanted
            now = replace(record, state=STATES.get(wanted, "running"), wanted=wanted, data=dict(self._facts))
            if now != record:
                put = Put(entry.path, self._place.encode(now), session.lease)
                check = At(entry.path, entry.version)
                with suppress(Conflict):  # it changed meanwhile: looked at again, as the mirror moves
                    await answered(session, lambda: self.context.store.commit([check], [put]))  # noqa: B023
                log.info("%s is %s", self.kind, now.state)
            if now.wanted == "stopped" and not self._finishes:
                done.set()
            await self._move(seen)

    async def _move(self, seen: int) -> None:
        """Until the mirror moved or something was said."""
        moved, told = asyncio.ensure_future(self.context.mirror.moved(seen)), asyncio.ensure_future(self._told.wait())
        try:
            await asyncio.wait({moved, told}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            moved.cancel()
            told.cancel()


async def want(context: Context, component: str, state: str) -> bool:
    """Says in the registry what a component (`<kind>/<name>`) is to be; False when there is no such component."""
    place = context.map.components
    path = f"{place.path}/{component}"

    async def body(txn: Txn) -> bool:
        entry = await txn.get(path)
        if entry is None:
            return False
        record = place.scheduler.decode(entry.value)  # the records of all kinds are alike
        txn.do(Put(path, place.scheduler.encode(replace(record, wanted=state)), entry.lease))
        return True

    return await context.store.transact(body)


async def serve(context: Context, kind: str, body: Body, stop: asyncio.Event) -> None:
    """A component that says nothing more of itself than what it is."""
    await Membership(context, kind).serve(body, stop)
