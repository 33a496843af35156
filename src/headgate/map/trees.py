"""All trees of the store, each with its root."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from headgate.map.inventory.places import InventoryMap
from headgate.map.inventory.places import root as inventory_root
from headgate.map.keys import KEYS_ROOT, KeyStorage
from headgate.map.places import ROOT, Map
from headgate.map.tree import UNGUARDED, Dir, Located, Row, locate, render
from headgate.map.workers import ROOT as QUEUES_ROOT
from headgate.map.workers import QueueMap


class Tree(NamedTuple):
    root: str
    dir: type[Dir]
    seed: bool = True
    """Part of the contract."""

    def rows(self) -> Sequence[Row]:
        return _rows(self)


@cache
def _rows(tree: Tree) -> Sequence[Row]:
    head = Row(tree.root, None, tree.dir.__doc__ or "", tree.seed, UNGUARDED)
    return (head, *render(tree.dir, tree.root, seed=tree.seed))


def trees(root: str = ROOT) -> tuple[Tree, ...]:
    """`root` is where the gate's tree is."""
    return (
        Tree(root, Map),
        Tree(KEYS_ROOT, KeyStorage, seed=False),
        Tree(QUEUES_ROOT, QueueMap),
        Tree(inventory_root(), InventoryMap),
    )


def find(among: Sequence[Tree], path: str) -> Located | None:
    """The declaration behind `path`; None when it is in none of the trees."""
    return next((found for tree in among if (found := locate(tree.dir, tree.root, path)) is not None), None)
