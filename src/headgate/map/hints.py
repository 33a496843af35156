"""Hold hints from a forge, or from processes that need one of its changes, until the process that reads the forge takes
them."""

from __future__ import annotations

from functools import cached_property

import msgspec

from headgate.map.tree import Dir, place
from headgate.recipes.stream import Stream, StreamEntry


class ButtonOrder(msgspec.Struct, frozen=True):
    """Record the order of a person who clicked a button of Headgate's on a change: take the change out of a
    pipeline."""

    who: str
    """The account that the forge's genuine delivery names. The reader asks the forge what this account may do."""
    tenant: str
    pipeline: str
    event: str
    """The event that enqueued the item; later items are not affected."""


class Hint(msgspec.Struct, frozen=True, omit_defaults=True):
    """Name a place where something may have happened. Nothing else that a delivery contains is trusted."""

    id: str
    """The delivery's own id, so that a delivery that arrives twice counts once; a fresh id if it has none."""
    project: str = ""
    """Canonical name of the project; empty means any project."""
    number: str = ""
    """Number of the change; empty means the project's branches, or its open changes."""
    ref: str = ""
    """A branch or tag."""
    commit: str = ""
    """Commit by which the driver finds the change, where the delivery names only that."""
    order: ButtonOrder | None = None
    """An order for the change with this project and number. It causes no look at the forge by itself."""


class HintsQueue(Dir):
    """Hold hints where to look at a forge, until the look is done."""

    queue = place(StreamEntry, "Their order; each names its body.", by="web, scheduler", node="sequence", seed=False)
    data = place(Hint, "Where to look.", by="web, scheduler", node="keyed", seed=False)

    @cached_property
    def stream(self) -> Stream[Hint]:
        return Stream(self.queue.path, self.data.path, Hint)
