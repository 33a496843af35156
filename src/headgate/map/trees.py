"""List all trees of the store, each with its root, and make the reference page of the map."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple, get_args

from headgate.map.inventory.places import InventoryMap
from headgate.map.keys import KeyStorage
from headgate.map.places import ROOT, Map
from headgate.map.records import Empty, Raw
from headgate.map.tree import UNGUARDED, Dir, Located, PageRow, locate, render
from headgate.map.workers import QueueMap

_HEAD = """# The map

Everything that is kept in the store, and who writes it. This page is made from the declarations the program itself
uses (`headgate map`); `headgate map tree` shows the entries of a live store by it, and `headgate map check` holds
a live store against it.

Names in `<angle brackets>` are keys: letters, digits, `.`, `_` and `-` stand for themselves, everything else is
percent-encoded. Values are JSON; above 2,000 bytes they are compressed with zstd.

The kind of a node says what lies there:

- *persistent*: one value.
- *sharded*: one value of any size; a large one is kept in pieces below its node.
- *keyed*: one child per entry, named by its writer; *keyed sharded*: and each of them of any size.
- *sequence*: one child per entry, numbered in the order written.
- *lock*: a line of contenders, numbered; the lowest holds it.
- *ephemeral*: gone with the session that wrote it.

Places marked *ours* are Headgate's own additions to the map it follows. "Others" in the notes below are other
programs that keep this map: where they depart from it, Headgate does not.

| Place | Kind | Record | Written by | Purpose |
|---|---|---|---|---|
"""


class StoreTree(NamedTuple):
    root: str
    dir: type[Dir]
    seed: bool = True
    """Whether the tree is part of the contract."""

    def rows(self) -> Sequence[PageRow]:
        return _rows(self)


@cache
def _rows(tree: StoreTree) -> Sequence[PageRow]:
    head = PageRow(tree.root, None, tree.dir.__doc__ or "", tree.seed, UNGUARDED)
    return (head, *render(tree.dir, tree.root, seed=tree.seed))


def trees(root: str = ROOT) -> tuple[StoreTree, ...]:
    """Return all trees of the store. `root` is the root of the gate's tree."""
    return (
        StoreTree(root, Map),
        StoreTree(KeyStorage().path, KeyStorage, seed=False),
        StoreTree(QueueMap().path, QueueMap),
        StoreTree(InventoryMap().path, InventoryMap),
    )


def find(among: Sequence[StoreTree], path: str) -> Located | None:
    """Return the declaration behind `path`, or None if it is in none of the trees."""
    return next((found for tree in among if (found := locate(tree.dir, tree.root, path)) is not None), None)


def page(root: str = ROOT) -> str:
    return _HEAD + "".join(f"{line}\n" for line in _page_lines(root))


def _page_lines(root: str) -> Iterator[str]:
    for row in (row for tree in trees(root) for row in tree.rows()):
        place = row.place
        kind, record, by = (place.node, _record(place.type), place.by) if place else ("directory", "", "")
        doc = " ".join(row.doc.split()).replace("|", "\\|")
        if place and place.node != "lock":
            doc += f" Written under `{row.locks.under}`." if row.locks.under else ""
            doc += f" Removed under `{row.locks.taken_under}`." if row.locks.taken_under else ""
        yield f"| `{row.template}`{'' if row.seed else ' *ours*'} | {kind} | {record} | {by} | {doc} |"


def _record(type: Any) -> str:  # a record type or a union of them
    if type is Empty:
        return ""
    if type is Raw:
        return "text"
    return " or ".join(part.__name__ for part in get_args(type)) or str(type.__name__)
