"""Find what changes are built on: commits that were proposed for the same branch, and lie below them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from headgate.adapters.git.mirror import MirrorRepository
from headgate.adapters.git.series import nearest, outside
from headgate.gate.change import ChangeState

_NONE: frozenset[str] = frozenset()


class Stacked(NamedTuple):
    """Hold the commits that one change is built on; `bases` and `stale` are as in `gate.change.Change`."""

    bases: tuple[str, ...] = ()
    stale: tuple[str, ...] = ()
    arrived: bool = False
    """Whether its branch contains it, whoever pushed it there."""


async def stacked(
    mirror: MirrorRepository,
    head: str,
    tips: Mapping[str, str],
    known: Mapping[str, ChangeState],
    refs: Mapping[str, str],
) -> dict[str, Stacked]:
    """Return the commits that each of `tips` (key -> commit) is built on. All are proposed for one branch, whose head
    is `head`, and whose changes are `known`; their refs are among `refs`. Raise GitError."""
    found = await outside(mirror, head, set(tips.values()))
    named: dict[str, set[str]] = {}
    # A change that landed as another commit (squashed, rebased) is not in the branch. What is built on it must still
    # know its base, or the base's part would be merged twice.
    landed = {key: change_state.change.commit for key, change_state in known.items() if change_state.landed}
    for key, commit in (*tips.items(), *landed.items()):
        named.setdefault(commit, set()).add(key)
    near = nearest(found, {commit: frozenset(keys) for commit, keys in named.items() if commit in found})
    built = {}
    for key, tip in tips.items():
        bases, stale = set(near.get(tip, _NONE)), set[str]()
        change_state = known.get(key)
        if change_state is not None and change_state.open and change_state.change.commit == tip:
            for base in set(change_state.change.bases) - bases:
                is_base, is_stale = await _earlier(mirror, tip, known.get(base), refs)
                bases |= {base} if is_base else _NONE
                stale |= {base} if is_stale else _NONE
        built[key] = Stacked(tuple(sorted(bases)), tuple(sorted(stale)), tip not in found)
    return built


async def _earlier(
    mirror: MirrorRepository, tip: str, base: ChangeState | None, refs: Mapping[str, str]
) -> tuple[bool, bool]:
    """Return whether `tip` is still built on the same change as when it was proposed, and whether on an earlier
    patchset of it: an approval of the tip does not extend to the changes below it, whatever happened to them since."""
    if base is None:
        return False, False
    commit = refs.get(base.change.ref, base.change.commit)
    below = not await mirror.missing([commit]) and await mirror.contains(tip, commit)
    gone = not base.landed and base.change.ref not in refs
    return not below or gone, not below
