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
        found |= dict(_texts(entry, path.rstrip("/"), named=True))
    return found


def _texts(entry: pygit2.Object, path: str, *, named: bool = False) -> Iterator[tuple[str, str]]:
    if isinstance(entry, pygit2.Tree):
        for child in entry:
            yield from _texts(child, f"{path}/{child.name}")
    elif isinstance(entry, pygit2.Blob) and (named or path.endswith((".yaml", "/.zuul.ignore"))):
        yield path, entry.data.decode(errors="replace")
