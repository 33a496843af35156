"""Compare a live store with the map, and print its entries as a tree."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from headgate.map.records import Empty, Raw
from headgate.map.tree import Located, Undecodable, unescape
from headgate.map.trees import StoreTree, find, trees
from headgate.recipes import blob
from headgate.recipes.codec import decode, unpack
from headgate.store.types import NAME_DIGITS, Entry

_NUMBERED = re.compile(rf"[^/]*[0-9]{{{NAME_DIGITS}}}")
_PIECE = re.compile(r"[0-9a-f]{32}/[0-9]{10}")
_KEYED = re.compile(r"[^/]+")
_KEYED_PIECE = re.compile(rf"[^/]+/{_PIECE.pattern}")
VALUE_MAX_CHARS = 160
"""Limit on the characters of a value that are printed."""


@dataclass(frozen=True, slots=True)
class TreeFinding:
    path: str
    why: str


@dataclass(frozen=True, slots=True)
class ValuePiece:
    """Represent one piece of a value that is stored in pieces; the complete value is read at its pointer's path."""

    size_bytes: int


@dataclass(frozen=True, slots=True)
class DecodedEntry:
    """Hold an entry, its declaration and its decoded content: a record, a string, None for nothing, or a ValuePiece.

    `problem` is empty if the entry matches the map.
    """

    entry: Entry
    located: Located | None
    value: object
    problem: str = ""


@dataclass(frozen=True, slots=True)
class TreeFindings:
    """Hold the findings of one check of a store."""

    unknown: tuple[TreeFinding, ...]
    undecodable: tuple[TreeFinding, ...]
    alive: frozenset[str]
    """Templates of the contract's places that have an entry at or below them."""
    seeds: frozenset[str]
    """Templates of all the contract's places."""

    @property
    def good(self) -> bool:
        return not self.unknown and not self.undecodable

    @property
    def unused(self) -> tuple[str, ...]:
        return tuple(sorted(self.seeds - self.alive))

    def also(self, other: TreeFindings) -> TreeFindings:
        """Combine the findings of two checks of a store, as locks and requests seldom all exist at the same time."""
        return TreeFindings(
            # Both checks may have found the same entry.
            tuple(dict.fromkeys(self.unknown + other.unknown)),
            tuple(dict.fromkeys(self.undecodable + other.undecodable)),
            self.alive | other.alive,
            self.seeds | other.seeds,
        )

    def text(self, *, every: bool = False) -> str:
        """Format the findings for display; `every` also lists the contract's places that have no entry."""
        lines = [f"{f.path}: not on the map: {f.why}" for f in self.unknown]
        lines += [f"{f.path}: cannot be read: {f.why}" for f in self.undecodable]
        if every:
            lines += [f"{template}: no entry now" for template in self.unused]
        lines.append(f"{len(self.alive)} of {len(self.seeds)} known places have entries")
        return "\n".join(lines)


def check(entries: Iterable[Entry], among: Sequence[StoreTree] = trees()) -> TreeFindings:
    """Compare every entry with the map, and return the findings. Entries outside these trees are reported as
    unknown."""
    seeds = frozenset(row.template for tree in among for row in tree.rows()[1:] if row.seed)
    unknown: list[TreeFinding] = []
    undecodable: list[TreeFinding] = []
    used: set[str] = set()
    for found in survey(entries, among):
        if found.located is None:
            unknown.append(TreeFinding(found.entry.path, found.problem))
            continue
        if found.problem:
            undecodable.append(TreeFinding(found.entry.path, found.problem))
        used.update(_above(found.located.template))
    return TreeFindings(tuple(unknown), tuple(undecodable), seeds & used, seeds)


def survey(entries: Iterable[Entry], among: Sequence[StoreTree] = trees()) -> Iterator[DecodedEntry]:
    """Yield every entry with its meaning, by path. A damaged entry is reported, not raised."""
    ordered = sorted(entries, key=lambda entry: entry.path)
    paths = [entry.path for entry in ordered]
    for entry in ordered:
        located = find(among, entry.path)
        why = "no such place" if located is None else _misplaced(located)
        if located is None or why:
            yield DecodedEntry(entry, None, None, why)
            continue
        # `0` follows `/` in ASCII, so this range contains exactly the entries below this one.
        below = ordered[bisect_left(paths, entry.path + "/") : bisect_left(paths, entry.path + "0")]
        try:
            yield DecodedEntry(entry, located, _read(located, entry, below))
        except Undecodable as error:
            yield DecodedEntry(entry, located, None, error.why)


def _above(template: str) -> Iterator[str]:
    names = template.split("/")
    return ("/".join(names[:count]) for count in range(2, len(names) + 1))


def _misplaced(located: Located) -> str:
    """Return why no entry may exist at the path; empty: one may."""
    if located.place is None:
        return "a directory, which has no value"
    shape = {
        "lock": _NUMBERED,
        "sequence": _NUMBERED,
        "keyed": _KEYED,
        "sharded": _PIECE,
        "keyed sharded": re.compile(f"{_KEYED.pattern}|{_KEYED_PIECE.pattern}"),
    }.get(located.place.node.removeprefix("ephemeral "))
    if not located.rest:
        node = located.place.node
        return "" if node in ("persistent", "sharded", "lock") else f"a directory of {node} entries, which has no value"
    if shape is None or not shape.fullmatch(located.rest):
        return f"no entry of this name may exist below {located.template} ({located.place.node})"
    return ""


def _read(located: Located, entry: Entry, below: list[Entry]) -> Any:  # the record, of any of the declared types
    """Read the content of the entry. Raise Undecodable."""
    place = located.place
    if place is None:
        return None
    sharded = place.node in ("sharded", "keyed sharded")
    if sharded and _PIECE.fullmatch("/".join(located.rest.split("/")[-2:])):
        # A piece alone cannot be decoded.
        return ValuePiece(len(entry.value))
    try:
        if place.node == "lock":
            return entry.value.decode()
        # Such entries say something by their existence alone.
        if place.type is Empty and not entry.value:
            return None
        plain = blob.assemble(entry, below) if sharded else entry.value
        return unpack(plain).decode() if place.type is Raw else decode(plain, place.type)
    except (ValueError, msgspec.MsgspecError) as error:
        raise Undecodable(entry.path, str(error)) from error


def show_tree(entries: Iterable[Entry], among: Sequence[StoreTree] = trees(), prefix: str = "") -> Iterator[str]:
    """Yield lines, indented by depth, for entries at or below `prefix` (with or without the first root; empty: all)."""
    wanted = _absolute(prefix, [tree.root for tree in among])
    above: list[str] = []
    for found in survey(entries, among):
        path = found.entry.path
        # The complete value is shown at the path above its pieces.
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
    """Return the number of leading names that both lists share."""
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
