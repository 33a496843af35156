"""The library's view of one repository.

It keeps open each pack that it ever saw, also those that were packed into others since, and every fetch brings a pack.
So the view is a new one once in a while, and the old one goes with its last object.
"""

from __future__ import annotations

from pathlib import Path

import pygit2

RENEWED_EVERY = 10
"""Changes of the packs after which the repository is opened again."""
PACKS_OPEN_MAX = 200
"""Packs that this process keeps open, in all repositories together."""


def bound_packs() -> None:
    """Make the library close the packs that have not been used for the longest time, in the whole process."""
    if pygit2.settings.mwindow_file_limit != PACKS_OPEN_MAX:
        pygit2.settings.mwindow_file_limit = PACKS_OPEN_MAX


class Opened:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._repository: pygit2.Repository | None = None
        self._packed_ns = self._changes = 0

    @property
    def repository(self) -> pygit2.Repository:
        """Return the open repository. Raise pygit2.GitError."""
        if self._repository is None:
            self._repository = pygit2.Repository(str(self._path))
        return self._repository

    def close(self) -> None:
        """Close the view; current readers continue with theirs."""
        old, self._repository, self._changes = self._repository, None, 0
        for name in ("branches", "references", "remotes", "submodules") if old is not None else ():
            delattr(old, name)  # reference cycles would keep it until the next garbage collection

    def renew(self) -> None:
        """Renew the view if that is due. Raise OSError."""
        packed_ns = (self._path / "objects/pack").stat().st_mtime_ns
        if packed_ns != self._packed_ns:
            self._packed_ns = packed_ns
            # Renewing at each change would reopen all packs for every
            # fetch; never renewing would keep removed ones open.
            self._changes += 1
        if self._changes >= RENEWED_EVERY:
            self.close()
