"""What a forge is told, and what it is asked to merge: the last one answers the pipeline that waits for it."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from headgate.base.texts import line
from headgate.gate.work import ERROR_SIZE_MAX, LandAnswer, LandRequest
from headgate.map.telling import Posting
from headgate.ports.forge import Forge, Landed
from headgate.services.context import Context
from headgate.services.orders import shut
from headgate.store.store import Session
from headgate.store.types import Op

log = logging.getLogger("headgate.reports")

LAND_MAX_MS = 3_600_000
"""For so long a forge is asked to merge what it puts off; then that is the answer."""


@dataclass(slots=True)
class ForgeReporter:
    """See `ports.reporter.Reporter`."""

    context: Context
    forge: Forge

    async def tell(self, posting: Posting) -> None:
        """Raises ReporterAway, ReportPutOff, ReportRefused."""
        await self.forge.report(posting)

    async def land(self, posting: Posting, work: LandRequest, session: Session) -> list[Op]:
        """Return the answer of the forge, for the commit that ends the request.  What people closed meanwhile is not
        merged.  Raises ReporterAway, ReportPutOff."""
        tenant, pipeline = posting.report.tenant, posting.report.pipeline
        if await shut(self.context, session, tenant, pipeline, work.queue):
            standing = await self.forge.look_up(work.change.key)
            if standing is None or not standing.landed or standing.change.commit != work.change.commit:
                return self._answer(posting, _of(work, ok=False, error="its queue is closed", shut=True))
        found = await self.forge.land(work, work.parts[0])
        if isinstance(found, Landed):
            if found.differs:
                log.error("%s has landed as %s, which is not the tree that was tested", work.change.key, found.commit)
            return self._answer(posting, _of(work, ok=True, commit=found.commit, differs=found.differs))
        return self._answer(posting, _of(work, ok=False, error=found.why, moved=found.moved))

    def given_up(self, posting: Posting, work: LandRequest, why: str) -> list[Op]:
        """Return the answer that the forge could not be had to merge it."""
        return self._answer(posting, _of(work, ok=False, error=f"the forge did not merge it: {why}"))

    def _answer(self, posting: Posting, answer: LandAnswer) -> list[Op]:
        events = self.context.map.events.tenant(posting.report.tenant).pipelines(posting.report.pipeline)
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
