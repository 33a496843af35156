"""Changes as the API tells of them, with the people who have to do with them."""

from __future__ import annotations

from headgate.gate.change import Change, ChangeState
from headgate.gate.people import approvers
from headgate.ports.history import PastRef, named
from headgate.web.shapes import RefShape


def ref_shape(change: Change, change_state: ChangeState | None) -> RefShape:
    """Return the shape of a change. `change_state` is its connection's knowledge of it, for whichever patchset."""
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
        subject=change.message.splitlines()[0] if change.message else "",
        owner=change.owner,
        proposers=known.proposers,
        approvers=approvers(known),
    )


def past_ref(change: Change, change_state: ChangeState | None) -> PastRef:
    """Return a running change as the history will show it."""
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
    """Return the known state of this patchset."""
    return (
        change_state
        if change_state is not None and change_state.change.commit == change.commit
        else ChangeState(change)
    )
