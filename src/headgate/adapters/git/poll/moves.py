"""Find which refs have moved since the last poll, and doubt a listing that may be incomplete."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from headgate.adapters.git.mirror import MirrorRepository
from headgate.adapters.git.poll.names import APPROVALS, APPROVED, FOR, VETOES, Misfits
from headgate.adapters.git.remote import Listing, Remote
from headgate.adapters.git.series import changes, few
from headgate.config.kinds.pipeline import OURS
from headgate.gate.rules.refs import NAME_MAX_BYTES, update
from headgate.gate.state.change import HEADS, TAGS, ZEROS, Change, ChangeState

HEADS_MOVED_MAX = 40
"""Maximum number of moved branches that one poll reports, in one commit; the next poll begins immediately."""
REFS_MOVED_MAX = 500
"""Maximum number of refs that one poll reports; the next poll begins immediately."""
SEEN_MAX = 200_000
"""Maximum number of refs of one repository that are read, tags first."""
DOUBTED_S = 5.0
"""Pause before a listing that is in doubt is read again."""
LOST_MIN = 20
"""Refs that must disappear together before a listing is in doubt."""
_WATCHED = (HEADS, TAGS, FOR, APPROVED, APPROVALS, VETOES)


class MovedHeads(NamedTuple):
    """Hold the differences of a project's branches from the last poll."""

    now: dict[str, str]
    """All branches; those whose move is not reported yet have their earlier commits."""
    updates: tuple[Change, ...]
    more: bool
    """Whether further branches have moved."""


async def moved_heads(
    connection: str, project: str, mirror: MirrorRepository, old: Mapping[str, str], now: Mapping[str, str]
) -> MovedHeads:
    """Return the moves to report. Requires that all new commits that can be fetched are here. Raise GitError."""
    moved = sorted(ref for ref in {*old, *now} if old.get(ref) != now.get(ref))
    shown = {**now}
    for ref in moved[HEADS_MOVED_MAX:]:
        as_it_was(old, ref, shown)
    reported = moved[:HEADS_MOVED_MAX]
    pairs = {shown[ref]: old[ref] for ref in reported if ref in old and ref in shown}
    # After a forced push, the server may no longer have the earlier commit; the files are then unknown.
    absent = await mirror.missing([*pairs, *pairs.values()])
    pairs = {after: before for after, before in pairs.items() if not {after, before} & absent}
    changed = await changes(mirror, pairs.items())
    updates = []
    for ref in reported:
        before, after = old.get(ref, ZEROS), shown.get(ref, ZEROS)
        # `pairs` has one entry for each new commit: if two branches move to the same commit, one has unknown files.
        both = pairs.get(after) == before
        updates.append(
            Change(
                connection=connection,
                project=project,
                branch=ref.removeprefix(HEADS),
                commit=after,
                old_commit=before,
                ref=ref,
                files=few(changed.get((after, before), ())) if both else None,
            )
        )
    return MovedHeads(shown, tuple(updates), len(moved) > HEADS_MOVED_MAX)


def as_it_was(old: Mapping[str, str], ref: str, heads: dict[str, str]) -> None:
    """Restore the last known state of a branch."""
    if ref in old:
        heads[ref] = old[ref]
    else:
        del heads[ref]


class MovedRefs(NamedTuple):
    """Hold the differences of a project's refs from the last poll."""

    now: dict[str, str]
    """Refs that differ -> the object that they name now; empty if the ref is gone."""
    updates: tuple[Change, ...]
    more: bool
    """Whether further refs have moved."""


def watched(refs: Mapping[str, str], misfits: Misfits) -> dict[str, str]:
    """Return the refs that are neither branches nor Headgate's own; add unusable ones to `misfits`."""
    found = dict[str, str]()
    for ref, object in refs.items():
        if ref.startswith((HEADS, *OURS)):
            continue
        if not ref.isprintable():
            misfits.add(ref, "its name has characters that cannot be shown; it starts no jobs")
        elif len(ref.encode()) > NAME_MAX_BYTES:
            misfits.add(ref, f"its name has more than {NAME_MAX_BYTES} bytes; it starts no jobs")
        else:
            found[ref] = object
    if len(found) <= SEEN_MAX:
        return found
    # A fixed order selects the same refs at each poll; otherwise refs would appear to come and go.
    ordered = sorted(found, key=lambda ref: (not ref.startswith(TAGS), ref))
    for ref in ordered[SEEN_MAX:]:
        misfits.add(ref, f"there are more than {SEEN_MAX:,} refs besides branches; it starts no jobs")
    return {ref: found[ref] for ref in ordered[:SEEN_MAX]}


def moved_refs(
    connection: str, project: str, seen: Mapping[str, str] | None, now: Mapping[str, str]
) -> MovedRefs | None:
    """Return the moves to report; None if nothing moved. The first poll of a project (`seen` is None) reports
    nothing."""
    # A project that is added to a tenant may have thousands of old tags, none of which is new.
    if seen is None:
        return MovedRefs(dict(now), (), False)
    differ = sorted(ref for ref in {*seen, *now} if seen.get(ref) != now.get(ref))
    if not differ:
        return None
    reported = differ[:REFS_MOVED_MAX]
    updates = (update(connection, project, ref, seen.get(ref, ZEROS), now.get(ref, ZEROS)) for ref in reported)
    return MovedRefs({ref: now.get(ref, "") for ref in reported}, tuple(updates), len(differ) > REFS_MOVED_MAX)


def as_before(
    listing: Listing, old: Mapping[str, str], known: Mapping[str, ChangeState]
) -> tuple[dict[str, str], Misfits]:
    """Return the refs, with the earlier values of those that cannot be read, and a report of these. `old`: branches,
    and all other watched refs."""
    refs, misfits = dict(listing.refs), Misfits()
    unreadable = {ref: why for ref, why in listing.unreadable.items() if ref.startswith(_WATCHED) or ref in old}
    for ref, why in unreadable.items():
        misfits.add(ref, f"it cannot be read: {why}; remove it")
        if ref in old:
            refs[ref] = old[ref]
    for change_state in known.values() if unreadable else ():
        change = change_state.change
        if change_state.open and change.ref in unreadable:
            refs[change.ref] = change.commit
        approved = APPROVED + change.ref.removeprefix(FOR)
        if change_state.approved and approved in unreadable:
            refs[approved] = change_state.approved
        refs |= {
            word.ref: word.commit for word in (*change_state.approvals, *change_state.vetoes) if word.ref in unreadable
        }
    return refs, misfits


def _is_branch(ref: str) -> bool:
    return ref.startswith(HEADS)


class Doubt:
    """Verify the listings of one repository. If very many refs disappear together, they count as deleted only when git
    itself confirms it some time later."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._in_doubt, self._since_s = False, 0.0
        self.problem = ""

    async def of(
        self, remote: Remote, refs: Mapping[str, str], old: Mapping[str, str], known: Mapping[str, ChangeState]
    ) -> bool:
        """Return whether to read the listing again before accepting it. Raise RemoteError."""
        expected = set(old) | {change_state.change.ref for change_state in known.values() if change_state.open}
        lost = expected - refs.keys()
        no_branches = any(map(_is_branch, old)) and not any(map(_is_branch, refs))
        if not no_branches and len(lost) < max(LOST_MIN, len(expected) / 2):
            self._in_doubt, self.problem = False, ""
            return False
        now_s = self._now_s()
        if not self._in_doubt:
            self._in_doubt, self._since_s = True, now_s
        # Let git itself read them once more, so that an error of our own reader cannot close changes.
        elif now_s - self._since_s >= DOUBTED_S and not lost & (await remote.listing_by_git()).refs.keys():
            self._in_doubt, self.problem = False, ""
            return False
        finding = "has no branches any longer" if no_branches else f"lacks {len(lost)} of {len(expected)} known refs"
        self.problem = f"it {finding}; Headgate reads it again before it accepts that"
        return True
