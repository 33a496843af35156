"""The merger: does the git work that is asked for, several pieces at a time."""

from __future__ import annotations

import logging

import msgspec

from headgate.gate.work import CatAnswer, LandAnswer, MergeAnswer, MergerAnswer, MergerWork, ReportAnswer
from headgate.map.tree import union
from headgate.ports.git import GitWork
from headgate.recipes.codec import decode
from headgate.recipes.requests import Claim
from headgate.services.context import Context
from headgate.services.worker import Worker
from headgate.store.store import Session
from headgate.store.types import Op

log = logging.getLogger("headgate.merger")

JOBS_MAX = 8


class Merger:
    """One component; `run` is its body."""

    def __init__(self, context: Context, git: GitWork, *, jobs_max: int = JOBS_MAX) -> None:
        self._context, self._git, self._jobs_max = context, git, jobs_max

    async def run(self, session: Session) -> None:
        def owner() -> dict[str, object]:
            return {"hostname": self._context.hostname}

        worker = Worker(
            self._context.merges, self._context.mirror, session, self._do, jobs_max=self._jobs_max, owner=owner
        )
        await worker.run()

    async def _do(self, claim: Claim) -> None:
        requests = self._context.merges
        work: MergerWork = decode(await requests.params(claim), union(MergerWork))
        answer = await self._git.do(work)
        if getattr(answer, "error", ""):
            log.info("%s %s: %s", type(work).__name__, claim.request.id, answer.error)
        if claim.request.waited:
            await requests.complete(claim, [], msgspec.json.encode(answer))
        else:
            await requests.complete(claim, self._answer(claim, answer))

    def _answer(self, claim: Claim, answer: MergerAnswer) -> list[Op]:
        """Where the pipeline waits for it; nobody waits for a report."""
        match answer:
            case MergeAnswer() | LandAnswer():
                meta = claim.request.meta
                events = self._context.map.events.tenant(meta["tenant"]).pipelines(meta["pipeline"])
                return events.result.stream.append(answer)
            case ReportAnswer() | CatAnswer():
                return []
