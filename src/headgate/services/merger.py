"""Do the requested git work, several requests at a time."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from headgate.base.tasks import end
from headgate.gate.state import works
from headgate.map.records import ComponentFacts, RepositoryProblem
from headgate.map.tree import union
from headgate.ports.forge import ReporterAway, ReportPutOff
from headgate.ports.observer import WorkDone
from headgate.ports.work import GitWork, Unreachable
from headgate.recipes.claims import Claim
from headgate.recipes.codec import decode
from headgate.recipes.requestforms import Owner
from headgate.services.context import Context
from headgate.services.forgework import HOLDS_MS, why_withheld
from headgate.services.membership import Membership
from headgate.services.orders import shut
from headgate.services.quarantine import TRIES_MAX, Quarantine
from headgate.services.shares import FairSharing
from headgate.services.worker import RequestWorker
from headgate.store.store import Session
from headgate.store.types import Op

log = logging.getLogger("headgate.merger")

JOBS_MAX = 8
# The random part prevents all mergers from contacting a recovering server at the same moment.
RETRY_MIN_S, RETRY_MAX_S = 0.25, 30.0
"""Shortest and longest pause between attempts. The pause grows, and is randomly shortened by up to half."""
SLOW_S = 5.0
UNREACHABLE_MAX_S = 3600.0
"""Time for which work waits for an unusable repository; after that the work fails."""
ANSWER_MAX_BYTES = 200_000
"""Size limit of an answer in an event; a larger answer is stored separately."""
PROBLEM_MAX_CHARS = 1000
"""Limit on the characters of an error that are shown."""


class Merger:
    """Do git work; `run` is the body of the component's `membership`."""

    def __init__(self, context: Context, git: GitWork, *, jobs_max: int = JOBS_MAX) -> None:
        self._context, self._git, self._jobs_max = context, git, jobs_max
        self._away: dict[str, RepositoryProblem] = {}
        """Project -> problem that makes work on it wait; each is logged once."""
        self._waiting = Counter[str]()
        """Project -> number of requests that wait for it."""
        self.membership = Membership(context, "merger", ComponentFacts(places=jobs_max), finishes=True)

    async def run(self, session: Session) -> None:
        self.membership.begins(session)

        def owner() -> Owner:
            return Owner(self._context.settings.hostname, session.name)

        async def do(claim: Claim) -> None:
            await self._do(claim, worker)

        sharing, queues = FairSharing(self.membership), [self._context.merges]
        worker = RequestWorker(
            lambda: queues,
            self._context.mirror,
            session,
            do,
            self._failed,
            tries_max=TRIES_MAX,
            jobs_max=self._jobs_max,
            owner=owner,
            sharing=sharing,
            looked_at=(
                self._context.map.merger.path,
                self._context.map.components.path,
                self._context.map.desired_states.path,
            ),
        )
        await worker.run()

    async def _do(self, claim: Claim, worker: RequestWorker) -> None:
        work: works.MergerWork = decode(await claim.params(self._context.mirror), union(works.MergerWork))
        start_ms = self._context.now_ms()
        answer = await self._patiently(claim, work, worker)
        if answer is None:
            # The request was cancelled, but must still be completed.
            await claim.complete([])
            return
        self._context.observer.done(self._done(claim, answer, start_ms))
        if getattr(answer, "error", ""):
            log.info("%s %s: %s", type(work).__name__, claim.request.id, answer.error)
        if claim.request.waited:
            await claim.complete([], msgspec.json.encode(answer))
        else:
            await self._answered(claim, answer, self._undelivered(claim, work, answer))

    def _undelivered(self, claim: Claim, work: works.MergerWork, answer: works.MergerAnswer) -> list[Op]:
        """Return operations that move a report that the forge rejects to the quarantine."""
        if not (isinstance(work, works.ReportRequest) and isinstance(answer, works.ReportAnswer) and answer.refused):
            return []
        tenant = claim.request.meta.get("tenant", "")
        return Quarantine(self._context).note(claim.request.id, work, tenant, answer.error)

    async def _failed(self, claim: Claim, why: str) -> None:
        """Answer that the work was given up. Use only the request's metadata, because the work may be unreadable."""
        meta, error = claim.request.meta, f"the merger cannot do it: {why}"
        log.error("giving up on %s: %s", claim.request.id, error)
        if claim.request.waited:
            answer = works.CatAnswer(meta.get("project", ""), ok=False, error=error)
            await claim.complete([], msgspec.json.encode(answer))
        elif "landing" in meta:
            await self._answered(
                claim, works.LandAnswer(meta["buildset"], ok=False, error=error, project=meta.get("project", ""))
            )
        elif "buildset" in meta:
            await self._answered(claim, works.MergeAnswer(meta["buildset"], ok=False, error=error))
        else:
            await claim.complete([])

    async def _answered(self, claim: Claim, answer: works.MergerAnswer, besides: Sequence[Op] = ()) -> None:
        large = None
        if isinstance(answer, works.MergeAnswer):
            plain = msgspec.json.encode(answer)
            if len(plain) > ANSWER_MAX_BYTES:
                large, answer = plain, works.MergeAnswer(answer.buildset, answer.ok, apart=claim.result_path)
        await claim.complete([*self._answer(claim, answer), *besides], large)

    async def _patiently(
        self, claim: Claim, work: works.MergerWork, worker: RequestWorker
    ) -> works.MergerAnswer | None:
        """Return the answer once the work is done or has waited too long; None if it was cancelled."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        away: set[str] = set()
        try:
            attempt = 0
            while True:
                try:
                    return await self._tried(claim, await self._up_to_date(claim, work, again=attempt > 0), worker)
                except Unreachable as unreachable:
                    if loop.time() - began_s > min(UNREACHABLE_MAX_S, unreachable.max_s):
                        return unreachable.answer
                    self._waits(unreachable)
                    # Each request counts once for each project, however often it is tried.
                    self._waiting[unreachable.project] += unreachable.project not in away
                    away.add(unreachable.project)
                async with worker.parked(claim):
                    longest_s: float = min(RETRY_MAX_S, RETRY_MIN_S * 2 ** min(attempt, 10))
                    if not await self._pause(claim, longest_s * random.uniform(0.5, 1.0)):
                        return None
                attempt += 1
        finally:
            self._waiting.subtract(away)
            for project in away & self._away.keys():
                if not self._waiting[project]:
                    del self._away[project], self._waiting[project]
            if away:
                self.membership.say(problems=dict(self._away))

    async def _up_to_date(self, claim: Claim, work: works.MergerWork, *, again: bool) -> works.MergerWork:
        """Return the work. For a landing, update whether its queue is closed and, if the forge's last answer is too
        old, whether it may still be pushed. Raise Unreachable."""
        if not isinstance(work, works.LandRequest):
            return work
        context, tenant = self._context, claim.request.meta["tenant"]
        # Read from the store, not the mirror, because nothing may land after the closing of a queue was confirmed.
        work = replace(work, shut=await shut(context, claim.session, tenant, work.pipeline, work.queue))
        # The forge was asked a moment ago, so its answer is still valid.
        if not work.looked_ms or not (again or context.now_ms() - work.looked_ms > HOLDS_MS):
            return work
        try:
            return replace(work, withheld=await why_withheld(context.forges, work, tenant))
        except (ReporterAway, ReportPutOff) as error:
            why = f"is not pushed to, because its forge cannot confirm that the push is still allowed: {error}"
            project = work.change.project
            # The forge may soon be available again; this becomes the answer only if it is not.
            answer = works.LandAnswer(work.buildset, ok=False, error=f"{project} {why}", project=project)
            raise Unreachable(project, why, answer) from error

    async def _tried(self, claim: Claim, work: works.MergerWork, worker: RequestWorker) -> works.MergerAnswer:
        """Return git's answer. Work that takes long, because a server is slow or does not answer, frees its place for
        other work. It continues, and is not handed back when the worker must stop."""
        doing = asyncio.ensure_future(self._git.do(work))
        try:
            await asyncio.wait({doing}, timeout=SLOW_S)
            if not doing.done():
                # A started push may reach the server at any time, so the worker waits for it even when it must stop.
                async with worker.parked(claim, begun=True):
                    await asyncio.wait({doing})
            return await doing
        finally:
            # The git process must not outlive the claim, or two mergers could push the same landing.
            await end(doing)

    def _waits(self, unreachable: Unreachable) -> None:
        if unreachable.project not in self._away:
            log.warning("%s; git work on it waits", unreachable)
            text = f"git work on it waits: it {unreachable.why}"[:PROBLEM_MAX_CHARS]
            self._away[unreachable.project] = RepositoryProblem(self._context.now_ms(), text)
            self.membership.say(problems=dict(self._away))

    async def _pause(self, claim: Claim, pause_s: float) -> bool:
        """Wait for `pause_s` and return True; return False immediately when the request is cancelled."""
        mirror = self._context.mirror
        try:
            async with asyncio.timeout(pause_s):
                with mirror.part(claim.seen.path) as own:
                    while claim.wanted(mirror) != "cancel":
                        await own.moved(own.moves)
                return False
        except TimeoutError:
            return True

    def _done(self, claim: Claim, answer: works.MergerAnswer, start_ms: int) -> WorkDone:
        meta, kind = claim.request.meta, type(answer).__name__.removesuffix("Answer").lower()
        about = {name: meta.get(name, "") for name in ("tenant", "pipeline", "item", "buildset", "change")}
        about["item"] = about["item"] or meta.get("landing", "")
        result = "SUCCESS" if answer.ok else "FAILURE"
        end_ms = self._context.now_ms()
        return WorkDone(kind=kind, id=claim.request.id, result=result, start_ms=start_ms, end_ms=end_ms, **about)

    def _answer(self, claim: Claim, answer: works.MergerAnswer) -> list[Op]:
        """Return the operations that deliver an answer to the waiting pipeline; none if no pipeline waits."""
        match answer:
            case works.MergeAnswer() | works.LandAnswer():
                meta = claim.request.meta
                events = self._context.map.events.tenant(meta["tenant"]).pipelines(meta["pipeline"])
                return events.result.stream.append(answer)
            case _:  # no pipeline waits for other answers
                return []
