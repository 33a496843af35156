"""Listings that may not be all there is: a ref that cannot be read has not gone, and very many that have gone at once
may be a server that fails without saying so."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from headgate.adapters.git.poll.misfits import Misfits
from headgate.adapters.git.poll.names import APPROVALS, APPROVED, FOR, HEADS, VETOES
from headgate.adapters.git.remote.reffiles import Listing
from headgate.adapters.git.remote.refs import Remote
from headgate.gate.change import TAGS, ChangeState

DOUBTED_S = 5.0
"""Pause before a listing that is in doubt is read again."""
LOST_MIN = 20
"""Refs that may disappear at once before the listing is in doubt."""
_WATCHED = (HEADS, TAGS, FOR, APPROVED, APPROVALS, VETOES)


def as_before(
    listing: Listing, old: Mapping[str, str], known: Mapping[str, ChangeState]
) -> tuple[dict[str, str], Misfits]:
    """Return the refs, with the earlier value of each that cannot be read, and report those. `old`: branches, and all
    other watched refs."""
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
    """Verify the listings of one repository. A ref that is missing counts as deleted only when git itself confirms
    it some time later."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._in_doubt, self._since_s = False, 0.0
        self.problem = ""

    async def of(
        self, remote: Remote, refs: Mapping[str, str], old: Mapping[str, str], known: Mapping[str, ChangeState]
    ) -> bool:
        """Return whether to look again before the listing is accepted. Raise RemoteError."""
        expected = set(old) | {change_state.change.ref for change_state in known.values() if change_state.open}
        lost = expected - refs.keys()
        no_branches = any(map(_is_branch, old)) and not any(map(_is_branch, refs))
        if not no_branches and len(lost) < max(LOST_MIN, len(expected) / 2):
            self._in_doubt, self.problem = False, ""
            return False
        now_s = self._now_s()
        if not self._in_doubt:
            self._in_doubt, self._since_s = True, now_s
        # git itself reads them once more, so that an error of our own reader cannot close changes.
        elif now_s - self._since_s >= DOUBTED_S and not lost & (await remote.listing_by_git()).refs.keys():
            self._in_doubt, self.problem = False, ""
            return False
        finding = "no branch any more" if no_branches else f"{len(lost)} of {len(expected)} refs no more"
        self.problem = f"it shows {finding}; it is looked at again before that is believed"
        return True
