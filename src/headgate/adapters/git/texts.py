"""The configuration files in a tree of a repository, limited in number and size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pygit2

from headgate.config.budgets import BRANCH_MAX_BYTES, FILE_MAX_BYTES, FILES_MAX, sized
from headgate.config.files.source import unread

ENTRIES_MAX = 100_000
"""Most entries of trees that are read for one branch."""


def texts(repository: pygit2.Repository, tree: pygit2.Tree, paths: Iterable[str]) -> dict[str, str]:
    """Map paths to texts: the named files, and the `*.yaml` files (and `.zuul.ignore`) below the named directories.

    In place of what is too large stands why it was not read (`config.files.source.unread`).
    """
    found: dict[str, str] = {}
    reading = _BranchReader(repository.odb)
    for path in paths:
        try:
            entry = tree[path.rstrip("/")]
        except KeyError:
            continue
        for at, text in reading.of(entry, path.rstrip("/")):
            found[at] = text
            if reading.over:
                # What was read so far is dropped: half of a branch's configuration would be a different configuration.
                return {at: unread(reading.over)}
    return found


class _BranchReader:
    """Read one branch; once it is `over`, read nothing more."""

    def __init__(self, odb: pygit2.Odb) -> None:
        self._odb = odb
        self._files = self._entries = self._length_bytes = 0
        self.over = ""
        """Description of the limit that was exceeded; empty if none was."""

    def of(self, named: pygit2.Object, path: str) -> Iterator[tuple[str, str]]:
        if isinstance(named, pygit2.Blob):
            yield path, self._text(named)
        waiting = [(named, path)] if isinstance(named, pygit2.Tree) else []
        while waiting:
            tree, path = waiting.pop()
            for entry in tree:
                below = f"{path}/{entry.name}"
                self._entries += 1
                if self._entries > ENTRIES_MAX:
                    self.over = f"there are more than {ENTRIES_MAX} files below the directories of configuration"
                    yield f"{path}/….yaml", ""
                if isinstance(entry, pygit2.Tree):
                    waiting.append((entry, below))
                elif isinstance(entry, pygit2.Blob) and below.endswith((".yaml", "/.zuul.ignore")):
                    yield below, self._text(entry)

    def _text(self, blob: pygit2.Blob) -> str:
        self._files += 1
        if self._files > FILES_MAX:
            self.over = f"there are more than {FILES_MAX} files of configuration on this branch"
            return ""
        # The header tells the size without inflating the blob, which may be made to be huge.
        _, length_bytes = self._odb.read_header(blob.id)
        if length_bytes > FILE_MAX_BYTES:
            return unread(f"this file has {sized(length_bytes)}; at most {sized(FILE_MAX_BYTES)} are read")
        self._length_bytes += length_bytes
        if self._length_bytes > BRANCH_MAX_BYTES:
            self.over = f"the configuration on this branch has more than {sized(BRANCH_MAX_BYTES)}"
            return ""
        return blob.data.decode(errors="replace")
