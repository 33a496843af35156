"""Deliver reports to a forge, and ask it to merge: the answer to that goes to the pipeline that waits for it.

Where changes land by a push, the forge is asked first whether it may still be, then a merger pushes and answers, and
once that is recorded the forge is to show it: by itself, or the change is closed with a word that names the commit.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import msgspec
from msgspec.structs import replace

from headgate.base.ids import derived
from headgate.base.texts import line
from headgate.gate.actions import SETTLED, Land
from headgate.gate.work import ERROR_SIZE_MAX, LandAnswer, LandRequest
from headgate.map.outbox import OutboxMessage, Pushed
from headgate.ports.forge import Forge, Hint, MergeLanded, Shows
from headgate.ports.reporter import ReportPutOff, ReportRefused
from headgate.services.context import Context
from headgate.services.forgerequests import to_push
from headgate.services.orders import shut
from headgate.services.pushes import kept_back
from headgate.services.scheduler.hints import store_hint
from headgate.store.store import Session
from headgate.store.types import Op

log = logging.getLogger("headgate.reports")

LAND_MAX_MS = 3_600_000
"""Time for which a forge is asked to merge a change that it delays; then the delay is the answer."""
SEEN_MAX_MS = 60_000
"""Time that a forge may take to notice that its branch has the commits of a change."""


@dataclass(slots=True)
class ForgeReporter:
    """Implement `ports.reporter.Reporter` for a forge."""

    context: Context
    forge: Forge

    async def tell(self, outgoing: OutboxMessage) -> None:
        """Deliver the report. Raise ReporterAway, ReportPutOff, ReportRefused."""
        if outgoing.pushed is not None:
            await self._show(outgoing, outgoing.pushed)
        # Where comments cannot be edited, a word that something is settled would be one more comment.
        elif self.forge.can.edits or outgoing.report.report != SETTLED:
            await self.forge.report(outgoing)
            if outgoing.echoes and (change := outgoing.change) is not None:
                hint = Hint(derived("echo", outgoing.key), change.project, change.number)
                # The id is derived from the report, so a repeated one leaves one hint.
                await store_hint(self.context, self.forge.name, hint)

    async def land(self, outgoing: OutboxMessage, work: LandRequest, session: Session) -> list[Op]:
        """Return the answer of the forge, for the commit that ends the request.  What people closed meanwhile is not
        merged.  Raise ReporterAway, ReportPutOff."""
        if self.forge.can.lands == "push":
            return await self._push(outgoing, work)
        tenant, pipeline = outgoing.report.tenant, outgoing.report.pipeline
        if await shut(self.context, session, tenant, pipeline, work.queue):
            # It may have been merged before the queue was closed, with the answer lost.
            change_state = await self.forge.look_up(work.change.key)
            if change_state is None or not change_state.landed or change_state.change.commit != work.change.commit:
                return self._answer(outgoing, _of(work, ok=False, error="its queue is closed", shut=True))
        found = await self.forge.land(work, work.parts[0])
        if isinstance(found, MergeLanded):
            if found.differs:
                log.error("%s has landed as %s, which is not the tree that was tested", work.change.key, found.commit)
            return self._answer(outgoing, _of(work, ok=True, commit=found.commit, differs=found.differs))
        return self._answer(outgoing, _of(work, ok=False, error=found.why, moved=found.moved))

    # --- landing by a push

    async def _push(self, outgoing: OutboxMessage, work: LandRequest) -> list[Op]:
        """Return the request to a merger, which answers; or the answer, if the forge forbids the landing."""
        report = outgoing.report
        forges = {**self.context.forges, self.forge.name: self.forge}
        if why := await kept_back(forges, work, report.tenant):
            return self._answer(outgoing, _of(work, ok=False, error=why))
        # The merger asks again if it starts later than `HOLDS_MS` after this.
        work = replace(work, looked_ms=self.context.now_ms())
        request = to_push(Land(outgoing.key, work, outgoing.precedence), report.item, report.tenant, report.pipeline)
        return self.context.merges.submit(request, msgspec.json.encode(work))

    async def _show(self, outgoing: OutboxMessage, pushed: Pushed) -> None:
        """Make the forge show the landing."""
        change = outgoing.change
        assert change is not None, "what is told at a forge is told of a change"
        now = await self.forge.look_up(change.key)
        if now is None or not now.open:
            return
        same = now.change.commit == change.commit  # otherwise more was proposed there since
        # Many forges notice by themselves; a change that is closed too early is shown as closed, not as merged.
        if same and pushed.contained and self.context.now_ms() - outgoing.report.at_ms < SEEN_MAX_MS:
            raise ReportPutOff(f"{change.key} has landed as {pushed.commit[:12]}, which is not shown there yet")
        refused: ReportRefused | None = None
        try:
            # People read first which commit it became, then it is closed.
            await self.forge.report(replace(outgoing, pushed=None, how={"comment": True}))
        except ReportRefused as error:  # where nobody may comment, it is closed all the same
            refused = error
        # If more was proposed there since, the change stays open for it.
        if same and isinstance(self.forge, Shows):
            await self.forge.conclude(change, pushed.commit)
        if refused is not None:
            raise refused

    def given_up(self, outgoing: OutboxMessage, work: LandRequest, why: str) -> list[Op]:
        """Return the answer that the forge did not merge the change."""
        return self._answer(outgoing, _of(work, ok=False, error=f"the forge did not merge it: {why}"))

    def _answer(self, outgoing: OutboxMessage, answer: LandAnswer) -> list[Op]:
        events = self.context.map.events.tenant(outgoing.report.tenant).pipelines(outgoing.report.pipeline)
        return events.result.stream.append(answer)


def _of(
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
