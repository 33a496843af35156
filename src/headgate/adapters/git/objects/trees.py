"""Find how two trees differ."""

from __future__ import annotations

from collections.abc import Iterator

import pygit2
from pygit2.enums import FileMode

from headgate.adapters.git.command import GitImpossible

DIRECTORIES_MAX = 20_000


def between(before: pygit2.Tree, after: pygit2.Tree) -> Iterator[str]:
    """Yield the paths of files, links and submodules that exist in only one tree or differ.

    What is below a directory that is in many places is yielded for each of them.  Raises GitImpossible when there are
    very many directories to look at.
    """
    waiting: list[tuple[bytes, pygit2.Tree | None, pygit2.Tree | None]] = [(b"", before, after)]
    looked = 0
    while waiting:
        looked += 1
        # A tree of a few kilobytes can name the same subtree a billion times (a `git bomb`).
        if looked > DIRECTORIES_MAX:
            raise GitImpossible(("diff-tree",), 1, f"more than {DIRECTORIES_MAX} directories differ")
        path, *both = waiting.pop()
        old, new = map(_entries, both)
        for name in old.keys() | new.keys():
            old_entry, new_entry = old.get(name), new.get(name)
            if (
                old_entry is not None
                and new_entry is not None
                and (old_entry.id, old_entry.filemode) == (new_entry.id, new_entry.filemode)
            ):
                continue
            below_was, below_now = _directory(old_entry), _directory(new_entry)
            if below_was is not None or below_now is not None:
                waiting.append((path + name + b"/", below_was, below_now))
            if (old_entry is not None and below_was is None) or (new_entry is not None and below_now is None):
                yield (path + name).decode(errors="replace")


def _entries(tree: pygit2.Tree | None) -> dict[bytes, pygit2.Object]:
    return {} if tree is None else {entry.raw_name: entry for entry in tree if entry.raw_name is not None}


def _directory(entry: pygit2.Object | None) -> pygit2.Tree | None:
    return entry if isinstance(entry, pygit2.Tree) and entry.filemode == FileMode.TREE else None
