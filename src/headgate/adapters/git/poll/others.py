"""Tags and other refs: which of them moved since they were last seen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from headgate.adapters.git.poll.misfits import Misfits
from headgate.config.kinds.triggers import OURS
from headgate.gate.change import HEADS, TAGS, ZEROS, Change
from headgate.gate.refs import NAME_MAX_BYTES, update

MOVED_MAX = 500
"""Most refs that one look reports; the next look begins at once."""
SEEN_MAX = 200_000
"""Most refs of one repository that are read, tags first."""


class Moved(NamedTuple):
    """Hold how the refs of a project differ from what was seen."""

    now: dict[str, str]
    """Refs that differ -> what they name now; empty if the ref is gone."""
    updates: tuple[Change, ...]
    more: bool
    """Whether further refs have moved."""


def watched(refs: Mapping[str, str], misfits: Misfits) -> dict[str, str]:
    """Return the refs that are neither branches nor Headgate's own; unusable ones are reported."""
    found = dict[str, str]()
    for ref, object in refs.items():
        if ref.startswith((HEADS, *OURS)):
            continue
        if not ref.isprintable():
            misfits.add(ref, "there is in its name what cannot be shown; it starts nothing")
        elif len(ref.encode()) > NAME_MAX_BYTES:
            misfits.add(ref, f"its name has more than {NAME_MAX_BYTES} bytes; it starts nothing")
        else:
            found[ref] = object
    if len(found) <= SEEN_MAX:
        return found
    # A fixed order keeps the same refs in view at each look; otherwise refs would appear to come and go.
    ordered = sorted(found, key=lambda ref: (not ref.startswith(TAGS), ref))
    for ref in ordered[SEEN_MAX:]:
        misfits.add(ref, f"there are more than {SEEN_MAX:,} refs besides branches; it starts nothing")
    return {ref: found[ref] for ref in ordered[:SEEN_MAX]}


def moved(connection: str, project: str, seen: Mapping[str, str] | None, now: Mapping[str, str]) -> Moved | None:
    """Return the moves to report; None if nothing moved. At the first look at a project (`seen` is None) nothing is
    reported."""
    # A project that is added to a tenant has thousands of old tags, none of which is news.
    if seen is None:
        return Moved(dict(now), (), False)
    differ = sorted(ref for ref in {*seen, *now} if seen.get(ref) != now.get(ref))
    if not differ:
        return None
    reported = differ[:MOVED_MAX]
    updates = (update(connection, project, ref, seen.get(ref, ZEROS), now.get(ref, ZEROS)) for ref in reported)
    return Moved({ref: now.get(ref, "") for ref in reported}, tuple(updates), len(differ) > MOVED_MAX)
