"""Repositories for a build, at the state it is to be tested on."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple, Protocol

from headgate.gate.work import RepoState


class CheckoutError(Exception):
    """Report that a repository cannot be checked out. `conflict` means that it did not merge and never will on this
    base."""

    def __init__(self, message: str, *, conflict: bool = False) -> None:
        super().__init__(message)
        self.conflict = conflict


class CheckedOut(NamedTuple):
    """Describe a work tree that was made."""

    commit: str
    """Commit that is checked out."""
    shares: tuple[Path, ...] = ()
    """Directories of git objects that the work tree needs and shares with others. Only this value tells which they are,
    whatever somebody writes into the tree later."""


class Checkout(Protocol):
    async def branches(self, state: RepoState, project: str) -> Collection[str]:
        """Return the branches that can be checked out. Raise CheckoutError."""
        ...

    async def checkout(
        self, state: RepoState, project: str, branch: str, dest: Path, *, speculative: bool = True, files: bool = True
    ) -> CheckedOut:
        """Make a work tree of `project` at `dest`, on `branch`.

        `speculative`: with the changes of the chain; otherwise as the branch was before them.  Without `files` there
        is the repository alone, as after `git clone --no-checkout`.  The branches of the
        project are there by name, there is no remote.  Raises CheckoutError, OSError.
        """
        ...
