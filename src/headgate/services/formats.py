"""Determine the format in which records are written: the newest that every live component knows, and never an older one
than before.

A scheduler first announces the next format, and then checks which components live. It sees those that joined before the
announcement; those that join later see the announcement, and leave if they do not know the format.
"""

from __future__ import annotations

import logging
from contextlib import suppress

from headgate.map.records import Formats
from headgate.recipes.codec import readable
from headgate.services.context import Context
from headgate.store.types import At, Conflict, Entry, StoreError, Unavailable

log = logging.getLogger("headgate")


class TooOld(StoreError):
    """Report that this program does not know the format in which records are written."""


def refuse(now: Formats, knows: int) -> None:
    """Refuse a format that this program does not know. Raise TooOld."""
    if knows < now.number:
        raise TooOld(
            f"the store is written in format {now.number}; this Headgate knows those up to {knows}: upgrade it. "
            "Nothing was written"
        )


def check(context: Context) -> None:
    """Check the format after joining and being visible in the mirror. Raise TooOld or Unavailable."""
    now = _read(context, context.mirror.get(context.map.system.formats.path))
    refuse(now, context.knows)
    # An upgrade is under way. Waiting helps: the announcement is taken back if not everybody knows the format.
    if context.knows < now.next:
        raise Unavailable(f"records are about to be written in format {now.next}, and this Headgate does not know it")


def written(context: Context) -> int:
    """Return the format in which to write records, as the mirror shows it."""
    return _read(context, context.mirror.get(context.map.system.formats.path)).number


async def agree(context: Context) -> None:
    """Raise the format as far as every component knows it, and return once it is the newest this scheduler knows."""
    place, mirror = context.map.system.formats, context.mirror
    with mirror.part(context.map.components.path, place.path) as part:
        while written(context) < context.knows:
            seen, entry = part.moves, mirror.get(place.path)
            following = _following(_read(context, entry), _common(context))
            if following is not None:
                with suppress(Conflict):  # another scheduler was faster: the mirror will show it
                    check = At(place.path, entry.version if entry else None)
                    (put,) = await context.store.commit([check], [place.put(following)])
                    assert put is not None, "a put answers with its entry"
                    await mirror.reached(place.path, put.version)
                    to_be = f"; format {following.next} is next" if following.next else ""
                    log.info("records are written in format %d%s", following.number, to_be)
                    continue
            await part.moved(seen)


def _following(now: Formats, common: int) -> Formats | None:
    """Return the next formats if all running components know `common`, or None if there are none."""
    if now.next:
        # Somebody joined since the announcement who does not know it: it is withdrawn.
        return Formats(now.next if now.next <= common else now.number)
    return Formats(now.number, common) if now.number < common else None


def _common(context: Context) -> int:
    # A damaged record of a component counts as none, so it does not block an upgrade.
    return min([context.knows, *(record.formats for record in context.members(context.map.components.path).values())])


def _read(context: Context, entry: Entry | None) -> Formats:
    """Read the formats. A damaged entry counts as the first format, because records in a newer format name it
    themselves."""
    return (readable(entry, Formats) if entry is not None else None) or Formats(1)
