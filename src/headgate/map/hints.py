"""Hold hints from a forge, or from whoever needs one of its changes, until the process that looks there takes them
up."""

from __future__ import annotations

from functools import cached_property

import msgspec

from headgate.map.tree import Dir, place
from headgate.recipes.stream import Stream, StreamEntry


class ButtonOrder(msgspec.Struct, frozen=True):
    """Record what a person who clicked a button of Headgate's on a change wants: the change out of a pipeline."""

    who: str
    """The account that the forge's genuine delivery names; the forge is asked what it may do."""
    tenant: str
    pipeline: str
    event: str
    """The event that enqueued the item; later items are not affected."""


class Hint(msgspec.Struct, frozen=True, omit_defaults=True):
    """Name a place where something may have happened. Nothing else that a delivery contains is trusted."""

    id: str
    """The delivery's own, so that the same one twice is one; else a fresh one."""
    project: str = ""
    """Canonical name; empty: anywhere."""
    number: str = ""
    """The number of a change; empty means the project's branches, or its open changes."""
    ref: str = ""
    """A branch or tag."""
    commit: str = ""
    """What the driver finds the change by, where the delivery names only that."""
    order: ButtonOrder | None = None
    """An order for the change with this project and number, which alone causes no look."""


class HintsQueue(Dir):
    """Hold hints where to look at a forge, until the look is done."""

    queue = place(StreamEntry, "Their order; each names its body.", by="web, scheduler", node="sequence", seed=False)
    data = place(Hint, "Where to look.", by="web, scheduler", node="keyed", seed=False)

    @cached_property
    def stream(self) -> Stream[Hint]:
        return Stream(self.queue.path, self.data.path, Hint)
