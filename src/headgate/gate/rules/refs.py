"""Determine what refs mean to a pipeline, what jobs know about them, and which queue a change belongs to."""

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
"""Size limit of the name of a ref that can start an item."""


def update(
    connection: str,
    project: str,
    ref: str,
    before: str = "",
    after: str = "",
    files: tuple[str, ...] | None = None,
) -> Change:
    """Return the update of a ref as a `Change`; its `branch` is empty unless the ref is a branch."""
    branch = ref.removeprefix(HEADS) if ref.startswith(HEADS) else ""
    return Change(connection, project, branch, commit=after, old_commit=before, ref=ref, files=files)


def variables(change: Change) -> dict[str, Any]:
    """Return the members of the `zuul` variable that describe a change or an updated ref.  JSON."""
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
    # Git writes zeros for "no commit"; jobs get no variable instead.
    found |= {name: value for name, value in moved.items() if value not in ("", ZEROS)}
    if change.occasion is not None:
        found["trigger"] = msgspec.json.decode(change.occasion.body)
    # The new commit of a deleted ref is all zeros, so name its last one.
    return found | ({"commit_id": change.old_commit} if change.deletes else {})


def ref_at(item: Item, world: World) -> RefAt:
    """Return the object on which the jobs of an item without a change run: the one that the ref names, without a merge.

    The merger that prepares the item finds out which branches contain a tag, and checks that a ref has the commit that
    a person stated.
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
    # The configuration that it proposes may add jobs for it, which is known only after it is merged and frozen.
    if change.is_change and layout.touches_config(change.project, change.files, change.branch):
        return True
    return is_known(change, world)


def is_known(change: Change, world: World) -> bool:
    """Return whether the landed configuration may have jobs for the ref in the pipeline."""
    layout, pipeline = world.layouts.landed, world.pipeline.name
    return layout.takes_part(pipeline, change.project, change.branch, "" if change.is_change else change.ref)


def section(pipeline: str, change: Change) -> str:
    """Return the heading under which a pipeline reports. That of a ref includes its name, because several refs may have
    the same commit."""
    return pipeline if change.is_change else f"{pipeline}, {change.ref}"


def misnamed(ref: str) -> str:
    """Return a message with the rule that the name of a ref breaks, so that it cannot be enqueued; empty if it is
    valid."""
    if not ref.startswith("refs/") or not ref.removeprefix("refs/").strip("/"):
        return f"it must be a full ref name, such as {TAGS}v1 or {HEADS}master"
    if not ref.isprintable() or len(ref.encode()) > NAME_MAX_BYTES:
        return f"it may have at most {NAME_MAX_BYTES} bytes, and only printable characters"
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
