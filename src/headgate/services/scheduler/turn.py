"""Record a pipeline's turn in the store.

A turn normally takes one commit.  A larger turn takes several, and is split only where every prefix is a state from
which the next turn can continue.  The order is: entries to which nothing refers yet; complete items; complete builds
(their answers must find them); reports on items that leave (repeating a report changes nothing); the queues; the
removal of events; and deletions of unneeded entries.  A new queue is written before the pipeline's record that names
it, and that record before changes of other queues, for which the new queue may have been created.  The scheduler that
takes over cancels requests that an interrupted turn leaves without an owner.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import assert_never

import msgspec
from msgspec.structs import replace

from headgate.base.ids import fresh
from headgate.config.model import FrozenJob
from headgate.gate.builds.report import approvers
from headgate.gate.rules.requirements import vouching
from headgate.gate.state import actions as gate_actions
from headgate.gate.state.change import Change, ChangeState, Tell
from headgate.gate.state.management import Dequeue
from headgate.gate.state.model import Item, State
from headgate.gate.state.works import BuildOutcome
from headgate.map.places import Map
from headgate.map.records import Finished, ForPipeline
from headgate.map.state import writes
from headgate.recipes.mirror import Mirror
from headgate.recipes.requestforms import Open, Request
from headgate.recipes.requests import Requests
from headgate.services.context import COMMIT_OPS_MAX, Outboxes
from headgate.services.forgework import change_meta, note, to_land, to_mark, to_push, trimmed
from headgate.services.nodes.requester import IMAGE
from headgate.services.scheduler.bygone import Bygone
from headgate.services.scheduler.changestates import remember, shown
from headgate.store.types import COMMIT_SIZE_MAX_BYTES, PARENTS_MAX, Append, At, Delete, Op, Put

# A third is left for checks, guards and the backends' overhead, which `packed` does not count.
SIZE_MAX_BYTES = COMMIT_SIZE_MAX_BYTES * 2 // 3


@dataclass(slots=True)
class TurnPart:
    """Hold operations that must stay together, and the checks under which they are valid."""

    ops: list[Op] = field(default_factory=list)
    checks: list[At] = field(default_factory=list)
    item: str = ""
    """The item that the part belongs to; empty if it does not belong to exactly one."""

    @property
    def fits(self) -> bool:
        """Return whether it fits into one commit, including guards."""
        size_bytes = sum(len(op.path) + len(op.value) for op in self.ops if isinstance(op, Put))
        return max(len(self.ops), len(self.checks)) <= COMMIT_OPS_MAX and size_bytes < COMMIT_SIZE_MAX_BYTES


@dataclass(slots=True)
class PipelineTurn:
    """Write one pipeline's turn to the store."""

    map: Map
    tenant: str
    pipeline: str
    builds: Callable[[FrozenJob], Requests]
    """Returns the queue for a job: that of its zone."""
    merges: Requests
    notified: Mapping[str, Open]
    """Requests whose workers must be told to stop or continue, by id."""
    mirror: Mirror
    now_ms: int
    outcomes: Mapping[str, BuildOutcome] = field(default_factory=dict)
    """Build -> its outcome, for builds whose end the turn absorbs."""
    outboxes: Outboxes = field(default_factory=Outboxes)
    remembers: bool = True
    """Whether the history also records replaced items and builds."""

    def pieces(
        self,
        before: State,
        after: State,
        actions: Sequence[gate_actions.Action],
        ends: Sequence[TurnPart],
        reported: Sequence[TurnPart] = (),
    ) -> list[TurnPart]:
        """Return the parts to commit, in order.

        `ends`: parts that remove the events and publish the turn's events.  `reported`: parts with reports; they
        precede the removal of items, so that an interrupted turn repeats reports instead of losing them.
        """
        place = self.map.tenant(self.tenant).pipeline(self.pipeline)
        actions = _lasting(actions)
        diff = writes(place, before, after)
        runs = {action.id: action for action in actions if isinstance(action, gate_actions.Run)}
        cancelled = {action.id for action in actions if isinstance(action, gate_actions.Cancel)}
        past = Bygone(self.tenant, self.pipeline, self.now_ms, self.notified, self.outcomes)
        out = [TurnPart([op]) for op in diff.fresh]
        # The history comes first: recording twice does no harm, but once an item is gone, its data is lost.
        if self.remembers:
            out += [TurnPart(self.map.history.stream.append(one)) for one in past.superseded(before, after, actions)]
        builds = {
            id: TurnPart(self._build(ops, run := runs.get(id), id in cancelled), item=run.spec.item if run else "")
            for id, ops in diff.builds.items()
        }
        items = {id: TurnPart(ops, item=id) for id, ops in diff.items.items()}
        of, giving_up = by_buildset(after), _giving_up(before, after)
        reports, unwanted = [*reported], list[TurnPart]()
        for action in actions:
            # A landing is requested together with the item's record that marks it as landing.
            if isinstance(action, gate_actions.Land):
                item = of.get(action.work.buildset)
                piece = items.setdefault(item.id if item is not None else "", TurnPart(item=item.id if item else ""))
                piece.ops += self._landing(action, item)
            # A cancellation goes together with the build or item that it changes, or last if neither exists any more.
            elif isinstance(action, gate_actions.Cancel | gate_actions.Resume):
                piece = self._word(action)
                if (with_it := builds.get(action.id)) is not None:
                    with_it.ops += piece.ops
                    with_it.checks += piece.checks
                elif (item_id := giving_up.get(action.id)) is not None:
                    with_it = items.setdefault(item_id, TurnPart(item=item_id))
                    with_it.ops += piece.ops
                    with_it.checks += piece.checks
                else:
                    unwanted.append(piece)
            else:
                self._add(action, items, reports, cancelled, of, past)
        queues = [TurnPart([op]) for op in (*diff.made, *diff.pipeline, *diff.queues)]
        # If an item moves, all queues are written in one commit, so that it is always in exactly one queue.
        if _moved(before, after):
            queues = together(queues)
        out += [*items.values(), *builds.values(), *reports, *queues, *ends, *unwanted]
        out += [TurnPart([op]) for op in diff.stale]
        return [piece for piece in out if piece.ops]

    def _build(self, record: list[Op], action: gate_actions.Run | None, cancelled: bool) -> list[Op]:
        """Return a build's record and, if it must run, the request to run it."""
        # A build that was cancelled in the same turn that started it is recorded, but never requested.
        if action is None or cancelled:
            return record
        spec = action.spec
        place = self.map.tenant(self.tenant).pipeline(self.pipeline).item(spec.item).buildset(spec.buildset)
        spec = replace(spec, repo_state=place.repo_state.path)
        parameters = place.job(spec.job.id).build(spec.build).parameters
        meta = {"item": spec.item, "buildset": spec.buildset, "job": spec.job.id} | change_meta(spec.change)
        if spec.job.in_image:
            meta[IMAGE] = spec.job.in_image
        if spec.job.semaphores:
            meta["semaphores"] = " ".join(semaphore.name for semaphore in spec.job.semaphores)
        request = self._request(action.id, action.precedence, meta)
        return [*record, parameters.put(spec), *self.builds(spec.job).submit(request, msgspec.json.encode(spec))]

    def _request(self, id: str, precedence: int, meta: dict[str, str]) -> Request:
        return Request(id, precedence, meta={"tenant": self.tenant, "pipeline": self.pipeline, **meta})

    def _landing(self, action: gate_actions.Land, item: Item | None) -> list[Op]:
        """Return operations that request a landing. Unlike an item's other requests, it is never cancelled."""
        connection, id = action.work.change.connection, item.id if item is not None else ""
        # Plain git has no forge that could merge, so a merger pushes.
        how = self.outboxes.lands.get(connection)
        if not how:
            request = to_push(action, id, self.tenant, self.pipeline)
            return self.merges.submit(request, msgspec.json.encode(action.work))
        outgoing = to_land(action, id, self.tenant, self.pipeline, self.now_ms)
        if how == "merge":
            # The required votes are in the same entry, so that even after a crash the merge is not requested without
            # them.
            first = self.outboxes.first(action.work, item) if item is not None else ()
            return self.outboxes.ask(connection, [*first, replace(outgoing, land=trimmed(action.work))])
        return self.outboxes.ask(connection, [replace(outgoing, precedence=action.precedence)])

    def _add(  # noqa: C901 - one case for each kind of action
        self,
        action: gate_actions.Action,
        items: dict[str, TurnPart],
        reports: list[TurnPart],
        cancelled: set[str],
        of: Mapping[str, Item],
        past: Bygone,
    ) -> None:
        match action:
            case gate_actions.Run():
                pass  # written with its build's record
            case gate_actions.Merge(id, work, precedence):
                # An interrupted turn may already have written the request (`_lasting`); writing it again would take it
                # away from its worker.
                if id not in cancelled and id not in self.notified:
                    item = work.chain[-1].item if work.chain else ""
                    piece = items.setdefault(item or work.buildset, TurnPart(item=item))
                    meta = {"item": item, "buildset": work.buildset}
                    if (whose := of.get(work.buildset)) is not None:
                        meta |= change_meta(whose.change)
                    request = self._request(id, precedence, meta)
                    piece.ops += self.merges.submit(request, msgspec.json.encode(work))
            case gate_actions.Land() | gate_actions.Cancel() | gate_actions.Resume():
                pass  # written with the builds that they change
            case gate_actions.Report(id, work, phase=phase, kind=kind) if work.change.connection in self.outboxes.lands:
                if not phase:  # the pipeline's reporters handle reports that have a phase
                    text = note(id, work, self.tenant, self.now_ms, kind)
                    reports.append(TurnPart(self.outboxes.tell(work.change.connection, text)))
            case gate_actions.MarkLanded(work=work):
                outgoing = to_mark(action, self.tenant, self.now_ms)
                piece = TurnPart(self.outboxes.ask(work.change.connection, [outgoing]))
                reports.append(self._landed(work.change, piece) if action.early else piece)
            case gate_actions.Report(id, work, precedence):
                request = self._request(id, precedence, change_meta(work.change))
                reports.append(TurnPart(self.merges.submit(request, msgspec.json.encode(work))))
            case gate_actions.Record():
                reports.append(self._ended(action, past))
            case gate_actions.Vouch(change, word):
                # The result is only about this patchset, and a newer one may have been seen since.
                known = shown(self.map, self.mirror, change)
                if known is not None and known.change.commit == change.commit:
                    check, ops = remember(self.map, self.mirror, vouching(known, word), fresh())
                    reports.append(TurnPart(ops, [check]))
            case Tell(pipeline, event):
                reports.append(
                    TurnPart(self.map.events.tenant(self.tenant).pipelines(pipeline).trigger.stream.append(event))
                )
            case gate_actions.Supersede(pipeline, key):
                other = self.map.events.tenant(self.tenant).pipelines(pipeline).management
                reports.append(TurnPart(other.stream.append(ForPipeline(pipeline, Dequeue(key)))))
            case _:
                assert_never(action)

    def _ended(self, action: gate_actions.Record, past: Bygone) -> TurnPart:
        """Return the part that records the end of an item and, if it landed, the landing of all its changes."""
        item = action.item
        ended = self._with_people(past.ended(item, action.result, action.message), item.change)
        piece = TurnPart(self.map.history.stream.append(ended))
        # The record of its end also frees the place that a message or object took in its stream.
        if (occasion := item.change.occasion) is not None and not item.epilogue:
            begun = self.map.cache.connection(occasion.connection).occasions.begun
            piece.ops.append(Delete(begun.inside(item.event)))
        # Dependent changes must not have to wait until the forge is checked again.
        if action.result == "SUCCESS" and item.buildset is not None and item.buildset.landing:
            for change in item.circle:
                self._landed(change, piece)
        return piece

    def _landed(self, change: Change, piece: TurnPart) -> TurnPart:
        """Add the landing of the change to the part, and return the part."""
        known = shown(self.map, self.mirror, change)
        change_state = ChangeState(change, open=False, approved=change.commit, landed=True)
        # `untold` stays set until the connection has reported the landing to other pipelines.
        change_state = replace(change_state, untold=known is None or known.open or known.untold)
        change_state = replace(change_state, details=known.details if known is not None else None)
        check, ops = remember(self.map, self.mirror, change_state, fresh())
        piece.checks.append(check)
        piece.ops += ops
        return piece

    def _with_people(self, ended: Finished, change: Change) -> Finished:
        """Return the record with the proposers and approvers of the patchset whose names are known."""
        known = shown(self.map, self.mirror, change) if change.is_change else None
        if known is None or known.change.commit != change.commit:
            return ended
        return replace(ended, proposers=known.proposers, approvers=approvers(known))

    def _word(self, action: gate_actions.Cancel | gate_actions.Resume) -> TurnPart:
        """Return the part that tells the request's worker to stop or continue; empty if the request does not exist."""
        found = self.notified.get(action.id)
        if found is None:
            return TurnPart()
        if isinstance(action, gate_actions.Cancel):
            checks, ops = Requests.cancel(found)
            return TurnPart(ops, checks)
        check, op = Requests.resume(found)
        return TurnPart([op], [check])


def _lasting(actions: Sequence[gate_actions.Action]) -> list[gate_actions.Action]:
    """Return the actions without cancellations of merges that are requested again: after an interrupted turn, the same
    events make an item leave and enter once more.
    """
    last = {action.id: action for action in actions if isinstance(action, gate_actions.Merge | gate_actions.Cancel)}
    return [
        one
        for one in actions
        if not isinstance(one, gate_actions.Cancel) or isinstance(last[one.id], gate_actions.Cancel)
    ]


def _giving_up(before: State, after: State) -> dict[str, str]:
    """Return build -> its item, for builds carried over a reset that their item's record no longer contains. Each must
    be cancelled together with that record, because nothing else refers to it."""
    remaining = {item.id: {one.build.id for one in item.carried} for _, item in after.items()}
    carried = ((one.build.id, item.id) for _, item in before.items() for one in item.carried)
    return {build: item for build, item in carried if item in remaining and build not in remaining[item]}


def _moved(before: State, after: State) -> bool:
    """Return whether an item has another queue than before."""
    # Unchanged queues are the same object in both states, so only the others are compared.
    now, earlier = set(map(id, after.queues)), set(map(id, before.queues))
    of = {item.id: queue.id for queue in before.queues if id(queue) not in now for item in queue.items}
    fresh = (queue for queue in after.queues if id(queue) not in earlier)
    return any(of.get(item.id, queue.id) != queue.id for queue in fresh for item in queue.items)


def packed(pieces: Iterable[TurnPart], ops_max: int = COMMIT_OPS_MAX) -> list[TurnPart]:
    """Return the smallest number of commits that contain the parts, in order, without splitting any part."""
    commits: list[TurnPart] = []
    size_bytes, parents = 0, set[str]()
    for piece in pieces:
        if not piece.ops:
            continue
        # Each path and the encoding of an operation take some 200 bytes.
        more_bytes = sum(len(op.value) + 200 for op in piece.ops if not isinstance(op, Delete))
        more_parents = {op.parent for op in piece.ops if isinstance(op, Append)}
        full = commits and (
            len(commits[-1].ops) + len(piece.ops) > ops_max
            or len(commits[-1].checks) + len(piece.checks) > ops_max
            or size_bytes + more_bytes > SIZE_MAX_BYTES
            # With etcd, every parent of an append takes an additional operation.
            or len(parents | more_parents) > PARENTS_MAX
        )
        if not commits or full:
            commits.append(TurnPart())
            size_bytes, parents = 0, set()
        commits[-1].ops += piece.ops
        commits[-1].checks += piece.checks
        size_bytes += more_bytes
        parents |= more_parents
    return [_folded(commit) for commit in commits]


def together(pieces: Sequence[TurnPart]) -> list[TurnPart]:
    """Join the parts into one that is written in a single commit, if a commit can contain it; otherwise return them
    unchanged."""
    joined = TurnPart([op for piece in pieces for op in piece.ops], [at for piece in pieces for at in piece.checks])
    parents = {op.parent for op in joined.ops if isinstance(op, Append)}
    return [joined] if joined.fits and len(parents) <= PARENTS_MAX else list(pieces)


def _folded(piece: TurnPart) -> TurnPart:
    """Return the part with one operation per path: a put takes precedence over a deletion, and a later put over an
    earlier one."""
    by_path: dict[str, Op] = {}
    rest: list[Op] = []
    for op in piece.ops:
        # Appends to one parent are different entries.
        if isinstance(op, Append):
            rest.append(op)
        elif not (isinstance(op, Delete) and op.path in by_path):
            by_path[op.path] = op
    # All parts are based on the same mirror, so two checks of one path are equal.
    checks = {check.path: check for check in piece.checks}
    return TurnPart([*by_path.values(), *rest], list(checks.values()))


def by_buildset(state: State) -> dict[str, Item]:
    """Return buildset id -> its item."""
    return {item.buildset.id: item for _, item in state.items() if item.buildset is not None}
