"""Create work trees for builds: with objects shared with the bare copy, named branches, and no remote."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pygit2
from pygit2.enums import CheckoutStrategy

from headgate.adapters.git.command import GitError, git
from headgate.adapters.git.mirror import MirrorRepository
from headgate.adapters.git.refstate import noted
from headgate.base.tasks import run_to_end

_BRANCHES = ("refs/heads/", "refs/remotes/")
SMALL_FILES_MAX = 1_000
"""A tree with at most this many files is written in this process, without starting another."""
_CONFIG = """\
[core]
	repositoryformatversion = 0
	filemode = true
	bare = false
	logallrefupdates = true
	autocrlf = false
	attributesFile = /dev/null
"""
"""Files have exactly their committed content, whatever the user's configuration."""


async def work_tree(
    mirror: MirrorRepository, refs: Mapping[str, str], branch: str, commit: str, dest: Path, *, files: bool = True
) -> Path:
    """Check out `commit` at `dest` as `branch`, or as one of `refs`, all of which exist there; without working files
    if `files` is False. Return the directory of objects that the work tree shares.

    Raise GitError, OSError.  After a cancellation, nothing writes to `dest`.
    """
    heads = dict(refs) if branch in refs else {**refs, f"refs/heads/{branch}": commit}
    absent = await mirror.missing(heads.values())
    # A branch whose commit cannot be fetched must not keep builds from using the others.
    known = {ref: oid for ref, oid in heads.items() if oid not in absent}
    # A thread cannot be cancelled; the caller removes `dest`, and the thread must not write there afterwards.
    if not await run_to_end(asyncio.to_thread(_begin, mirror, known, branch, commit, files, dest)):
        await git("reset", "-q", "--hard", at=dest)
    return objects_of(mirror)


def objects_of(mirror: MirrorRepository) -> Path:
    return mirror.path.absolute() / "objects"


def _begin(
    mirror: MirrorRepository, refs: Mapping[str, str], branch: str, commit: str, files: bool, dest: Path
) -> bool:
    """Create the repository, and its `files` if there are few and none needs a git filter. Return whether that
    completes the work tree."""
    at = dest / ".git"
    for directory in ("objects/info", "refs", "info"):
        (at / directory).mkdir(parents=True, exist_ok=True)
    # The work tree borrows objects instead of copying them, which is why the mirror never deletes any.
    (at / "objects/info/alternates").write_text(f"{objects_of(mirror)}\n")
    lines = "".join(f"{oid} {ref}\n{_peeled(mirror, ref, oid)}" for ref, oid in sorted(refs.items()))
    # Write all refs to one file ourselves: `git update-ref` would need a process, and loose refs a file for each
    # branch. The header promises sorted lines, which git requires for its binary search.
    (at / "packed-refs").write_text(f"# pack-refs with: peeled fully-peeled sorted \n{lines}")
    (at / "HEAD").write_text(f"{commit}\n" if branch in refs else f"ref: refs/heads/{branch}\n")
    (at / "config").write_text(_CONFIG)
    if not files:
        return True
    repository = pygit2.Repository(str(dest))
    tree = repository[mirror.parts(commit).tree].peel(pygit2.Tree)
    if not _small(tree, SMALL_FILES_MAX):
        return False
    try:
        repository.checkout_tree(tree, strategy=CheckoutStrategy.FORCE)  # type: ignore[no-untyped-call] # untyped there
    except pygit2.GitError as error:
        raise GitError(("checkout",), 1, str(error)) from error
    finally:
        # This closes its packs and files immediately instead of at the next garbage collection.
        repository.free()
    return True


def _peeled(mirror: MirrorRepository, ref: str, object: str) -> str:
    """Return the line with the commit that a tag names; empty if the object is a commit itself."""
    commit = object if ref.startswith(_BRANCHES) else noted(mirror, object)
    return f"^{commit}\n" if commit != object else ""


def _small(tree: pygit2.Tree, most: int) -> bool:
    """Return whether the tree has at most `most` files and no .gitattributes, whose filters only git itself can
    apply."""
    left, waiting = most, [tree]
    while waiting:
        directory = waiting.pop()
        if len(directory) > left or ".gitattributes" in directory:
            return False
        left -= len(directory)
        waiting += [entry for entry in directory if isinstance(entry, pygit2.Tree)]
    return True
