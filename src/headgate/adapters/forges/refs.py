"""Branches and tags of projects at a forge, read with git rather than the forge's API."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import NamedTuple

from headgate.adapters.git.engine import GitEngine
from headgate.adapters.git.poll.moves import as_it_was, moved_heads, moved_refs, watched
from headgate.adapters.git.poll.names import Misfits
from headgate.base.ids import derived
from headgate.gate.change import HEADS, TAGS, Change, EventKind, TriggerEvent
from headgate.ports.forge import Sighting


class Looked(NamedTuple):
    sighting: Sighting | None
    """None if nothing is new."""
    again: bool = False
    """Whether to look again, because there is more or a part failed."""


async def look_at_refs(
    engine: GitEngine,
    connection: str,
    project: str,
    old: Mapping[str, str] | None,
    seen: Mapping[str, str] | None,
) -> Looked:
    """Compare a project's branches with `old`, and its tags with `seen`; None: this is the first look, whose refs cause
    no events. Raise GitError, OSError."""
    mirror = engine.mirror(project, connection)
    refs = await mirror.remote.refs(HEADS, TAGS)
    heads = {ref: commit for ref, commit in refs.items() if ref.startswith(HEADS)}
    misfits, events, again = Misfits(), list[TriggerEvent](), False
    if old is not None and heads != old:
        gone = await mirror.bring({ref: commit for ref, commit in heads.items() if old.get(ref) != commit})
        for ref in [ref for ref, commit in heads.items() if commit in gone]:
            # The branch moved between listing and fetch, or cannot be had: it is reported once its commit is here.
            as_it_was(old, ref, heads)
        found = await moved_heads(connection, project, mirror, old, heads)
        heads, again = found.now, found.more or bool(gone)
        events += map(_ref_updated, found.updates)
    others = moved_refs(connection, project, seen, watched(refs, misfits))
    if others is not None:
        again = again or others.more
        events += map(_ref_updated, others.updates)
    if old is not None and heads == old and others is None:
        return Looked(None, again)
    moved = {project: heads} if old is None or heads != old else {}
    return Looked(Sighting((), tuple(events), moved, {project: others.now} if others is not None else {}), again)


def _ref_updated(change: Change) -> TriggerEvent:
    at_ms = int(time.time() * 1000)
    # With the time, because a branch may be moved back and forth between the same two commits.
    id = derived(EventKind.REF_UPDATED, change.project, change.ref, change.old_commit, change.commit, str(at_ms))
    return TriggerEvent(EventKind.REF_UPDATED, change, id, at_ms)
