"""List all trees of the store with their roots, and generate the reference page of the map."""

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

Everything in the store, and the components that write it. This page is generated from the declarations that the
program itself uses (`headgate map`). `headgate map tree` prints the entries of a live store with their declarations,
and `headgate map check` compares a live store with the map.

Names in `<angle brackets>` are keys, in which all characters except letters, digits, `.`, `_` and `-` are
percent-encoded. Values are JSON; above 2,000 bytes they are compressed with zstd.

Kinds of nodes:

- *persistent*: one value.
- *sharded*: one value of any size; a large one is stored in pieces below its node.
- *keyed*: one child per entry, named by its writer; *keyed sharded*: each of the children may have any size.
- *sequence*: one child per entry, numbered in the order of writing.
- *lock*: a queue of numbered contenders; the one with the lowest number holds the lock.
- *ephemeral*: deleted with the session that wrote it.

Headgate uses the places of Zuul, qdo and runm-metadata, as far as it needs them. Places marked *ours* are its own
additions. "Other programs" below are those three; the notes say where Headgate differs from them.

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
    """Return the declaration that `path` matches; None: it is in none of the trees."""
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
            doc += f" Deleted under `{row.locks.taken_under}`." if row.locks.taken_under else ""
        yield f"| `{row.template}`{'' if row.seed else ' *ours*'} | {kind} | {record} | {by} | {doc} |"


def _record(type: Any) -> str:  # a record type or a union of them
    if type is Empty:
        return ""
    if type is Raw:
        return "text"
    return " or ".join(part.__name__ for part in get_args(type)) or str(type.__name__)
