"""The configuration files in a tree of a repository."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pygit2


def texts(tree: pygit2.Tree, paths: Iterable[str]) -> dict[str, str]:
    """Files named, and the `*.yaml` files (and `.zuul.ignore`) below the directories named; path -> text."""
    found: dict[str, str] = {}
    for path in paths:
        try:
            entry = tree[path.rstrip("/")]
        except KeyError:
            continue
        found |= dict(_texts(entry, path.rstrip("/")))
    return found


def _texts(named: pygit2.Object, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(named, pygit2.Blob):
        yield path, named.data.decode(errors="replace")
    waiting = [(named, path)] if isinstance(named, pygit2.Tree) else []
    while waiting:
        tree, path = waiting.pop()
        for entry in tree:
            below = f"{path}/{entry.name}"
            if isinstance(entry, pygit2.Tree):
                waiting.append((entry, below))
            elif isinstance(entry, pygit2.Blob) and below.endswith((".yaml", "/.zuul.ignore")):
                yield below, entry.data.decode(errors="replace")
