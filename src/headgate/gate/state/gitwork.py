"""Define the input and the results of mergers: changes, trees, files under review.  Pure data."""

from __future__ import annotations

import msgspec

FILES_A_PAGE = 500
"""Limit on the changed files in one answer."""


class MergeItem(msgspec.Struct, frozen=True, omit_defaults=True):
    """Represent one change to merge onto its base."""

    item: str
    """Id of the queue item; the answer about a conflict contains it."""
    project: str
    connection: str
    branch: str
    ref: str
    commit: str
    mode: str = "merge"
    """merge | squash-merge | cherry-pick | rebase"""
    at_s: int = 0
    """Author and committer time of commits made for it, seconds since the epoch, so that the same input gives the same
    commit ids."""
    message: str = ""
    """Subject and body for the commit made (merge and squash)."""
    bases: tuple[str, ...] = ()
    """Commits on which it is built and which are part of its base, possibly as other commits: only what it adds to them
    is merged."""
    number: str = ""
    patchset: str = ""
    """Number of the patchset, where patchsets have numbers; otherwise empty."""
    topic: str = ""
    url: str = ""


class Trees(msgspec.Struct, frozen=True, omit_defaults=True):
    """Hold the trees in the repositories that jobs with `reuse` receive in addition to the merged ones."""

    heads: dict[str, dict[str, str]] = {}
    """project -> branch -> tree of its head, of every branch, before anything was merged."""
    bases: dict[str, dict[str, str]] = {}
    """project -> branch -> tree onto which the item's own change was merged."""


class ReviewRequest(msgspec.Struct, frozen=True, omit_defaults=True, tag="review"):
    """Ask which commits and files a change consists of."""

    project: str
    connection: str
    branch: str
    ref: str
    commit: str
    below: tuple[str, ...] = ()
    """Commits of the changes on which this one is built. The comparison begins at the topmost of them that is an
    ancestor of `commit`, so that it leaves out their differences."""
    one: str = ""
    """Commit of the change whose files alone are listed; empty to list the files of all its commits."""
    page: int = 0


class ReviewCommit(msgspec.Struct, frozen=True, omit_defaults=True):
    """Represent one commit of a change."""

    id: str
    author: str
    at_s: int
    subject: str
    message: str = ""
    parents: tuple[str, ...] = ()


class ReviewFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """Represent one file that differs."""

    path: str
    status: str
    """A added | D deleted | M modified | R renamed | C copied | T type changed"""
    old: str
    """Object before the change; zeros when the file did not exist."""
    new: str
    old_mode: str
    new_mode: str
    old_path: str = ""
    """Path before the change, where it differs."""
    old_bytes: int = 0
    new_bytes: int = 0


class ReviewAnswer(msgspec.Struct, frozen=True, omit_defaults=True, tag="review"):
    """Hold one page of the files; the first page also holds the commits."""

    ok: bool
    error: str = ""
    base: str = ""
    """The commit that the change is compared with."""
    commits: tuple[ReviewCommit, ...] = ()
    """Newest first."""
    more_commits: bool = False
    files: tuple[ReviewFile, ...] = ()
    total: int = 0
    """Number of files that differ."""
    landed: bool = False
    """Whether the branch has the change; then only its last commit is shown."""


class PatchRequest(msgspec.Struct, frozen=True, omit_defaults=True, tag="patch"):
    """Ask how two files differ, part by part."""

    project: str
    connection: str
    ref: str
    commit: str
    """Commit to fetch: it brings both files."""
    old: str
    new: str
    part: int = 0


class DiffLine(msgspec.Struct, frozen=True, array_like=True):
    """Represent one line of a difference."""

    kind: str
    """+ added | - removed | a space: in both | @ the head of a hunk | \\ a remark of git"""
    old: int
    """Line number before the change; 0 when the line did not exist."""
    new: int
    text: str
    cut: int = 0
    """Number of bytes that were cut off."""


class PatchAnswer(msgspec.Struct, frozen=True, omit_defaults=True, tag="patch"):
    """Hold one part of a difference."""

    ok: bool
    error: str = ""
    binary: bool = False
    lines: tuple[DiffLine, ...] = ()
    more: bool = False
    """Whether another part follows."""
    ends: str = ""
    """A message that explains why the text is cut short."""


class RemarksRequest(msgspec.Struct, frozen=True, omit_defaults=True, tag="remarks"):
    """Ask for the remarks on these commits."""

    project: str
    connection: str
    commits: tuple[str, ...]


class RemarksAnswer(msgspec.Struct, frozen=True, omit_defaults=True, tag="remarks"):
    """Hold unmodified lines of notes; their authors are not verified."""

    ok: bool
    error: str = ""
    lines: dict[str, tuple[str, ...]] = {}
    """commit -> lines"""
    unread: tuple[str, ...] = ()
    """Commits whose note is too large to read."""


class SayRequest(msgspec.Struct, frozen=True, omit_defaults=True, tag="say"):
    """Add a line to the note of a proposed commit and move refs in one step, provided that the change still has this
    commit."""

    project: str
    connection: str
    ref: str
    commit: str
    line: str = ""
    """Line to add; empty to add none."""
    words: dict[str, str] = {}
    """ref -> its new target; empty to delete the ref."""


class SayAnswer(msgspec.Struct, frozen=True, omit_defaults=True, tag="say"):
    """Answer a `SayRequest`; `error` says why nothing was written, possibly in the git server's words."""

    ok: bool
    error: str = ""


ReviewWork = ReviewRequest | PatchRequest | RemarksRequest | SayRequest
ReviewResult = ReviewAnswer | PatchAnswer | RemarksAnswer | SayAnswer
