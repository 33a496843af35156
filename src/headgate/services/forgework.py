"""Pass hints, reports and merge requests to forges, and ask them whether a change may still be pushed."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import msgspec
from msgspec.structs import asdict, replace

from headgate.base.ids import derived, fresh
from headgate.base.texts import line
from headgate.gate.rules.requirements import amiss
from headgate.gate.state.actions import LANDED, SETTLED, Land, MarkLanded
from headgate.gate.state.change import Change
from headgate.gate.state.works import ERROR_SIZE_MAX, Demands, LandAnswer, LandRequest, ReportRequest, RepoState
from headgate.map.connections import Hint
from headgate.map.outbox import OutboxMessage, Pushed, QueueReport
from headgate.ports.forge import Forge, ForgeWatch, MergeLanded, Shows
from headgate.ports.reporter import ReportPutOff, ReportRefused
from headgate.recipes.requestforms import Request
from headgate.services.context import Context
from headgate.services.orders import shut
from headgate.services.publisher import published_event
from headgate.store.store import Session
from headgate.store.types import Op

log = logging.getLogger("headgate.reports")

WAITING_MAX = 500
"""Limit on the hints that wait for one connection; if there are more, the entire connection is checked once instead."""
TAKEN_MAX = 1_000
"""Limit on the hints used for one check."""
LAND = "land"
"""Kind of a report, in addition to the phases of a pipeline: the request to merge a change."""
HOLDS_MS = 10_000
"""Time for which a forge's answer is valid: a merger may start late, or its repository may not answer immediately."""
LAND_MAX_MS = 3_600_000
"""Time for which a merge is retried that the forge delays; after that the landing fails."""
SEEN_MAX_MS = 60_000
"""Time that a forge may take to detect that its branch has the commits of a change."""


async def store_hint(context: Context, connection: str, hint: Hint) -> bool:
    """Store a hint for the watcher of the connection, unless the same hint already waits. If too many wait, store one
    that requests a check of the entire connection instead; return False if too many of those wait as well. Raise
    StoreError.
    """
    stream = context.map.events.connection(connection).events.hints.stream
    waiting = stream.waiting(context.mirror, limit=WAITING_MAX)
    # A request to check the entire connection is also a hint, so twice the limit means that no process consumes hints.
    if stream.length(context.mirror) >= 2 * WAITING_MAX:
        return False
    if len(waiting) >= WAITING_MAX:
        # A check of the entire connection would not find an order.
        if hint.order is not None:
            return False
        # A hint that names no change requests a check of the entire connection.
        hint = Hint(fresh())
    if hint.id not in {one.event.id for one in waiting}:
        await context.store.commit([], stream.append(hint))
    return True


class Hints:
    """Pass the hints of one connection to its forge."""

    def __init__(self, context: Context, forge: ForgeWatch) -> None:
        self._context, self._forge = context, forge
        self._stream = context.map.events.connection(forge.name).events.hints.stream

    async def follow(self) -> None:
        """Pass on all waiting hints, including old ones, because it is unknown how far the last check came."""
        mirror, handed = self._context.mirror, set[str]()
        with mirror.part(self._stream.queue, self._stream.data) as stirs:
            while True:
                seen = stirs.moves
                waiting = self._stream.waiting(mirror, limit=TAKEN_MAX)
                # Removed hints are forgotten, so that the set does not grow.
                handed &= {one.entry for one in waiting}
                for one in waiting:
                    if one.entry not in handed:
                        handed.add(one.entry)
                        self._forge.stir(one.event)
                await stirs.moved(seen)

    def answered(self, ids: Collection[str]) -> list[list[Op]]:
        """Return operations that remove each hint with one of these ids, including repeated ones."""
        if not ids:
            return []
        waiting = self._stream.waiting(self._context.mirror, limit=TAKEN_MAX)
        return [one.consume() for one in waiting if one.event.id in ids]


def to_land(action: Land, item: str, tenant: str, pipeline: str, now_ms: int) -> OutboxMessage:
    """Return the request to land for the outbox of a forge that makes the merge; it is about the first change."""
    work = action.work
    about = published_event("report", action.id, tenant, pipeline, work.change, item, now_ms)
    report = QueueReport(**asdict(replace(about, buildset=work.buildset, message=work.note)), report=LAND)
    return OutboxMessage("", report, key=action.id, change=work.change, land=work)


def to_push(action: Land, item: str, tenant: str, pipeline: str) -> Request:
    """Return the request to a merger to push the landing."""
    meta = {"tenant": tenant, "pipeline": pipeline, "buildset": action.work.buildset, "landing": item}
    # The key is `landing`, not `item`: requests with an item are cancelled when no item needs them, and a landing never
    # is.
    return Request(action.id, action.precedence, meta=meta | change_meta(action.work.change))


def change_meta(change: Change) -> dict[str, str]:
    """Return the description of the change that requests are for."""
    return {"change": change.id, "project": change.project}


def to_mark(action: MarkLanded, tenant: str, now_ms: int) -> OutboxMessage:
    """Return the request to show as merged a change that has landed by a push."""
    outgoing = note(action.id, action.work, tenant, now_ms, LANDED)
    return replace(outgoing, pushed=Pushed(action.work.landed, action.contained))


def trimmed(work: LandRequest) -> LandRequest:
    """Return the request without other projects' parts and without the note."""
    project, state = work.change.project, work.state
    # A forge merges one project; the rest grows with the queue and would only fill the outbox.
    return replace(
        work,
        note="",
        state=RepoState(
            chain=tuple(one for one in state.chain if (one.project, one.commit) == (project, work.change.commit)),
            heads={name: heads for name, heads in state.heads.items() if name == project},
            merged={name: merged for name, merged in state.merged.items() if name == project},
            trees={name: trees for name, trees in state.trees.items() if name == project},
        ),
    )


def note(id: str, work: ReportRequest, tenant: str, now_ms: int, kind: str) -> OutboxMessage:
    """Return a comment on a change, without a vote. `kind` is as in `gate.state.actions.Report`."""
    about = published_event("report", id, tenant, work.pipeline, work.change, "", now_ms)
    return OutboxMessage(
        "", QueueReport(**asdict(replace(about, message=work.note)), report=kind), key=id, change=work.change
    )


async def why_withheld(forges: Mapping[str, Forge], work: LandRequest, tenant: str) -> str:
    """Return a message about why the landing may not be pushed now; empty if it may. Raise ReporterAway, ReportPutOff.

    The forge is asked immediately before the push, because the server does not check a push: an account that may
    bypass the rules of a branch could also push a change whose approval was withdrawn.
    """
    for part in (*work.parts, *work.later):
        change = part.change
        forge, demands = forges.get(change.connection), work.demands.get(change.connection, Demands("git"))
        # A forge that makes the merge checks its own rules.
        if forge is None or forge.can.lands != "push":
            continue
        if why := await _of_one(forge, change, demands, tenant):
            return why
    return ""


async def _of_one(forge: Forge, change: Change, demands: Demands, tenant: str) -> str:
    """Return why one change may not be pushed; empty if it may, or if it has landed: the merger detects that."""
    now = await forge.look_up(change.key)
    if now is None:
        return f"{change.key} no longer exists"
    # Somebody pushed a new patchset after the test; pushing the old one would land a version that nobody wants.
    if now.change.commit != change.commit:
        return f"the head of {change.key} is no longer {change.commit[:12]}, which was tested"
    if now.change.branch != change.branch:
        return f"{change.key} was tested on {change.branch}, but its target branch is now {now.change.branch}"
    # A part of the landing may already have been pushed by an attempt whose answer was lost.
    if now.landed:
        return ""
    return amiss(demands, now, tenant) if now.open else f"{change.key} is closed"


@dataclass(slots=True)
class ForgeReporter:
    """Implement `ports.reporter.Reporter` for a forge."""

    context: Context
    forge: Forge

    async def tell(self, outgoing: OutboxMessage) -> None:
        """Deliver the report. Raise ReporterAway, ReportPutOff, ReportRefused."""
        if outgoing.pushed is not None:
            await self._show(outgoing, outgoing.pushed)
        # If comments cannot be edited, a report that a refusal is settled would only add another comment.
        elif self.forge.can.edits or outgoing.report.report != SETTLED:
            await self.forge.report(outgoing)
            if outgoing.echoes and (change := outgoing.change) is not None:
                hint = Hint(derived("echo", outgoing.key), change.project, change.number)
                # The id is derived from the report, so that a repeated report stores only one hint.
                await store_hint(self.context, self.forge.name, hint)

    async def land(self, outgoing: OutboxMessage, work: LandRequest, session: Session) -> list[Op]:
        """Land the change and return the operations that answer the pipeline, for the commit that ends the request.  Do
        not merge if the queue is closed.  Raise ReporterAway, ReportPutOff."""
        if self.forge.can.lands == "push":
            return await self._push(outgoing, work)
        tenant, pipeline = outgoing.report.tenant, outgoing.report.pipeline
        if await shut(self.context, session, tenant, pipeline, work.queue):
            # The change may have been merged before the queue was closed, by an attempt whose answer was lost.
            change_state = await self.forge.look_up(work.change.key)
            if change_state is None or not change_state.landed or change_state.change.commit != work.change.commit:
                return self._answer(outgoing, _land_answer(work, ok=False, error="its queue is closed", shut=True))
        found = await self.forge.land(work, work.parts[0])
        if isinstance(found, MergeLanded):
            if found.differs:
                log.error("%s has landed as %s, whose tree differs from the tested one", work.change.key, found.commit)
            return self._answer(outgoing, _land_answer(work, ok=True, commit=found.commit, differs=found.differs))
        return self._answer(outgoing, _land_answer(work, ok=False, error=found.why, moved=found.moved))

    # --- landing by a push

    async def _push(self, outgoing: OutboxMessage, work: LandRequest) -> list[Op]:
        """Return the request to a merger, which then answers the pipeline; or the answer, if the forge forbids the
        landing."""
        report = outgoing.report
        forges = {**self.context.forges, self.forge.name: self.forge}
        if why := await why_withheld(forges, work, report.tenant):
            return self._answer(outgoing, _land_answer(work, ok=False, error=why))
        # The merger asks the forge again if it starts more than `HOLDS_MS` after this.
        work = replace(work, looked_ms=self.context.now_ms())
        request = to_push(Land(outgoing.key, work, outgoing.precedence), report.item, report.tenant, report.pipeline)
        return self.context.merges.submit(request, msgspec.json.encode(work))

    async def _show(self, outgoing: OutboxMessage, pushed: Pushed) -> None:
        """Make the forge show the landing. If it does not detect the landing itself, close the change with a comment
        that names the commit."""
        change = outgoing.change
        assert change is not None, "a report to a forge is about a change"
        now = await self.forge.look_up(change.key)
        if now is None or not now.open:
            return
        same = now.change.commit == change.commit  # otherwise more was proposed there since
        # Many forges detect it themselves; a change that is closed too early is shown as closed, not as merged.
        if same and pushed.contained and self.context.now_ms() - outgoing.report.at_ms < SEEN_MAX_MS:
            raise ReportPutOff(f"{change.key} has landed as {pushed.commit[:12]}, but its forge does not show that yet")
        refused: ReportRefused | None = None
        try:
            # The comment names the resulting commit, so it comes before the change is closed.
            await self.forge.report(replace(outgoing, pushed=None, how={"comment": True}))
        except ReportRefused as error:  # the change is closed even if comments are not allowed
            refused = error
        # If more was proposed there since, the change stays open for it.
        if same and isinstance(self.forge, Shows):
            await self.forge.conclude(change, pushed.commit)
        if refused is not None:
            raise refused

    def given_up(self, outgoing: OutboxMessage, work: LandRequest, why: str) -> list[Op]:
        """Return the answer that the forge did not merge the change."""
        return self._answer(outgoing, _land_answer(work, ok=False, error=f"the forge did not merge it: {why}"))

    def _answer(self, outgoing: OutboxMessage, answer: LandAnswer) -> list[Op]:
        events = self.context.map.events.tenant(outgoing.report.tenant).pipelines(outgoing.report.pipeline)
        return events.result.stream.append(answer)


def _land_answer(
    work: LandRequest,
    *,
    ok: bool,
    error: str = "",
    moved: bool = False,
    shut: bool = False,
    commit: str = "",
    differs: bool = False,
) -> LandAnswer:
    return LandAnswer(
        work.buildset,
        ok,
        moved,
        line(error, ERROR_SIZE_MAX),
        shut,
        work.change.project,
        work.change.key,
        commit,
        differs,
    )
