"""Describe changes and the items of a pipeline for the API, and what the items wait for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from msgspec.structs import replace

from headgate.gate.builds.graph import holding, waiting_for
from headgate.gate.builds.report import approvers, error_of, failing_reasons
from headgate.gate.state.change import Change, ChangeState
from headgate.gate.state.model import Build, Item, Phase, Queue
from headgate.gate.state.world import Closing, closing_of
from headgate.map.inventory.nodes import NodeRequest, NodeWait
from headgate.ports.history import PastRef, named, time_text
from headgate.recipes.codec import readable
from headgate.recipes.requestforms import Request
from headgate.services.context import Context
from headgate.services.nodes.requester import IMAGE, can_run, executors, served_zones
from headgate.services.nodes.status import node_state
from headgate.web.shapes import ItemShape, JobShape, QueueShape, RefShape

HELD = "passed; lands once its queue is opened again"
"""Phase of an item that passed while its queue is closed."""


def ref_shape(change: Change, change_state: ChangeState | None) -> RefShape:
    """Return the shape of a change. `change_state` is the state that its connection reports, for whichever patchset."""
    known = _of(change, change_state)
    return RefShape(
        id=change.id,
        ref=change.ref,
        url=change.url or None,
        project=change.project.partition("/")[2],
        project_canonical=change.project,
        key=change.key,
        change=named(change.name or None),
        patchset=change.commit if change.is_change else None,
        branch=change.branch,
        topic=change.name,
        # As in git, the first line of a message is its subject.
        subject=change.message.splitlines()[0] if change.message else "",
        owner=change.owner,
        proposers=known.proposers,
        approvers=approvers(known),
    )


def past_ref(change: Change, change_state: ChangeState | None) -> PastRef:
    """Return a change in a queue in the form in which the history will record it."""
    known = _of(change, change_state)
    return PastRef(
        project=change.project,
        branch=change.branch or None,
        change=named(change.name or None),
        patchset=change.commit if change.is_change else None,
        ref=change.ref,
        oldrev=change.old_commit or None,
        newrev=None if change.is_change else change.commit,
        ref_url=change.url or None,
        author=change.owner,
        proposers=known.proposers,
        approvers=approvers(known),
    )


def _of(change: Change, change_state: ChangeState | None) -> ChangeState:
    """Return the change state if it is about this patchset, otherwise an empty one."""
    return (
        change_state
        if change_state is not None and change_state.change.commit == change.commit
        else ChangeState(change)
    )


def awaited(context: Context) -> dict[str, str]:
    """Map each build that waits to the reason why."""
    found, mirror, nodes = dict[str, str](), context.mirror, context.map.nodes
    present = executors(context)
    for zone in ("", *context.zone_names()):
        whose = f"an executor of zone {zone}" if zone else "an executor"
        serving = [one for one in present if zone in served_zones(one.data)]
        for open in context.zone(zone).open(mirror):
            if open.request.state == "requested":
                image = open.request.meta.get(IMAGE)
                text = f"{whose} that runs containers, for the image {image}" if image else whose
                able = any(can_run(one, open) for one in serving)
                found[open.request.id] = text if able else f"{text}: none is running"
    for entry in mirror.under(nodes.requests.path):
        request = readable(entry, NodeRequest)
        # A request with an answer already has its machines, although its record still exists.
        if request is not None and mirror.get(nodes.answers(request.id).record.path) is None:
            found[request.build] = f"nodes: {', '.join(label for _, label in request.nodes)}"
    # Working out the line of waiting requests takes time, so skip it if nobody waits.
    if mirror.names(nodes.waits.path):
        _explain(context, found)
    return found


def _explain(context: Context, found: dict[str, str]) -> None:
    """Add why and how long requested machines have been missing, and what was tried."""
    now = node_state(context.map, context.mirror, context.now_ms())
    for place, waiting in enumerate(now.waiting, 1):
        request = waiting.request
        entry = context.mirror.get(context.map.nodes.waits(request.id).record.path)
        wait = readable(entry, NodeWait) if entry is not None else None
        if wait is not None and request.build in found:
            since = (time_text(wait.since_ms) or "").partition(".")[0]
            tried = f"; tried: {'; '.join(wait.tried)}" if wait.tried else ""
            at = f"{place} of {len(now.waiting)} in line"
            found[request.build] += f" ({at}): {wait.why or 'no launcher has any yet'} (since {since} UTC){tried}"


def phase(item: Item) -> str:
    """Return a message about what the item waits for; empty: its jobs show that, or it is in the queue only because
    another item depends on it."""
    buildset = item.buildset
    if not item.live:
        return ""
    if buildset is None:
        return "waiting for its turn"
    if buildset.landing:
        return "landing"
    if item.held_ms:
        return HELD
    if buildset.merge is Phase.RUNNING:
        return "merging"
    return "" if buildset.jobs else str(buildset.merge)


class Estimating(Protocol):
    """Declare a source of estimates of durations."""

    def edition(self) -> int:
        """Return a number that changes whenever `of` may return another value."""
        ...

    def of(self, tenant: str, job: str, project: str, branch: str) -> float | None:
        """Return the estimated duration of a job in seconds; None: unknown."""
        ...


class NoEstimates:
    """Provide no estimates."""

    def edition(self) -> int:
        return 0

    def of(self, tenant: str, job: str, project: str, branch: str) -> float | None:
        return None


class Moment(NamedTuple):
    """Hold all inputs of the shapes of items, besides the items themselves."""

    running: Mapping[str, Request]
    awaited: Mapping[str, str]
    """Build -> why it waits."""
    change_states: Mapping[str, ChangeState]
    """Key of a change -> its state, as its connection reports it."""
    estimates: Estimating
    edition: int
    """Edition of the estimates; shapes of an earlier edition are out of date."""
    root: str
    """Prefix of the addresses of the tenant's pages."""


class ItemFacts(NamedTuple):
    """Hold all facts that determine the shape of an item: equal facts give an equal shape."""

    item: Item
    active: bool
    ahead: str | None
    behind: tuple[str, ...]
    held: bool
    """Whether a job of an item ahead holds back the items behind it."""
    change_states: tuple[ChangeState | None, ...]
    requests: tuple[Request | None, ...]
    """Request of each build for machines; None: it has none. `waits` has the same order."""
    waits: tuple[str | None, ...]
    estimates: Estimating
    edition: int
    root: str


class ShapedItem(NamedTuple):
    """Hold the latest shape of an item with the facts that determined it."""

    facts: ItemFacts
    holds: bool
    """Whether one of its jobs holds back the items behind it."""
    shape: ItemShape


@dataclass(slots=True)
class PipelineShaper:
    """Describe the queues of one pipeline."""

    tenant: str
    pipeline: str
    _known: dict[str, ShapedItem] = field(default_factory=dict)

    def queues(
        self,
        queues: Sequence[Queue],
        now: Moment,
        closings: Sequence[Closing],
        branch_of: Callable[[str], str | None],
    ) -> tuple[QueueShape, ...]:
        """Return the shapes of all queues; `branch_of` returns the branch of a queue by its name."""
        shaped, before = dict[str, ShapedItem](), self._known
        found = []
        for queue in queues:
            shut = closing_of(closings, self.pipeline, queue.name)
            found.append(
                QueueShape(
                    name=queue.name,
                    branch=branch_of(queue.name),
                    window=queue.window,
                    closed=shut.why if shut else "",
                    heads=_heads(self._items(queue, now, before, shaped)),
                )
            )
        self._known = shaped  # without those that have left
        return tuple(found)

    def _items(
        self, queue: Queue, now: Moment, before: Mapping[str, ShapedItem], shaped: dict[str, ShapedItem]
    ) -> Iterator[ItemShape]:
        """Yield the items of a queue in order, and store them in `shaped`."""
        ahead_of, behind, held = _ahead(queue), dict[str, list[str]](), False
        for one, ahead in ahead_of.items():
            behind.setdefault(ahead, []).append(one)
        for position, item in enumerate(queue.items):
            builds = item.buildset.builds.values() if item.buildset is not None else ()
            facts = ItemFacts(
                item,
                # A window of 0 means that there is no limit.
                queue.window == 0 or position < queue.window,
                ahead_of.get(item.id),
                tuple(behind.get(item.id, ())),
                held,
                tuple([now.change_states.get(change.key) for change in item.circle]),
                tuple([now.running.get(build.id) for build in builds]),
                tuple([now.awaited.get(build.id) for build in builds]),
                now.estimates,
                now.edition,
                now.root,
            )
            known = before.get(item.id)
            # Every input of a shape must be among the facts; otherwise viewers would keep seeing the former shape.
            if known is None or known.facts != facts:
                known = self._shaped(facts, now, known)
            shaped[item.id] = known
            held = held or (known.holds and not queue.dynamic)
            yield known.shape

    def _shaped(self, facts: ItemFacts, now: Moment, known: ShapedItem | None) -> ShapedItem:
        item = facts.item
        shape = ItemShape(
            id=item.id,
            active=facts.active,
            live=item.live,
            refs=tuple(ref_shape(*one) for one in zip(item.circle, facts.change_states, strict=True)),
            zuul_ref=f"Z{item.buildset.id}" if item.buildset else "",
            item_ahead=facts.ahead,
            items_behind=facts.behind,
            failing_reasons=tuple(failing_reasons(item)),
            phase=phase(item),
            enqueue_time=item.enqueued_ms,
            jobs=tuple(self._jobs(facts, now)),
        )
        # If the shape is equal, the former object is returned: others detect changes by identity.
        same = known is not None and known.shape == shape
        holds = not item.failing and holding((item,))
        return ShapedItem(facts, holds, known.shape if known is not None and same else shape)

    def _jobs(self, facts: ItemFacts, now: Moment) -> Iterator[JobShape]:
        buildset, change, held = facts.item.buildset, facts.item.change, facts.held
        for job in buildset.jobs if buildset else ():
            assert buildset is not None, "jobs belong to a buildset"
            build = buildset.builds.get(job.id)
            waits = (waiting_for(job, buildset, held=held) if facts.active else "its turn") if build is None else ""
            shown = JobShape(
                name=job.name,
                dependencies=tuple(d.name for d in job.dependencies),
                voting=job.voting,
                pipeline=self.pipeline,
                waiting_status=waits or None,
                estimated_time=now.estimates.of(self.tenant, job.name, change.project, change.branch),
            )
            yield _with_build(shown, build, now) if build else shown


def _with_build(job: JobShape, build: Build, now: Moment) -> JobShape:
    request = now.running.get(build.id)
    # The build's own record gets the start only with its result.
    start_ms = build.start_ms or (request.owner.start_ms if request else 0)
    return replace(
        job,
        uuid=build.id,
        # The address that Zuul's pages use; ours redirect from it to the page of the build.
        url=f"stream/{build.id}?logfile=console.log",
        report_url=f"{now.root}build/{build.id}",
        result=build.result,
        error=error_of(build),
        tries=build.attempt,
        queued=build.result is None and request is None,
        waiting_status=now.awaited.get(build.id) if build.result is None else None,
        running=request is not None and build.result is None,
        execute_time=build.requested_ms / 1000 if build.requested_ms else None,
        start_time=start_ms / 1000 if start_ms else None,
        end_time=build.end_ms / 1000 if build.end_ms else None,
        elapsed_time=build.end_ms - start_ms if start_ms and build.end_ms else None,
        # `status.timed` adds the times of running builds: they would change the tag of the status continuously.
        remaining_time=0 if build.result is not None else None,
        canceled=build.result == "CANCELED",
        paused=build.result is None and build.paused and not build.resumed,
        retry=build.result is None and build.attempt > 1,
        pre_fail=build.pre_fail and build.result is None,
        snapshotting=False,
    )


def _heads(items: Iterator[ItemShape]) -> tuple[tuple[ItemShape, ...], ...]:
    """Split a queue into chains: each item with none ahead begins a new one."""
    heads: list[list[ItemShape]] = []
    for item in items:
        if not heads or (item.item_ahead is None and item.live):
            heads.append([])
        heads[-1].append(item)
    return tuple(tuple(head) for head in heads)


def _ahead(queue: Queue) -> dict[str, str]:
    """Map each item's id to the id of the item that it is tested on top of."""
    of_buildset = {item.buildset.id: item.id for item in queue.items if item.buildset is not None}
    below = {item.id: item.buildset.ahead for item in queue.items if item.buildset is not None}
    return {id: of_buildset[ahead] for id, ahead in below.items() if ahead in of_buildset}
