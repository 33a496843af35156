"""Determine what refs mean to a pipeline, what jobs know of them, and which queue a change belongs to."""

from __future__ import annotations

from typing import Any

import msgspec

from headgate.base.ids import derived
from headgate.gate.rules.readiness import guarded
from headgate.gate.state.change import HEADS, TAGS, ZEROS, Change
from headgate.gate.state.model import Item, Queue, State
from headgate.gate.state.works import RefAt
from headgate.gate.state.world import World

NAME_MAX_BYTES = 250
"""Size limit of the name of a ref that starts anything."""


def update(
    connection: str,
    project: str,
    ref: str,
    before: str = "",
    after: str = "",
    files: tuple[str, ...] | None = None,
) -> Change:
    """Return what happened to a ref; a branch has a name, tags and other refs have none."""
    branch = ref.removeprefix(HEADS) if ref.startswith(HEADS) else ""
    return Change(connection, project, branch, commit=after, old_commit=before, ref=ref, files=files)


def variables(change: Change) -> dict[str, Any]:
    """Return what the `zuul` variable says of a change, or of the ref that was updated.  JSON."""
    found: dict[str, Any] = {"ref": change.ref, "commit_id": change.commit, "change_url": change.url}
    if change.is_change:
        return found | {
            "branch": change.branch,
            "change": change.name,
            "patchset": change.patchset or change.commit,
            "change_message": change.message,
            "topic": change.topic,
        }
    named = {"branch": change.branch, "tag": change.tag}
    moved = {"oldrev": change.old_commit, "newrev": change.commit}
    found |= {name: value for name, value in named.items() if value}
    # Zeros are git's word for no commit; jobs find the variable absent instead.
    found |= {name: value for name, value in moved.items() if value not in ("", ZEROS)}
    if change.occasion is not None:
        found["trigger"] = msgspec.json.decode(change.occasion.body)
    return found | ({"commit_id": change.old_commit} if change.deletes else {})


def ref_at(item: Item, world: World) -> RefAt:
    """Return what the jobs of an item that is not a change run on: nothing is merged, they run on what the ref names.

    The merger that prepares the item finds out which branches contain a tag, and checks that a ref has the commit that
    somebody named by hand.
    """
    change, by_hand = item.change, item.by_hand
    return RefAt(
        item=item.id,
        project=change.project,
        connection=change.connection,
        ref=change.ref,
        commit=change.commit,
        old_commit=change.old_commit,
        held=by_hand is not None and by_hand.claimed and guarded(world.pipeline),
    )


def takes_part(change: Change, world: World) -> bool:
    """Return whether the pipeline may have jobs for the ref. Which branches contain a tag is known only once the
    item is prepared, and the effect of a configuration change only after it is read."""
    layout = world.layouts.landed
    # The configuration that it proposes may add jobs for it, which nobody knows before it is merged and frozen.
    if change.is_change and layout.touches_config(change.project, change.files, change.branch):
        return True
    return is_known(change, world)


def is_known(change: Change, world: World) -> bool:
    """Return whether the landed configuration lets the ref take part in the pipeline."""
    layout, pipeline = world.layouts.landed, world.pipeline.name
    return layout.takes_part(pipeline, change.project, change.branch, "" if change.is_change else change.ref)


def section(pipeline: str, change: Change) -> str:
    """Return the heading under which a pipeline reports on a change, or on a ref: several may name one commit."""
    return pipeline if change.is_change else f"{pipeline}, {change.ref}"


def misnamed(ref: str) -> str:
    """Return the rule that a ref breaks, so that it cannot be put into a pipeline, for people; empty if it may be
    one."""
    if not ref.startswith("refs/") or not ref.removeprefix("refs/").strip("/"):
        return f"it is a whole name, such as {TAGS}v1 or {HEADS}master"
    if not ref.isprintable() or len(ref.encode()) > NAME_MAX_BYTES:
        return f"it has at most {NAME_MAX_BYTES} bytes, all of which can be shown"
    return ""


def is_parametrised(ref: str) -> bool:
    """Return whether the ref may be enqueued with parameters."""
    return ref.startswith((HEADS, TAGS))


def queue_name(change: Change, world: World) -> str:
    """Return the name of the change's queue."""
    return world.layouts.landed.queue_of(change.project, change.branch, world.pipeline.name)


def queue_id(name: str, world: World) -> str:
    """Return the id of the queue with this name."""
    return derived("queue", world.tenant, world.pipeline.name, name)


def queue_in(state: State, name: str, world: World, window: int, *, dynamic: bool = False) -> Queue:
    """Return the queue with this name, a new one with this window when there is none."""
    found = (queue for queue in state.queues if (queue.name, queue.dynamic) == (name, dynamic))
    return next(found, Queue(queue_id(name, world), name, window=window, dynamic=dynamic))
