"""Show the entries of a live store as a tree for people, each with its meaning and its content."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from headgate.map.check import DecodedEntry, ValuePiece, survey
from headgate.map.records import Raw
from headgate.map.tree import unescape
from headgate.map.trees import StoreTree, trees
from headgate.store.types import Entry

VALUE_MAX_CHARS = 160


def show(entries: Iterable[Entry], among: Sequence[StoreTree] = trees(), prefix: str = "") -> Iterator[str]:
    """Yield lines indented by depth, only for entries at or below `prefix` (with or without the first root; empty
    means all)."""
    wanted = _absolute(prefix, [tree.root for tree in among])
    above: list[str] = []
    for found in survey(entries, among):
        path = found.entry.path
        if (path != wanted and not path.startswith(wanted.rstrip("/") + "/")) or isinstance(found.value, ValuePiece):
            continue
        names = path.strip("/").split("/")
        known = _shared(above, names)
        for depth in range(known, len(names) - 1):
            yield f"{'  ' * depth}{unescape(names[depth])}/"
        yield f"{'  ' * (len(names) - 1)}{unescape(names[-1])}{_meaning(found)}"
        above = names


def _absolute(prefix: str, roots: Sequence[str]) -> str:
    name = prefix.strip("/")
    inside = f"/{name}"
    if not name:
        return ""
    known = any(inside == root or inside.startswith(root + "/") for root in roots)
    return inside if known else f"{roots[0]}/{name}"


def _shared(one: list[str], other: list[str]) -> int:
    """Return how many leading names are the same."""
    for count, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return count
    return min(len(one), len(other))


def _meaning(found: DecodedEntry) -> str:
    mark = "  (ephemeral)" if found.entry.lease is not None else ""
    if found.located is None or found.located.place is None:
        return f"{mark}  !! not on the map: {found.problem}"
    if found.problem:
        return f"{mark}  !! cannot be read: {found.problem}"
    place = found.located.place
    if found.value is None:
        return mark
    if place.type is Raw and place.node == "sharded":
        return f"{mark}  text of {len(str(found.value))} characters"
    text = found.value if isinstance(found.value, str) else msgspec.json.encode(found.value).decode()
    return f"{mark}  {_short(text)}"


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= VALUE_MAX_CHARS else f"{line[: VALUE_MAX_CHARS - 1]}…"
