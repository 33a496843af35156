"""Set entries aside whose handling always raises an error, and restart tasks that raise one.

A process tries such an entry a few times, then moves it to the quarantine in one commit. It stays there, with its
error, until somebody retries or drops it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from headgate.base.ids import derived
from headgate.base.tasks import run_until
from headgate.gate.state.change import TriggerEvent
from headgate.gate.state.works import ReportRequest
from headgate.map.outbox import OutboxMessages
from headgate.map.places import PipelineEvents
from headgate.map.records import Quarantined
from headgate.map.tree import Undecodable
from headgate.recipes.codec import encode, readable
from headgate.recipes.requestforms import Request
from headgate.recipes.stream import StreamEntry, Unread
from headgate.services.context import Context
from headgate.store.store import GuardLost, Session, Txn
from headgate.store.types import Append, Conflict, Delete, Op, Put, SessionLost, StoreError, TooLarge, Unavailable

log = logging.getLogger("headgate.quarantine")

E = TypeVar("E")

TRIES_MAX = 3
TRY_AGAIN_S = 0.2
COUNTED_MAX = 10_000
ERROR_MAX_CHARS = 1_000
REPORTS_MAX = 1_000
"""Limit on the stored undeliverable reports."""
BODY_MAX_BYTES = 400_000
"""Size limit of a stored body; for a larger one, only the record is stored."""
PAUSE_FIRST_S, PAUSE_MAX_S = 0.2, 60.0
WELL_S = 10.0
"""Time after which a restarted task counts as healthy."""
Run = Callable[[Session], Coroutine[Any, Any, None]]


def transient(error: Exception) -> bool:
    """Return whether the store or another process's write is the cause, so that waiting helps."""
    # An entry that is too large stays too large, so retrying does not help.
    return isinstance(error, StoreError | SessionLost) and not isinstance(error, TooLarge)


def error_text(error: BaseException) -> str:
    """Return the error as a message."""
    return _plain(str(error) if isinstance(error, Undecodable) else f"{type(error).__name__}: {error}")


def _plain(text: str) -> str:
    """Return the text as one printable line of limited length."""
    # Errors quote user input, whose control characters must not reach terminals and logs.
    return "".join(c if c.isprintable() else " " for c in text[:ERROR_MAX_CHARS])


class Tries:
    """Count how often handling each entry has raised an error in this process."""

    def __init__(self, most: int = TRIES_MAX) -> None:
        self._most = most
        self._counts: dict[str, int] = {}

    def spent(self, name: str) -> bool:
        """Count one more error. Return True if the attempts are used up, so that the entry must be quarantined."""
        # Clearing costs a few more attempts, but bounds the memory.
        if len(self._counts) >= COUNTED_MAX:
            self._counts.clear()
        self._counts[name] = self._counts.get(name, 0) + 1
        if self._counts[name] < self._most:
            return False
        del self._counts[name]
        return True


class Quarantine:
    """Read the quarantine from the mirror, and move entries into and out of it."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._place = context.map.quarantine

    def __len__(self) -> int:
        return len(self._context.mirror.under(self._place.records.path))

    def all(self) -> Mapping[str, Quarantined]:
        """Return id -> quarantined record, oldest first."""
        prefix = self._place.records.inside("")
        found = ((e.path, readable(e, Quarantined)) for e in self._context.mirror.under(self._place.records.path))
        return {path.removeprefix(prefix): one for path, one in found if one is not None}

    def path(self, id: str) -> str:
        return self._place.records.inside(id)

    def event(self, waiting: Unread[E], queue: str, error: BaseException, tenant: str = "") -> list[Op]:
        """Return operations, for its consumer's commit, that move an event from its queue into the quarantine."""
        body = self._context.mirror.get(waiting.body)
        name = waiting.body.rpartition("/")[2]
        subject = f"an event ({type(waiting.event).__name__}) of {queue}"
        ops = self.put(name, "event", subject, error, tenant, queue, waiting.body, body.value if body else b"")
        return [*ops, *waiting.consume()]

    def report(self, waiting: Unread[OutboxMessages], queue: str, connection: str, error: Exception) -> list[Op]:
        """Return operations that move rejected reports from the receiver's outbox into the quarantine. If the
        quarantine has too many reports, the operations drop them instead.
        """
        # A receiver that rejects everything would otherwise fill the store.
        if self._full():
            return waiting.consume()
        reports = [one.report for one in waiting.event.messages]
        tenant, body = reports[0].tenant if reports else "", self._context.mirror.get(waiting.body)
        of = ", ".join(f"{one.report} of {one.change or one.ref} of {one.project} in {one.pipeline}" for one in reports)
        subject, name = f"the report to {connection}: {of}", waiting.body.rpartition("/")[2]
        value = body.value if body else b""
        ops = self.put(
            name, "report", subject, str(error) or error_text(error), tenant, queue, waiting.body, value, tries=1
        )
        return [*ops, *waiting.consume()]

    def note(self, id: str, work: ReportRequest, tenant: str, error: str) -> list[Op]:
        """Return operations that quarantine a report that a forge rejects; a retry submits it to a merger again."""
        if self._full():
            return []
        change, queue = work.change, self._context.merges.places
        subject = f"the report to {change.connection}: {change.id} of {change.project} in {work.pipeline}"
        value = msgspec.json.encode(work)
        return self.put(id, "report", subject, error, tenant, queue.requests, f"{queue.params}/{id}", value, tries=1)

    def _full(self) -> bool:
        """Return whether the quarantine has too many reports to store another one."""
        full = sum(one.kind == "report" for one in self.all().values()) >= REPORTS_MAX
        if full:
            log.error("the quarantine already has %d undeliverable reports: dropping one", REPORTS_MAX)
            self._context.observer.dropped("reports", 1)
        return full

    def change(
        self, id: str, subject: str, error: str, tenant: str, events: PipelineEvents, event: TriggerEvent | None
    ) -> list[Op]:
        """Return operations that quarantine a change that left its pipeline. A retry sends `event` again; with None, it
        sends nothing."""
        # The id is derived, so that an item that is quarantined twice has one record.
        stream, name = events.trigger.stream, derived("change", id)
        if event is None:
            return self.put(name, "change", subject, error, tenant)
        return self.put(name, "change", subject, error, tenant, stream.queue, f"{stream.data}/{name}", encode(event))

    def put(
        self,
        id: str,
        kind: str,
        what: str,
        error: BaseException | str,
        tenant: str = "",
        queue: str = "",
        body: str = "",
        value: bytes = b"",
        tries: int = TRIES_MAX,
    ) -> list[Op]:
        what, text = _plain(what), _plain(error) if isinstance(error, str) else error_text(error)
        log.error("%s was set aside after %d attempts: %s", what, tries, text)
        # Without its body, an entry cannot be put back, so the record must not name a queue.
        retained = 0 < len(value) <= BODY_MAX_BYTES
        record = Quarantined(
            kind=kind,
            what=what,
            error=text,
            since_ms=self._context.now_ms(),
            tries=tries,
            tenant=tenant,
            queue=queue if retained else "",
            body=body if retained else "",
        )
        ops: list[Op] = [Put(self.path(id), self._place.records.encode(record))]
        return [*ops, Put(self._body(id), value)] if retained else ops

    def _body(self, id: str) -> str:
        return self._place.bodies.inside(id)

    async def retry(self, id: str, besides: Sequence[Op] = ()) -> Quarantined:
        """Put an entry back where it was, and return it; the same commit also includes the operations `besides`. Raise
        LookupError or StoreError."""

        async def body(txn: Txn) -> Quarantined:
            record = await self._taken(txn, id)
            stored = await txn.get(self._body(id))
            if stored is not None and record.queue == self._context.merges.places.requests:
                txn.do(*self._again(record, stored.value))
            elif record.queue and stored is not None:
                name = StreamEntry(record.body.rpartition("/")[2])
                txn.do(Put(record.body, stored.value), Append(record.queue, encode(name)))
            txn.do(*besides)
            return record

        return await self._context.store.transact(body)

    def _again(self, record: Quarantined, value: bytes) -> list[Op]:
        """Return operations that submit the report to a merger again."""
        work = msgspec.json.decode(value, type=ReportRequest)
        change = {"change": work.change.id, "project": work.change.project}
        meta = {"tenant": record.tenant, "pipeline": work.pipeline, **change}
        # The old request has ended, so a new one takes its id.
        return self._context.merges.submit(Request(record.body.rpartition("/")[2], meta=meta), value)

    async def drop(self, id: str, besides: Sequence[Op] = ()) -> Quarantined:
        """Delete an entry, and return it; the same commit also includes the operations `besides`. Raise LookupError or
        StoreError."""

        async def body(txn: Txn) -> Quarantined:
            txn.do(*besides)
            return await self._taken(txn, id)

        return await self._context.store.transact(body)

    async def _taken(self, txn: Txn, id: str) -> Quarantined:
        entry = await txn.get(self.path(id))
        # Somebody else may have retried or dropped it in the meantime.
        if entry is None:
            raise LookupError(f"the quarantine has no entry {id!r}")
        txn.do(Delete(entry.path), Delete(self._body(id)))
        try:
            return self._place.records.decode(entry.value)
        # People must be able to drop unreadable records.
        except Undecodable as damaged:
            return Quarantined(kind="record", what=entry.path, error=error_text(damaged), since_ms=0)

    async def forget(self, id: str) -> None:
        """Remove an entry from the quarantine because handling it succeeds again."""
        # Usually there is no entry, and checking the mirror costs no request.
        if self._context.mirror.get(self.path(id)) is not None:
            try:
                await self._context.store.commit([], [Delete(self.path(id)), Delete(self._body(id))])
            except Conflict as moved:
                log.debug("%s", moved)


async def tended(context: Context, what: str, run: Run, session: Session, tenant: str = "") -> None:
    """Run a task until it ends. If it raises an error, start it again after a growing pause, so that its defect, or a
    damaged record that it needs, affects nothing else. Raise SessionLost, GuardLost or Unavailable.

    After a few failures, the quarantine shows the task until it runs without errors; a retry there starts it
    immediately."""
    await _SupervisedWork(context, what, run, tenant).run(session)


class _SupervisedWork:
    def __init__(self, context: Context, what: str, run: Run, tenant: str) -> None:
        self._context, self._what, self._run, self._tenant = context, what, run, tenant
        self._quarantine, self._id = Quarantine(context), derived("work", what)

    async def run(self, session: Session) -> None:
        loop = asyncio.get_running_loop()
        tries, pause_s = 0, PAUSE_FIRST_S
        while True:
            began_s = loop.time()
            try:
                # If the quarantine shows the task, its record is removed once the task counts as healthy.
                if self._shown:
                    await run_until(asyncio.Event(), self._run(session), self._well())
                else:
                    await self._run(session)
                return
            # These affect the entire component, not only this task: the component must join again.
            except (SessionLost, GuardLost, Unavailable):
                raise
            except Exception as error:
                # It was healthy for a while, so this is a new problem.
                if loop.time() - began_s >= WELL_S:
                    tries, pause_s = 0, PAUSE_FIRST_S
                tries += 1
                self._tell(error, pause_s)
                # A damaged record needs a person's repair, so it is shown immediately.
                if tries >= TRIES_MAX or isinstance(error, Undecodable):
                    await self._show(error, tries)
                await self._pause(pause_s, error.path if isinstance(error, Undecodable) else "")
                pause_s = min(3 * pause_s, PAUSE_MAX_S)

    @property
    def _path(self) -> str:
        return self._quarantine.path(self._id)

    @property
    def _shown(self) -> bool:
        return self._context.mirror.get(self._path) is not None

    def _tell(self, error: Exception, pause_s: float) -> None:
        if isinstance(error, Undecodable):
            log.error("%s is stopped: %s; repair or remove it", self._what, error)
        elif transient(error):
            log.warning("%s starts again in %.1f s: %s", self._what, pause_s, error)
        else:
            log.error("%s is stopped, and starts again in %.1f s", self._what, pause_s, exc_info=error)

    async def _show(self, error: Exception, tries: int) -> None:
        ops = self._quarantine.put(self._id, "work", self._what, error, self._tenant, tries=tries)
        try:
            await self._context.store.commit([], ops)
        except (SessionLost, Unavailable):
            raise
        except StoreError as refused:
            log.error("%s is stopped, but that cannot be recorded: %s", self._what, refused)

    async def _pause(self, pause_s: float, damaged: str) -> None:
        """Wait until the pause is over, or until somebody retries the task or repairs the damaged record."""
        mirror, loop = self._context.mirror, asyncio.get_running_loop()
        until_s, shown, was = loop.time() + pause_s, self._shown, mirror.get(damaged)
        with mirror.part(self._path, *([damaged] if damaged else [])) as part:
            while (left_s := until_s - loop.time()) > 0 and mirror.get(damaged) == was:
                if shown and not self._shown:
                    return
                shown = self._shown
                await part.moved_within(left_s, part.moves)

    async def _well(self) -> None:
        await asyncio.sleep(WELL_S)
        await self._quarantine.forget(self._id)
