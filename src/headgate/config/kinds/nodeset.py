"""Check nodesets: nodes, groups and alternatives."""

from __future__ import annotations

import re
from typing import Any

from headgate.config.files.check import as_list, entries, table
from headgate.config.files.document import Table
from headgate.config.files.source import Wrong
from headgate.config.keys.objects import INLINE_NODESET, NODESET

EXECUTOR_NAMES = ("localhost", "127.0.0.1", "::1")
"""Names that mean the executor itself in an Ansible inventory."""
_SPECIAL = re.compile(r"[\[\]{}:,;!&@\s]")
"""Characters that have a special meaning in the names of an Ansible inventory: ranges, ports, lists."""
DEPTH_MAX = 50
"""Largest number of levels of nested inline alternatives."""


def check_nodeset(body: Any, line: int, warnings: list[Wrong], *, named: bool = False, depth: int = 0) -> None:
    """Check a nodeset. Raise Wrong."""
    table(body, NODESET if named else INLINE_NODESET, "nodeset", warnings, line)
    if depth > DEPTH_MAX:
        raise Wrong(f"alternatives are nested more than {DEPTH_MAX} levels deep", body.line)
    if "alternatives" in body and ("nodes" in body or "groups" in body):
        raise Wrong("a nodeset has either alternatives, or nodes and groups", body.at("alternatives"))
    names = _nodes(body, warnings)
    _groups(body, names, warnings)
    for other, at in entries(body.get("alternatives"), body.at("alternatives")):
        if isinstance(other, Table):
            check_nodeset(other, at, warnings, depth=depth + 1)


def misread(name: str, what: str) -> str:
    """Return why a name would be misread in an Ansible inventory, or an empty string if it would not."""
    known = _SPECIAL.search(name)
    if name not in EXECUTOR_NAMES and not known:
        return ""
    why = (
        "that is the executor"
        if known is None or name in EXECUTOR_NAMES
        else f"{known[0]!r} has a meaning in an inventory"
    )
    return f"a {what} cannot be run under the name {name!r}: {why}"


def _name(name: str, what: str, line: int, warnings: list[Wrong]) -> None:
    """Refuse the name localhost, and warn about a name that may be misread. Raise Wrong."""
    # Playbooks that say `localhost` mean the executor, and would run on the machine.
    if name == "localhost":
        raise Wrong(f"a {what} cannot be named {name}: that is the executor", line)
    if why := misread(name, what):
        warnings.append(Wrong(why, line, severity="warning"))


def _nodes(body: Table, warnings: list[Wrong]) -> set[str]:
    names: set[str] = set()
    for node, _ in entries(body.get("nodes"), body.at("nodes")):
        for name in as_list(node["name"]):
            _name(name, "node", node.at("name"), warnings)
            if name in names:
                raise Wrong(f"there are two nodes named {name!r}", node.at("name"), "Duplicate Node")
            names.add(name)
    return names


def _groups(body: Table, nodes: set[str], warnings: list[Wrong]) -> None:
    known: set[str] = set()
    for group, _ in entries(body.get("groups"), body.at("groups")):
        name = group["name"]
        _name(name, "group", group.at("name"), warnings)
        if name in known:
            raise Wrong(f"there are two groups named {name!r}", group.at("name"), "Duplicate Nodeset Group")
        known.add(name)
        for node, at in entries(group["nodes"], group.at("nodes")):
            if node not in nodes:
                text = f"the node {node!r} does not exist, but the group {name!r} names it"
                raise Wrong(text, at, "Node From Group Not Found")
