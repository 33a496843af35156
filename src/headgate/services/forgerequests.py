"""Make requests to a forge: to land a change, or to report to its people."""

from __future__ import annotations

from msgspec.structs import asdict, replace

from headgate.gate.actions import LANDED, Land, MarkLanded
from headgate.gate.change import Change
from headgate.gate.work import LandRequest, ReportRequest, RepoState
from headgate.map.outbox import OutboxMessage, Pushed, QueueReport
from headgate.recipes.requestforms import Request
from headgate.services.publisher.names import published_event

LAND = "land"
"""Kind of a report, beside the phases of a pipeline: the request to merge a change."""


def to_land(action: Land, item: str, tenant: str, pipeline: str, now_ms: int) -> OutboxMessage:
    """Return the request to land: a forge that merges is asked for the first change."""
    work = action.work
    about = published_event("report", action.id, tenant, pipeline, work.change, item, now_ms)
    report = QueueReport(**asdict(replace(about, buildset=work.buildset, message=work.note)), report=LAND)
    return OutboxMessage("", report, key=action.id, change=work.change, land=work)


def to_push(action: Land, item: str, tenant: str, pipeline: str) -> Request:
    """Return the request to a merger to push the landing."""
    meta = {"tenant": tenant, "pipeline": pipeline, "buildset": action.work.buildset, "landing": item}
    # It is called `landing`, not `item`: requests of an item are cancelled when nobody waits for them, and a landing
    # never is.
    return Request(action.id, action.precedence, meta=meta | told_of(action.work.change))


def told_of(change: Change) -> dict[str, str]:
    """Return the description of the change that requests are for."""
    return {"change": change.id, "project": change.project}


def to_mark(action: MarkLanded, tenant: str, now_ms: int) -> OutboxMessage:
    """Return the request to show a change as merged that has landed by a push."""
    outgoing = note(action.id, action.work, tenant, now_ms, LANDED)
    return replace(outgoing, pushed=Pushed(action.work.landed, action.contained))


def trimmed(work: LandRequest) -> LandRequest:
    """Return the request without other projects' parts and without the note."""
    project, state = work.change.project, work.state
    # A forge merges one project; the rest would only fill the outbox, and grows with the queue.
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
    """Return a text for the people of a change, without a vote. `kind` is as in `gate.actions.Report`."""
    about = published_event("report", id, tenant, work.pipeline, work.change, "", now_ms)
    return OutboxMessage(
        "", QueueReport(**asdict(replace(about, message=work.note)), report=kind), key=id, change=work.change
    )
