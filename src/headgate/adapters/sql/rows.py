"""Turn finished buildsets and builds into rows of the history."""

from __future__ import annotations

import msgspec
import sqlalchemy as sa

from headgate.adapters.sql.schema import BUILDS, BUILDSETS, HAND_ACTIONS, REFS, fitting, next_number
from headgate.gate.change import Change
from headgate.map.records import Finished, FinishedBuild, HandAction


def write(connection: sa.Connection, finished: Finished) -> None:
    """Write a finished buildset. For one that continues, never replace known values by fewer."""
    same = BUILDSETS.c.uuid == finished.buildset
    known = connection.execute(sa.select(BUILDSETS.c.number).where(same)).first()
    # A report without a result is of a buildset that continues, and may come late, after the one with the result.
    if known is None or finished.result:
        # Delete and insert, since databases have different statements for replacing a row. A repeated report keeps its
        # number.
        connection.execute(sa.delete(BUILDSETS).where(same))
        number = known.number if known is not None else None
        _write_buildset(connection, finished, number or next_number(connection, BUILDSETS))
    for build in finished.builds:
        _write_build(connection, finished.buildset, build)


def _write_buildset(connection: sa.Connection, finished: Finished, number: int) -> None:
    change = finished.change
    connection.execute(sa.delete(REFS).where(REFS.c.buildset == finished.buildset))
    for place, other in enumerate(finished.others, 1):
        row = fitting(REFS, buildset=finished.buildset, number=place, **_ref_row(other))
        connection.execute(sa.insert(REFS), row)
    connection.execute(
        sa.insert(BUILDSETS),
        fitting(
            BUILDSETS,
            uuid=finished.buildset,
            tenant=finished.tenant,
            pipeline=finished.pipeline,
            **_ref_row(change),
            item=finished.item,
            event_id=finished.event,
            result=finished.result or None,
            message=finished.message,
            enqueued_ms=finished.enqueued_ms,
            ended_ms=finished.ended_ms,
            final=finished.final,
            tree=finished.tree or None,
            proposers=list(finished.proposers),
            approvers=list(finished.approvers),
            number=number,
        ),
    )


def _ref_row(change: Change) -> dict[str, str | None]:
    return {
        "project": change.project,
        "branch": change.branch or None,
        "change": change.name or None,
        "patchset": change.commit if change.is_change else None,
        "ref": change.ref,
        "newrev": change.commit,
        "oldrev": change.old_commit or None,
        "ref_url": change.url,
        "author": change.owner or None,
    }


def _write_build(connection: sa.Connection, buildset: str, build: FinishedBuild) -> None:
    """Write a build, and keep its begin and end times if a later report lacks them."""
    same = BUILDS.c.uuid == build.uuid
    known = connection.execute(sa.select(BUILDS.c.start_ms, BUILDS.c.end_ms, BUILDS.c.number).where(same)).first()
    if known is not None and not build.start_ms:
        build = msgspec.structs.replace(build, start_ms=known.start_ms or 0, end_ms=known.end_ms or build.end_ms)
    row = msgspec.structs.asdict(build) | {"buildset": buildset, "error_detail": build.error}
    row |= {
        "artifacts": msgspec.to_builtins(build.artifacts),
        "provides": list(build.provides),
        "work": build.work or None,
        "inputs": build.inputs or None,
        "returned": build.returned or None,
        "asked_ms": build.asked_ms or None,
        "course": msgspec.to_builtins(build.course),
        "comments": msgspec.to_builtins(build.comments) or None,
        "number": (known.number if known is not None else None) or next_number(connection, BUILDS),
    }
    connection.execute(sa.delete(BUILDS).where(same))
    connection.execute(sa.insert(BUILDS), fitting(BUILDS, **row))


def keep(connection: sa.Connection, action: HandAction) -> None:
    """Write a person's action, and keep a known outcome."""
    same = HAND_ACTIONS.c.id == action.id
    known = connection.execute(sa.select(HAND_ACTIONS.c.outcome).where(same)).scalar()
    row = msgspec.to_builtins(action) | {"tenant": action.tenant, "outcome": action.outcome or known or ""}
    nothing = {c.name: {} if c.name == "details" else "" for c in HAND_ACTIONS.c}
    connection.execute(sa.delete(HAND_ACTIONS).where(same))
    connection.execute(sa.insert(HAND_ACTIONS), fitting(HAND_ACTIONS, **(nothing | row)))
