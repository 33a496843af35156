"""Depends-On: what a change needs, in the order it must go, and what is wrong with it."""

from __future__ import annotations

from typing import NamedTuple

from headgate.gate.change import Change
from headgate.gate.model import World

NEEDS_MAX = 200
"""Changes one change may need in all; more is reported, not followed."""


class Needs(NamedTuple):
    changes: tuple[Change, ...]
    """Open changes that must go first, the most needed first, without the change itself."""
    problems: tuple[str, ...]


def needs(change: Change, world: World) -> Needs:
    """Everything `change` needs, through others too; what has landed is no longer needed."""
    ordered: dict[str, Change] = {}
    problems: list[str] = [
        f"Depends-On: {text}: no branch of a project is known by that name; it is written <project>/<branch>/<topic>"
        for text in change.unresolved
    ]
    _visit(change, world, (), ordered, problems)
    ordered.pop(change.key, None)
    return Needs(tuple(ordered.values()), tuple(dict.fromkeys(problems)))


def _visit(
    change: Change, world: World, path: tuple[str, ...], ordered: dict[str, Change], problems: list[str]
) -> None:
    if change.key in path:
        circle = (*path[path.index(change.key) :], change.key)
        problems.append(
            f"Depends-On goes in a circle: {' -> '.join(circle)}; changes that need each other are refused, whatever "
            "their queue allows: make them one, or take one of the footers out"
        )
        return
    if change.key in ordered:
        return
    if len(path) >= NEEDS_MAX or len(ordered) >= NEEDS_MAX:
        problems.append(f"{change.key} needs more than {NEEDS_MAX} changes")
        return
    for key in change.needs:
        standing = world.standings.get(key)
        if standing is None:
            problems.append(f"Depends-On: {key}: there is no such change")
        elif standing.landed:
            continue
        elif not standing.open:
            problems.append(f"Depends-On: {key}: {standing.reason or 'that change was abandoned'}")
        else:
            _visit(standing.change, world, (*path, change.key), ordered, problems)
    ordered[change.key] = change


def needed_by(key: str, world: World) -> list[Change]:
    """Open changes whose footers name `key`, in order of their keys."""
    found = [s.change for s in world.standings.values() if s.open and key in s.change.needs]
    return sorted(found, key=lambda change: change.key)
