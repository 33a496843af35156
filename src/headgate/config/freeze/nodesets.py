"""Resolve the names of nodesets, and list their alternatives in the order in which they are tried."""

from __future__ import annotations

from typing import Any

from headgate.config.definitions import LayoutDefinitions
from headgate.config.files.check import as_list, entries
from headgate.config.files.document import Table
from headgate.config.files.source import MEANING, nearest
from headgate.config.kinds.nodeset import misread
from headgate.config.model import Node, NodeGroup, Nodeset

ALTERNATIVES_MAX = 200
"""Largest number of alternatives of one nodeset, and of nested names that lead to one of them."""


class UnknownNodeset(Exception):
    """Report a nodeset that refers to a missing nodeset, or to itself. `kind` is the name of the error."""

    def __init__(self, text: str, kind: str) -> None:
        super().__init__(text)
        self.kind = kind


def flattened(layout: LayoutDefinitions, given: str | Table, named: set[str] | None = None) -> list[Nodeset]:
    """Return the alternatives depth first, in the order of the lists, and add the names of the visited nodesets to
    `named`. Raise UnknownNodeset."""
    found: list[Nodeset] = []
    _flatten(layout, given, (), found, set() if named is None else named)
    return found


def unusable(nodeset: Nodeset) -> str:
    """Return why the name of a node or group would be misread in an Ansible inventory, or an empty string if none
    would."""
    nodes = (misread(name, "node") for node in nodeset.nodes for name in node.name)
    return next(filter(None, (*nodes, *(misread(group.name, "group") for group in nodeset.groups))), "")


def _flatten(
    layout: LayoutDefinitions, given: str | Table, path: tuple[str, ...], found: list[Nodeset], named: set[str]
) -> None:
    if isinstance(given, str):
        named.add(given)
        known = layout.singles["nodeset"]
        if given in path:
            raise UnknownNodeset(f"the alternatives of nodesets go in a circle: {' -> '.join((*path, given))}", MEANING)
        if given not in known:
            raise UnknownNodeset(f"the nodeset {given!r} is not defined{nearest(given, known)}", "Nodeset Not Found")
        path, given = (*path, given), known[given].body
    # Both: a chain of names is deep, and nodesets that each name two others double at each level.
    if len(path) > ALTERNATIVES_MAX or len(found) > ALTERNATIVES_MAX:
        raise UnknownNodeset(f"there are more than {ALTERNATIVES_MAX} alternatives", MEANING)
    alternatives = entries(given.get("alternatives"), 0)
    if not alternatives:
        found.append(_nodeset(given))
    for other, _ in alternatives:
        _flatten(layout, other, path, found, named)


def _nodeset(body: Any) -> Nodeset:
    nodes = tuple(Node(tuple(as_list(n["name"])), n["label"]) for n, _ in entries(body.get("nodes"), 0))
    groups = tuple(NodeGroup(g["name"], tuple(as_list(g["nodes"]))) for g, _ in entries(body.get("groups"), 0))
    return Nodeset(body.get("name", ""), nodes, groups)
