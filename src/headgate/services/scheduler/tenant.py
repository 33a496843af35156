"""Forward the events of one tenant to its pipelines, and read its configuration again when it changes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence

import msgspec

from headgate.base.ids import derived, fresh
from headgate.config.operator.model import included
from headgate.gate.items.enqueue import untaken
from headgate.gate.rules.requirements import triggers
from headgate.gate.state.change import HEADS, EventKind, TriggerEvent, whose
from headgate.gate.state.works import CatAnswer, ReportRequest
from headgate.map import records
from headgate.map.projects import layout_at, layout_ops
from headgate.map.tree import Undecodable
from headgate.recipes.calls import call
from headgate.recipes.lock import lock, write_lock
from headgate.recipes.requestforms import Request
from headgate.recipes.stream import StreamConsumer, Unread, consumed
from headgate.services.configuration import Configuration, protection, stored_branches
from headgate.services.context import Context
from headgate.services.orders import state_of, tell
from headgate.services.quarantine import TRY_AGAIN_S, Quarantine, Tries, error_text, transient
from headgate.services.scheduler import tenantconfig
from headgate.services.scheduler.turn import TurnPart, packed, together
from headgate.store.store import Session
from headgate.store.types import At, Delete, Op

log = logging.getLogger("headgate.tenant")

EVENTS_MAX = 15
BRANCHES_MAX = 500
"""Limit on consecutive events that each change the configuration of a branch but no pipeline; one read serves all of
them."""
READING_PRECEDENCE = 100
BEHIND_RETRY_S = 0.5
"""First pause before stored texts that do not match the layout record are checked again; it doubles each time."""
BEHIND_S = 5.0
"""Time for which texts that the layout record names may be missing, for example because they are being written. After
that they are read again."""
UNREAD_RETRY_S = 30.0
"""Pause before a project whose configuration could not be read is tried again."""


class TenantRunner:
    """Run one tenant. One process at a time calls `run`: the one that holds the locks of the tenant's two queues."""

    def __init__(
        self, context: Context, configuration: Configuration, readings: dict[str, tenantconfig.Reading]
    ) -> None:
        """Create a runner. `readings` maps each canonical project to how it is read for all its tenants."""
        self._context, self._configuration = context, configuration
        self._tenant = configuration.tenant
        self._readings = {p.project: readings[p.project] for p in self._tenant.projects}
        self._trusted = {p.project for p in self._tenant.projects if p.trusted}
        self._files = tenantconfig.ConfigFileWriter(context)
        self._events = context.map.events.tenant(self._tenant.name)
        self._unread: dict[str, str] = {}
        """Project that could not be read -> reason."""
        self._triggers = StreamConsumer(self._events.trigger.stream, context.mirror, whose)
        self._quarantine, self._tries = Quarantine(context), Tries()
        self._most = EVENTS_MAX
        """Limit on the requests handled together; it shrinks after an error."""
        self._announced: object = None
        """The layout whose providers were last written for launchers."""

    async def run(self, session: Session) -> None:
        locks, store, name = self._context.map.locks, self._context.store, self._tenant.name
        async with (
            lock(store, session, locks.events.management(name).lock.path).hold() as management,
            lock(store, session, locks.events.trigger(name).lock.path).hold() as trigger,
        ):
            await self._catch_up(session)
            await self._loop(session, management, trigger)

    async def _catch_up(self, session: Session) -> None:
        """Read the projects that the last holder of the locks did not have, read with other settings, or could not
        read, and those that others have read in the meantime. All others are up to date, because later pushes are
        queued as events.
        """
        place = self._context.map.layout(self._tenant.name).record
        entry = await self._context.store.get(place.path)
        if entry is not None:
            # The mirror may lack the writes that the last holder made just before it lost the locks.
            await self._context.mirror.reached(entry.path, entry.version)
        record = self._record()
        had = record.branches if record is not None else {}
        unread = [p for p, reading in self._readings.items() if p not in had or not self._files.has(reading)]
        behind = dict.fromkeys([*unread, *self._behind()])
        if behind or had.keys() != self._readings.keys():
            await self._reconfigure(list(behind), session)
        await self._keep_current(session)

    async def _keep_current(self, session: Session) -> None:
        """Read until the stored texts match the layout record."""
        wait_s = BEHIND_RETRY_S
        # Several tenants share the stored texts, and each writes its own record, so the two may differ for a moment.
        while not self._current():
            await self._reconfigure(self._behind() or list(self._readings), session)
            # Another tenant may be reading, or a stored file is damaged while the git server is unavailable.
            if not self._current():
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, UNREAD_RETRY_S)

    def _current(self) -> bool:
        """Return whether the layout is current; rewrite a damaged record."""
        try:
            return self._configuration.current()
        except Undecodable as damaged:
            log.error("tenant %s: %s; its configuration is read again", self._tenant.name, damaged)
            return False

    def _behind(self) -> list[str]:
        """Return the projects whose stored texts differ from those that the layout record names."""
        record = self._record()
        had = {p: tenantconfig.expected(record, p) if record is not None else {} for p in self._readings}
        return [
            p
            for p in had
            if had[p] != {branch: one.digest for branch, one in stored_branches(self._context, p).items()}
        ]

    def _record(self) -> records.LayoutRecord | None:
        """Return the layout record as the mirror shows it, or None if it cannot be read."""
        return layout_at(self._context.map.layout(self._tenant.name).record, self._context.mirror)

    def _held(self, project: str) -> list[str]:
        """Return the branches whose configuration is not in effect."""
        record = self._record()
        return list(record.held.get(project, {})) if record is not None else []

    async def _loop(self, session: Session, management: At, trigger: At) -> None:
        events = self._events
        prefixes = (events.management.path, events.trigger.path, events.state.path, self._context.map.config.path)
        own = self._context.map.layout(self._tenant.name).path
        with self._context.mirror.part(*prefixes, own) as stirs:
            while True:
                seen = stirs.moves
                if await self._managed(session, management) or await self._trigger(trigger):
                    continue
                behind = not self._current()
                if not behind:
                    # Launchers get the providers of a layout only once it is in effect.
                    await self._write_providers(session)
                try:
                    async with asyncio.timeout(BEHIND_S if behind else UNREAD_RETRY_S if self._unread else None):
                        await stirs.moved(seen)
                except TimeoutError:
                    if behind and not self._current():
                        await self._keep_current(session)
                    else:
                        await self._reconfigure(sorted(self._unread), session)

    # --- events

    async def _trigger(self, guard: At) -> bool:
        """Forward trigger events to the pipelines that they may concern, taking projects in turn, and stop after those
        that change configuration. An event is removed once all pipelines have it. Return whether any event was
        handled."""
        state = state_of(self._context, self._tenant.name)
        waiting = () if state.trigger_queue_paused else self._triggers.waiting(BRANCHES_MAX)
        if not waiting:
            return False
        pieces, anew = list[TurnPart](), set[str]()
        """`anew`: projects whose configuration changed."""
        for position, event in enumerate(waiting):
            try:
                forwarded = [] if state.trigger_queue_discarding else list(self._forward(event.event))
                changed = self._configuration_in(event.event)
                # Later events may be for pipelines or jobs that a changed configuration adds, so they wait until
                # `_managed` has read it.
                if changed is None and (anew or position >= EVENTS_MAX):
                    break
            except Exception as error:
                if not self._tries.spent(event.entry):
                    log.exception("tenant %s: %s could not be forwarded", self._tenant.name, event.entry)
                    await asyncio.sleep(TRY_AGAIN_S)
                    break
                queue = self._events.trigger.stream.queue
                pieces.append(TurnPart(self._quarantine.event(event, queue, error, self._tenant.name)))
                continue
            if changed is None:
                pieces += together([*forwarded, TurnPart(event.consume())])
                continue
            # One read serves several pushes to a project, provided that it starts after the last of them.
            unread = changed.projects.keys() - anew
            ops = self._events.management.stream.append(changed) if unread else []
            pieces += together([*forwarded, TurnPart([*ops, *event.consume()])])
            anew |= unread
            if event.event.change.project in self._trusted:
                break  # later events may be for pipelines that this configuration changes
        for commit in packed(pieces):
            await self._context.store.commit([], commit.ops, guards=[guard])
        gone = [op.path for piece in pieces for op in piece.ops if isinstance(op, Delete)]
        for path in gone[-1:]:
            # Events are consumed in order, so all earlier ones are also gone.
            await self._context.mirror.gone(path)
        return True

    def _forward(self, event: TriggerEvent) -> Iterable[TurnPart]:
        """Return operations that forward an event to the pipelines that it triggers. Events about patchsets go to all
        pipelines, because any may contain an older patchset; updates of a branch go to all dependent pipelines."""
        news = event.kind in (EventKind.PROPOSED, EventKind.ABANDONED)
        moved = event.kind is EventKind.REF_UPDATED
        for name, pipeline in self._configuration.layouts.landed.pipelines.items():
            if news or (moved and pipeline.manager == "dependent") or triggers(pipeline, event):
                yield TurnPart(self._events.pipelines(name).trigger.stream.append(event))
        yield from self._answer(event)

    def _answer(self, event: TriggerEvent) -> Iterable[TurnPart]:
        """Return operations that report on a proposal or approval on plain git that no pipeline enqueues, with a note
        and an entry in the history."""
        if event.shared or event.change.number or event.kind not in (EventKind.PROPOSED, EventKind.APPROVED):
            return
        layout, context, tenant = self._configuration.layouts.landed, self._context, self._tenant.name
        why = untaken(event, layout.pipelines.values(), layout)
        if not why:
            return
        change, id = event.change, derived("untaken", tenant, event.id)
        work = ReportRequest(change, f"tenant {tenant}", why)
        meta = {"tenant": tenant, "pipeline": "", "change": change.id, "project": change.project}
        yield TurnPart(context.merges.submit(Request(id, meta=meta), msgspec.json.encode(work)))
        now_ms = context.now_ms()
        finished = records.Finished(id, tenant, "", change, event.id, "NO_JOBS", why, event.at_ms or now_ms, now_ms)
        yield TurnPart(context.map.history.stream.append(finished))

    def _configuration_in(self, event: TriggerEvent) -> records.Reconfigure | None:
        change = event.change
        source = self._tenant.find(change.project)
        if event.kind is not EventKind.REF_UPDATED or source is None or not change.ref.startswith(HEADS):
            return None
        if not included(msgspec.structs.replace(source, protection=protection(self._context, source)), change.branch):
            return None
        # A new or deleted branch adds or removes all of its files.
        created_or_deleted = "0" * 40 in (change.old_commit, change.commit)
        if created_or_deleted or self._readings[change.project].touched_by(change.files, change.branch):
            return records.Reconfigure({change.project: ()})
        return None

    async def _managed(self, session: Session, guard: At) -> bool:
        """Handle management requests; after an error, handle one request at a time, to find the faulty one."""
        stream = self._events.management.stream
        waiting = stream.waiting(self._context.mirror, limit=self._most)
        if not waiting:
            return False
        try:
            await self._manage(waiting, session, guard)
            self._most = EVENTS_MAX
        except Exception as error:
            if transient(error):
                raise
            log.exception("tenant %s: a management request failed", self._tenant.name)
            if len(waiting) == 1 and self._tries.spent(waiting[0].entry):
                ops = self._quarantine.event(waiting[0], stream.queue, error, self._tenant.name)
                await self._context.store.commit([], ops, guards=[guard])
                await self._context.mirror.gone(waiting[0].entry)
            self._most = 1
            await asyncio.sleep(TRY_AGAIN_S)
        return True

    async def _manage(self, waiting: Sequence[Unread[records.Management]], session: Session, guard: At) -> None:
        ops: list[Op] = consumed(waiting)
        projects: dict[str, tuple[str, ...]] = {}
        answers: dict[str, str] = {}
        """Path of the expected answer -> why the request failed."""
        reread: dict[str, Sequence[str]] = {}
        """Path of the expected answer -> projects."""
        for event in waiting:
            match event.event:
                case records.Reconfigure(projects=named):
                    projects |= named
                case records.Reread(projects=named, result=result):
                    reread[result] = named or tuple(self._readings)
                    projects |= dict.fromkeys(reread[result], ())
                case records.ForPipeline(pipeline=name, result=result):
                    known = name in self._configuration.layouts.landed.pipelines
                    if known:
                        ops += self._events.pipelines(name).management.stream.append(event.event)
                    elif result:
                        answers[result] = f"tenant {self._tenant.name} has no pipeline {name}"
        # The requests are consumed after this: after a crash they are carried out again, which is harmless.
        if projects:
            await self._reconfigure([project for project in projects if project in self._readings], session)
        await self._context.store.commit([], ops, guards=[guard])
        for path, read in reread.items():
            unread = [f"{p} cannot be read: {self._unread[p]}" for p in read if p in self._unread]
            wrong = [f"{p} {branch} is not in effect: see its errors" for p in read for branch in self._held(p)]
            answers[path] = "; ".join([*unread, *wrong])
        for path, why in answers.items():
            # After a crash before this, the caller gets no answer, but never a wrong one.
            await tell(self._context, path, records.ManagementResult(not why, why))
        await self._context.mirror.gone(waiting[-1].entry)

    # --- configuration

    async def _reconfigure(self, projects: list[str], session: Session) -> None:
        """Read the configuration of these projects again and put the result into effect, here and everywhere."""
        store, mirror, name = self._context.store, self._context.mirror, self._tenant.name
        # This precedes the read: every later push has an event that causes another read.
        ltime = await self._files.ltime()
        answers = await asyncio.gather(*(self._read(project, session) for project in projects))
        # Reading takes long and needs no lock, but only one process at a time may write the tenant's layout.
        async with write_lock(store, session, self._context.map.locks.tenant(name).lock.path).hold() as guard:
            for project, answer in zip(projects, answers, strict=True):
                try:
                    await self._take(project, answer, ltime, session, guard)
                except Exception as error:
                    if transient(error):
                        raise
                    # One project that cannot be stored must not block the others.
                    failed = CatAnswer(project, ok=False, error=f"it cannot be stored: {error_text(error)}")
                    await self._take(project, failed, ltime, session, guard)
            # `in_force` reads the mirror, which may lack the texts that were just written.
            await self._files.seen([guard])
            before = self._record()
            now = tenantconfig.in_force(self._context, self._configuration, before, self._readings)
            record = records.LayoutRecord(fresh(), name, self._context.now_ms(), ltime, *now)
            pieces, pointer, stale = layout_ops(self._context.map.layout(name).record, record, mirror)
            # These come before the record, or a crash could lose them; their ids are derived, so repeating them is
            # safe.
            for commit in packed(tenantconfig.announcements(self._context, self._configuration, before, now)):
                await store.commit([], commit.ops, guards=[guard])
            # The pieces of a large record come before the pointer to them, so that nobody sees an incomplete record.
            for piece in pieces:
                await store.commit([], [piece], guards=[guard])
            (written, *_) = await store.commit([], [pointer, *stale], guards=[guard])
        assert written is not None, "a put answers with its entry"
        await mirror.reached(written.path, written.version)
        # Texts that only the old record named may be deleted after the new record is written.
        await self._files.forget(session, projects)

    async def _write_providers(self, session: Session) -> None:
        """Write the providers of the configuration in effect to where launchers read them."""
        layout, name = self._configuration.layouts.landed, self._tenant.name
        if layout is self._announced or not (ops := tenantconfig.provider_ops(self._context, name, layout)):
            self._announced = layout
            return
        place = self._context.map.locks.tenant(name).lock.path
        async with write_lock(self._context.store, session, place).hold() as guard:
            # The records are independent, so the writes need no common commit.
            for op in ops:
                await self._context.store.commit([], [op], guards=[guard])
        self._announced = layout

    async def _read(self, project: str, session: Session) -> CatAnswer:
        work = self._readings[project].now(self._context).work
        meta = {"tenant": self._tenant.name, "project": project}
        body = msgspec.json.encode(work)
        answer = await call(self._context.merges, session, body, precedence=READING_PRECEDENCE, meta=meta)
        return msgspec.json.decode(answer, type=CatAnswer)

    async def _take(self, project: str, answer: CatAnswer, ltime: int, session: Session, guard: At) -> None:
        """Store the read texts in the shared cache; a project that cannot be read keeps its last content."""
        if not answer.ok:
            if project not in self._unread:
                text = "tenant %s: %s: %s; keeping its last known configuration"
                log.error(text, self._tenant.name, project, answer.error)
            self._unread[project] = answer.error
            await self._files.miss(self._readings[project], ltime, guard)
            return
        if project in self._unread:
            log.info("tenant %s: %s can be read again", self._tenant.name, project)
            del self._unread[project]
        await self._files.remember(session, self._readings[project], answer, ltime, guard)
