"""A change as mergers know it, and jobs that are given the changes ahead of theirs."""

from __future__ import annotations

import msgspec


class MergeItem(msgspec.Struct, frozen=True, omit_defaults=True):
    """Represent one change to merge onto what is beneath it."""

    item: str
    """Id of the queue item; a conflict names it."""
    project: str
    connection: str
    branch: str
    ref: str
    commit: str
    mode: str = "merge"
    """merge | squash-merge | cherry-pick | rebase"""
    at_s: int = 0
    """Author and committer time of commits made for it, seconds since the epoch: same input, same ids."""
    message: str = ""
    """Subject and body for the commit made (merge and squash)."""
    bases: tuple[str, ...] = ()
    """Commits on which it is built and which are beneath it, possibly as other commits: only what it adds to them is
    merged."""
    number: str = ""
    patchset: str = ""
    """Number of the patchset, where patchsets have numbers; otherwise empty."""
    topic: str = ""
    url: str = ""
