"""Define the requests that manage a pipeline: by people, and by the scheduler of its tenant.  Pure data."""

from __future__ import annotations

from typing import Any

import msgspec

from headgate.gate.state.change import Change


class ByHand(msgspec.Struct, frozen=True, omit_defaults=True):
    """Hold the statements of a person who enqueues a ref manually."""

    parameters: dict[str, Any] = {}
    claimed: bool = False
    """Whether only the person states that the ref has this commit; a merger checks it if that matters."""


class Enqueue(msgspec.Struct, frozen=True, omit_defaults=True, tag="enqueue"):
    """Order manually: enqueue a change or a ref in the pipeline."""

    change: Change
    id: str
    unapproved: bool = False
    """Whether this patchset need not meet the requirements; the changes that it needs must still meet them."""
    by_hand: ByHand | None = None


class Dequeue(msgspec.Struct, frozen=True, omit_defaults=True, tag="dequeue"):
    """Order manually: dequeue the change or ref with this key."""

    key: str
    why: str = ""
    """Who dequeued it and why; empty to report no reason."""
    commit: str = ""
    """For a ref, the commit of the only update to dequeue."""
    event: str = ""
    """Event whose item alone is dequeued, so that a repeated order does not dequeue a later item; empty: every item."""


class CancelBuild(msgspec.Struct, frozen=True, omit_defaults=True, tag="cancel-build"):
    """Order manually: stop this build and count its job as not passed."""

    build: str
    why: str
    """A message that says who cancelled it and why."""


class RerunBuild(msgspec.Struct, frozen=True, omit_defaults=True, tag="rerun-build"):
    """Order manually: rerun the job of this failed build before its item is reported."""

    build: str


class Promote(msgspec.Struct, frozen=True, omit_defaults=True, tag="promote"):
    """Order manually: move the changes with these keys to the head of their queue, in this order."""

    keys: tuple[str, ...]
    id: str
    unapproved: bool = False
    """Whether the changes need not meet the requirements."""


class LayoutChanged(msgspec.Struct, frozen=True, omit_defaults=True, tag="layout"):
    """Report that the tenant's configuration has changed, so that the pipeline examines every item again."""

    layout: str
    taken_over: bool = False
    """Whether a process reports this because it has just taken over the pipeline; the configuration may be the same."""


Managed = Enqueue | Dequeue | CancelBuild | RerunBuild | Promote | LayoutChanged
