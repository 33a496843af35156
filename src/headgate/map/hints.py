"""What a forge, or whoever needs a change of it, hints at: on its way to who looks there."""

from __future__ import annotations

from functools import cached_property

import msgspec

from headgate.map.tree import Dir, place
from headgate.recipes.stream import Stream, StreamEntry


class ButtonOrder(msgspec.Struct, frozen=True):
    """What somebody wants who used a button that Headgate has put on a change: that it is taken out of a pipeline."""

    who: str
    """As the forge's genuine delivery names them; what they may do, the forge is asked."""
    tenant: str
    pipeline: str
    event: str
    """That enqueued the item: none that comes later is meant."""


class Hint(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where something may have happened; nothing else that a delivery says is believed."""

    id: str
    """The delivery's own, so that the same one twice is one; else a fresh one."""
    project: str = ""
    """Canonical name; empty: anywhere."""
    number: str = ""
    """Of a change; empty: the project's branches, or its open changes."""
    ref: str = ""
    """A branch or tag."""
    commit: str = ""
    """What the driver finds the change by, where the delivery names only that."""
    order: ButtonOrder | None = None
    """With the project and the number of a change; it is not looked at for that."""


class HintsQueue(Dir):
    """Where to look at a forge, until somebody has."""

    queue = place(StreamEntry, "Their order; each names its body.", by="web, scheduler", node="sequence", seed=False)
    data = place(Hint, "Where to look.", by="web, scheduler", node="keyed", seed=False)

    @cached_property
    def stream(self) -> Stream[Hint]:
        return Stream(self.queue.path, self.data.path, Hint)
