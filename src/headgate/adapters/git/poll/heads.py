"""Branches: which of them moved since they were last seen, and what that changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from headgate.adapters.git.mirror import MirrorRepository
from headgate.adapters.git.series import changes, few
from headgate.gate.change import HEADS, ZEROS, Change

MOVED_MAX = 40
"""Most moved branches that one look reports, in one commit; the next look begins at once."""


class MovedHeads(NamedTuple):
    """Hold how the branches of a project differ from what was seen."""

    now: dict[str, str]
    """All branches; those whose move is not reported yet have their earlier commits."""
    updates: tuple[Change, ...]
    more: bool
    """Whether further branches have moved."""


async def moved_heads(
    connection: str, project: str, mirror: MirrorRepository, old: Mapping[str, str], now: Mapping[str, str]
) -> MovedHeads:
    """Return the moves to report. The new commits must be here, as far as they can be fetched. Raise GitError."""
    moved = sorted(ref for ref in {*old, *now} if old.get(ref) != now.get(ref))
    shown = {**now}
    for ref in moved[MOVED_MAX:]:
        as_it_was(old, ref, shown)
    reported = moved[:MOVED_MAX]
    pairs = {shown[ref]: old[ref] for ref in reported if ref in old and ref in shown}
    # After a forced push, the server may no longer have the earlier commit; the files are then unknown.
    absent = await mirror.missing([*pairs, *pairs.values()])
    pairs = {after: before for after, before in pairs.items() if not {after, before} & absent}
    changed = await changes(mirror, pairs.items())
    updates = []
    for ref in reported:
        before, after = old.get(ref, ZEROS), shown.get(ref, ZEROS)
        # `pairs` has one entry for each new commit: of two branches that moved to the same one, one has unknown files.
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
    return MovedHeads(shown, tuple(updates), len(moved) > MOVED_MAX)


def as_it_was(old: Mapping[str, str], ref: str, heads: dict[str, str]) -> None:
    """Restore the last known state of a branch."""
    if ref in old:
        heads[ref] = old[ref]
    else:
        del heads[ref]
