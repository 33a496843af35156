"""All trees of the store, each with its root."""

from __future__ import annotations

from collections.abc import Sequence
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

    def rows(self) -> list[Row]:
        head = Row(self.root, None, self.dir.__doc__ or "", self.seed, UNGUARDED)
        return [head, *render(self.dir, self.root, seed=self.seed)]


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
