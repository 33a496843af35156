"""Run builds, as many at a time as the executor's limit and the load of its machine allow."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Collection
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import quote

import msgspec
from msgspec.structs import replace

from headgate.base.tasks import about, end
from headgate.gate.state.returns import Course, joined
from headgate.gate.state.works import BuildEnded, BuildOutcome, BuildSpec, RepoState
from headgate.map.records import ComponentFacts, ComponentRecord, ZoneLabels
from headgate.ports.logstore import Following
from headgate.ports.observer import WorkDone
from headgate.ports.work import Boundless, BuildHolding, Load, OwnMachines, Runner
from headgate.recipes import blob
from headgate.recipes.claims import Claim
from headgate.recipes.codec import decode, readable
from headgate.recipes.patience import answered
from headgate.recipes.requestforms import Open, Owner
from headgate.recipes.requests import Requests
from headgate.services.autohold import BuildHolder
from headgate.services.contact import ClaimContact, apart, results
from headgate.services.context import Context
from headgate.services.membership import Membership
from headgate.services.nodes.requester import NodeRequester, NoNodes, can_run
from headgate.services.publisher import published_event
from headgate.services.shares import FairSharing
from headgate.services.worker import RequestWorker
from headgate.store.store import Session
from headgate.store.types import At, Conflict

log = logging.getLogger("headgate.executor")

STATES_MAX = 100
"""Limit on the cached repository states, which builds of the same buildset share."""


@dataclass(frozen=True, slots=True)
class ExecutorSettings:
    """Define which builds an executor accepts, and how many."""

    builds_max: int
    zone: str = ""
    unzoned: bool = True
    """Whether an executor of a zone also accepts builds without a zone."""
    labels: Collection[str] = ()
    """Labels of its own machines; empty: it serves all labels."""
    lacks: Collection[str] = ()
    """Display names of the features that its builds lack."""
    beginning_max: int = 0
    """Limit on the builds that start concurrently; one project may start half as many. 0 means no limit. See
    `RequestWorker`."""
    held_max: int = 0
    """Limit on the held builds."""
    containers: bool = False
    """Whether jobs can run in images on this executor."""

    @property
    def serves_unzoned(self) -> bool:
        return self.unzoned or not self.zone


class Executor:
    """Run builds; `run` is the body of the component's `membership`."""

    def __init__(
        self,
        context: Context,
        runner: Runner,
        settings: ExecutorSettings,
        *,
        load: Load | None = None,
        nodes: NodeRequester | None = None,
        keeper: BuildHolding | None = None,
        logs: Following | None = None,
        machines: OwnMachines | None = None,
    ) -> None:
        """Create an executor whose component has the body `run`.

        `keeper` preserves everything that held builds used. `logs` copies the logs of builds to the log store.
        `machines` are the runner's own, which the executor announces. Without `nodes`, every build runs on the
        runner's own resources.
        """
        self._context, self._runner, self._settings = context, runner, settings
        self._load = load or Boundless()
        self._nodes = nodes or NodeRequester(context, dict)
        self._logs, self._machines = logs, machines
        self._holder = BuildHolder(context, keeper, settings.held_max)
        self._states: dict[str, asyncio.Future[RepoState]] = {}
        facts = ComponentFacts(
            places=settings.builds_max,
            zone=settings.zone,
            unzoned=settings.serves_unzoned,
            labels=tuple(sorted(settings.labels)),
            lacks=tuple(settings.lacks),
            containers=settings.containers,
            machines=machines.listed_now() if machines is not None else (),
        )
        self.membership = Membership(context, "executor", facts, finishes=True)

    async def run(self, session: Session) -> None:
        context = self._context
        self.membership.begins(session)

        def owner() -> Owner:
            return Owner(context.settings.hostname, session.name, context.now_ms())

        sharing = FairSharing(self.membership, self._takes, self._load.refuses)
        worker = RequestWorker(
            self._queues,
            context.mirror,
            session,
            lambda claim: self._do(claim, worker),
            self._failed,
            tries_max=1,
            jobs_max=self._settings.builds_max,
            owner=owner,
            sharing=sharing,
            looked_at=(context.map.executor.path, context.map.components.path, context.map.desired_states.path),
            beginning_max=self._settings.beginning_max,
            able=lambda found: can_run(self.membership.record, found),
        )
        besides = [self._tell_labels(), self._holder.run()]
        if self._settings.zone:
            besides.append(self._keep_labels(session))
        if self._machines is not None:
            besides.append(self._tell_machines(self._machines))
        if not isinstance(self._load, Boundless):
            besides.append(sharing.look())
        tasks = [asyncio.ensure_future(one) for one in besides]
        try:
            await worker.run()
        finally:
            await end(*tasks)

    async def _tell_labels(self) -> None:
        """Announce labels until cancelled."""
        with self._context.mirror.part(self._context.map.system.conf.path) as conf:
            while True:
                seen = conf.moves
                self.membership.say(labels=tuple(sorted(self._served())))
                await conf.moved(seen)

    async def _tell_machines(self, machines: OwnMachines) -> None:
        """Announce our machines until cancelled."""
        seen = machines.listed_now()
        while True:
            self.membership.say(machines=seen)
            seen = await machines.changed(seen)

    def _served(self) -> set[str]:
        """Return the labels of our own machines and of our zone's machines, as the tenants currently define them."""
        return {*self._settings.labels, *self._nodes.labels()}

    async def _keep_labels(self, session: Session) -> None:
        """Record our labels for the zone until cancelled. They stay until a person deletes them, so that no other
        machines run these jobs while we are down."""
        context, stored = self._context, self._context.map.executor.zones(self._settings.zone).labels
        with context.mirror.part(context.map.system.conf.path, stored.path) as stirs:
            while True:
                seen, served, entry = stirs.moves, self._served(), context.mirror.get(stored.path)
                known = readable(entry, ZoneLabels) if entry is not None else ZoneLabels(())
                every = served.union(known.labels) if known is not None else set()
                if known is not None and every != set(known.labels):
                    check = At(stored.path, entry.version if entry is not None else None)
                    put = stored.put(ZoneLabels(tuple(sorted(every))))
                    with suppress(Conflict):  # another executor of the zone was faster, and the mirror will show it
                        await answered(session, partial(context.store.commit, [check], [put]))
                await stirs.moved(seen)

    def _queues(self) -> list[Requests]:
        settings = self._settings
        return [self._context.zone(zone) for zone in dict.fromkeys(("",) * settings.serves_unzoned + (settings.zone,))]

    def _takes(self, record: ComponentRecord, found: Open) -> bool:
        zone, queue = record.data.zone, found.queue
        # An executor without containers never takes such a build, so other executors must not leave it to that one.
        if not can_run(record, found):
            return False
        if queue == self._context.builds.places.requests:
            return not zone or record.data.unzoned
        return queue == self._context.zone(zone).places.requests

    async def _do(self, claim: Claim, worker: RequestWorker) -> None:
        with about(build=claim.request.id):
            await self._run_and_answer(claim, worker)

    async def _failed(self, claim: Claim, why: str) -> None:
        """Record a failure, which counts as one attempt at the job."""
        await self._answer(claim, BuildOutcome(build=claim.request.id, error=f"executor: {why}"))

    async def _run_and_answer(self, claim: Claim, worker: RequestWorker) -> None:
        await self._answer(claim, await self._outcome(claim, worker))

    async def _answer(self, claim: Claim, outcome: BuildOutcome) -> None:
        meta = claim.request.meta
        outcome = outcome.fit()
        outcome = replace(outcome, data=self._returned(outcome.data, claim))
        words = ": ".join(text for text in (outcome.result or "to be retried", outcome.error) if text)
        log.info("build %s: %s", outcome.build, words)
        if claim.request.waited:
            # The caller of a manually started build reads the answer itself, and no pipeline waits for it.
            await claim.complete([], msgspec.json.encode(outcome))
            return
        large, small = apart(outcome.data, outcome.secret), outcome
        answer = BuildEnded(meta["buildset"], meta["job"], small)
        if large is not None:
            small = replace(outcome, data={}, secret=None)
            both = outcome.secret is not None
            answer = replace(answer, outcome=small, apart=claim.result_path, both=both)
        # One commit ends the request and answers the pipeline, so that the build never runs again after a crash.
        await claim.complete(results(self._context, meta).append(answer), large)
        self._context.observer.done(
            WorkDone(
                kind="build",
                tenant=meta["tenant"],
                pipeline=meta["pipeline"],
                item=meta.get("item", ""),
                buildset=meta["buildset"],
                change=meta.get("change", ""),
                job=meta["job"],
                id=outcome.build,
                result=outcome.result or "RETRY",
                start_ms=outcome.start_ms or claim.request.owner.start_ms,
                end_ms=outcome.end_ms or self._context.now_ms(),
            )
        )

    async def _outcome(self, claim: Claim, worker: RequestWorker) -> BuildOutcome:
        """Return the outcome, even if the build's description cannot be read. Raise StoreError, or any unexpected
        error."""
        id = claim.request.id
        # Dependent jobs have started after it paused, and its machines are lost with its executor, so it can only start
        # again in another attempt.
        if claim.request.state == "paused":
            return BuildOutcome(build=id, error="its executor was lost while it was paused")
        try:
            spec = decode(await claim.params(self._context.mirror), BuildSpec)
            state = spec.state or await self._state(spec.repo_state)
        except ValueError as error:
            # Unlike a failure of the machine, this would fail again in every attempt.
            return BuildOutcome(build=id, result="ERROR", error=f"the description of the build cannot be read: {error}")
        log.info("build %s: %s of %s for %s", spec.build, spec.job.name, spec.pipeline, spec.change.id)
        if state is None:
            return BuildOutcome(build=spec.build, result="CANCELED", error="the buildset no longer exists")
        return await self._run(claim, spec, state, worker)

    def _returned(self, data: dict[str, Any], claim: Claim) -> dict[str, Any]:
        """Return the returned data with the relative URLs of artifacts made absolute, based on the log URL."""
        zuul = data.get("zuul")
        if not zuul or not zuul.get("artifacts"):
            return data
        ours = f"{self._context.pages.url}/t/{quote(claim.request.meta['tenant'])}/logs/{claim.request.id}/"
        base = zuul.get("log_url") or ours
        artifacts = [{**artifact, "url": joined(base, artifact["url"])} for artifact in zuul["artifacts"]]
        return {**data, "zuul": {**zuul, "artifacts": artifacts}}

    async def _run(self, claim: Claim, spec: BuildSpec, state: RepoState, worker: RequestWorker) -> BuildOutcome:
        """Run the build. Raise StoreError."""
        cancel = asyncio.Event()
        waiting = partial(worker.parked, claim, begun=True)
        begun = partial(worker.begun, claim)
        contact = ClaimContact(
            self._context, claim, cancel, spec.semaphores, self._returned, spec.shared, waiting, begun
        )
        beside = [asyncio.ensure_future(one) for one in (self._watch(claim, cancel), contact.tell_of_failure())]
        try:
            nodes = self._nodes.take(
                claim.session,
                spec,
                cancel,
                precedence=claim.request.precedence,
                # While it waits for machines, its slot is free for builds that have theirs.
                waiting=partial(worker.parked, claim),
            )
            async with nodes as ready:
                if ready is None:
                    return BuildOutcome(build=spec.build, result="CANCELED")
                course = Course(_machines(ready), self._context.now_ms())
                contact.begins(course, partial(self._holder.take, claim, ready))
                async with self._permitted(contact, spec) as permitted:
                    outcome = BuildOutcome(build=spec.build, result="CANCELED")
                    if permitted:
                        outcome = await self._followed(ready, state, contact)
                    outcome = replace(outcome, course=contact.course)
        except NoNodes as none:
            outcome = BuildOutcome(build=spec.build, result="NODE_FAILURE", error=str(none))
        finally:
            await end(*beside)
        # A build that was stopped because the store was unavailable has no outcome of its own.
        if contact.lost:
            raise contact.lost[0]
        return outcome

    async def _followed(self, spec: BuildSpec, state: RepoState, contact: ClaimContact) -> BuildOutcome:
        """Run the build while its logs are copied to the log store. Raise StoreError."""
        await self._tell_of_start(spec)
        async with self._logs.following(spec.build) if self._logs else nullcontext():
            return await self._runner.run(spec, state, contact.cancel, contact)

    @asynccontextmanager
    async def _permitted(self, contact: ClaimContact, spec: BuildSpec) -> AsyncIterator[bool]:
        """Take the semaphores that jobs take after they have their nodes. Yield False if cancelled."""
        wanted = spec.job.semaphores_last
        async with AsyncExitStack() as stack:
            yield not wanted or await stack.enter_async_context(contact.holding(wanted, contact.cancel, None))

    async def _tell_of_start(self, spec: BuildSpec) -> None:
        """Record that the build has started. Raise StoreError."""
        if not self._context.settings.publishing:
            return
        about = published_event(
            "build-started", spec.build, spec.tenant, spec.pipeline, spec.change, spec.item, self._context.now_ms()
        )
        event = replace(about, buildset=spec.buildset, build=spec.build, job=spec.job.name, attempt=spec.attempt)
        # No guard is needed: the event is true even if the executor loses the build now.
        await self._context.store.commit([], self._context.published(event))

    async def _watch(self, claim: Claim, cancel: asyncio.Event) -> None:
        """Watch for a cancellation. Check the desired state after every change, so that a missed change does no
        harm."""
        with self._context.mirror.part(claim.seen.path) as own:
            while not cancel.is_set():
                seen = own.moves
                if claim.wanted(self._context.mirror) == "cancel":
                    cancel.set()
                    return
                await own.moved(seen)

    async def _state(self, path: str) -> RepoState | None:
        """Return the repo state of the buildset, which is read once for all its builds."""
        known = self._states.get(path)
        if known is None:
            # A forgotten state only has to be read again.
            if len(self._states) >= STATES_MAX:
                self._states.clear()
            known = self._states[path] = asyncio.ensure_future(self._read(path))
            known.add_done_callback(partial(self._forget_failed, path))
        try:
            # The read continues for other builds when one build is cancelled.
            return await asyncio.shield(known)
        except LookupError:
            return None

    def _forget_failed(self, path: str, known: asyncio.Future[RepoState]) -> None:
        """Forget a failed read, even if no build waits for it any longer, so that the next build reads again."""
        failed = known.cancelled() or known.exception() is not None
        if failed and self._states.get(path) is known:
            del self._states[path]

    async def _read(self, path: str) -> RepoState:
        # If the mirror does not have all pieces of the state yet, it is read from the store.
        known = blob.mirrored(self._context.mirror, path)
        value = known[0] if known else await blob.read(self._context.store, path)
        if value is None:
            raise LookupError(path)
        return decode(value, RepoState)


def _machines(spec: BuildSpec) -> tuple[str, ...]:
    """Return the nodes of a build with their labels, for display."""
    return tuple(f"{name} ({node.label})" for node in spec.job.nodeset.nodes for name in node.name)
