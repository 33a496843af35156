"""All trees of the store, each with its root."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from headgate.map.inventory.places import InventoryMap
from headgate.map.inventory.places import root as inventory_root
from headgate.map.keys import KEYS_ROOT, KeyStorage
from headgate.map.places import ROOT, Map
from headgate.map.tree import UNGUARDED, Dir, Located, PageRow, locate, render
from headgate.map.workers import ROOT as QUEUES_ROOT
from headgate.map.workers import QueueMap


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
        StoreTree(KEYS_ROOT, KeyStorage, seed=False),
        StoreTree(QUEUES_ROOT, QueueMap),
        StoreTree(inventory_root(), InventoryMap),
    )


def find(among: Sequence[StoreTree], path: str) -> Located | None:
    """Return the declaration behind `path`, or None if it is in none of the trees."""
    return next((found for tree in among if (found := locate(tree.dir, tree.root, path)) is not None), None)
