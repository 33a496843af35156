"""Refuse what a gate never lands, whatever its jobs report: flawed commits and trees, and changes that are too large.

A server may check this at each push (`receive.fsckObjects`), but many do not.  Only what a change adds is checked, and
not everything that is fetched, since old histories are full of small flaws that nobody can repair.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Protocol

import pygit2
from pygit2.enums import FileMode, ObjectType

from headgate.adapters.git.command import GitError, GitImpossible, GitLimits, git, is_damage
from headgate.adapters.git.objects import Parts, shown_name, too_wide

FILES_MAX = 500_000
"""Maximum number of files and directories that a change may add or modify; one that occurs in several places counts
several times."""
FILE_MAX_BYTES = 2 * 2**30
FILES_MAX_BYTES = 8 * 2**30
NAME_MAX_BYTES, PATH_MAX_BYTES, DEPTH_MAX = 255, 4_000, 200
"""Limits of file systems on a name, a path and the depth of directories."""
PARENTS_MAX = 1_000
SEARCHES = ((25, 25), (100, 200), (500, 2_000))
"""Commits of a branch that are searched for the fork point of a change, and the limit on the change's own commits. If
one search is too short for a change, the next one follows."""
COMMITS_MAX = 50_000
"""Limit on the commits that a change adds."""
STEPS_LIMITS = GitLimits(timeout_s=60.0, out_max_bytes=64 * 2**20)
"""Limits of listing the directories of all commits of a change."""
_MODES = {FileMode.TREE, FileMode.BLOB, FileMode.BLOB_EXECUTABLE, FileMode.LINK, FileMode.COMMIT, 0o100664}
_ENTRY = re.compile(rb"([0-7]{5,6}) ([^\0]*)\0", re.DOTALL)
_ENTRIES = {size: re.compile(rb"([0-7]{5,6}) ([^\0]*)\0.{%d}" % size, re.DOTALL) for size in (20, 32)}
"""Size of an id -> the entries of a whole directory."""
_SHORT = re.compile(rb"git~[0-9]+")
_IGNORED = "\u200c\u200d\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u206a\u206b\u206c\u206d\u206e\u206f\ufeff"
"""Characters that some file systems ignore in names."""
_SPECIAL = (b".gitmodules", b".gitattributes", b".gitignore", b".mailmap")


class SoundnessObjects(Protocol):
    path: Path

    def parts(self, commit: str) -> Parts: ...
    def parents(self, commit: str) -> tuple[str, ...]: ...
    @property
    def repository(self) -> pygit2.Repository: ...


async def check(objects: SoundnessObjects, head: str, commit: str) -> None:
    """Check the change that merging `commit` into `head` adds. Raise GitImpossible if it must not be merged, or
    GitError."""
    await asyncio.to_thread(lambda: (objects.parts(head), objects.parts(commit)))
    found = await asyncio.to_thread(_few_steps, objects, head, commit)
    if found is None:
        args = ("rev-list", f"--max-count={COMMITS_MAX + 1}", f"{head}..{commit}", "--")
        try:
            _, out = await git(*args, at=objects.path)
        except GitError as error:
            raise GitImpossible(args, error.code, error.message) if is_damage(error) else error from error
        found = out.split(), head
        if len(found[0]) > COMMITS_MAX:
            raise _flawed(f"it adds more than {COMMITS_MAX} commits")
    await asyncio.to_thread(_check, objects, *found, commit)
    # What a single commit adds is what the change adds.
    if len(found[0]) > 1:
        await _check_steps(objects, head, commit)


async def _check_steps(objects: SoundnessObjects, head: str, commit: str) -> None:
    """Check the directories of all commits that merging `commit` into `head` adds: what one of them adds, and a later
    one removes, stays in the history of the branch. Raise GitImpossible, or GitError."""
    args = ("rev-list", "--objects", "--filter=blob:none", f"{head}..{commit}", "--")
    try:
        _, out = await git(*args, at=objects.path, limits=STEPS_LIMITS)
    except GitError as error:
        raise GitImpossible(args, error.code, error.message) if is_damage(error) else error from error
    # Commits have no path, and the top directory an empty one.
    trees = [line.split(" ", 1) for line in out.split("\n") if " " in line]
    await asyncio.to_thread(_check_trees, objects, objects.parts(head).tree, trees)


def _check_trees(objects: SoundnessObjects, base: str, trees: Collection[Sequence[str]]) -> None:
    known = set[tuple[bytes, bytes]]()
    for tree, path in trees:
        where = f"the directory {shown_name(path) if path else 'at its top'} of one of its commits"
        try:
            why = too_wide(objects.repository.odb, tree)
            raw = b"" if why else objects.repository.read(tree)[1]
        except (KeyError, ValueError, pygit2.GitError):
            raise _flawed(f"{where} is missing or damaged") from None
        if why:
            raise _flawed(f"{where}: {why}")
        size = len(tree) // 2
        entries = _ENTRIES[size].findall(raw)
        if sum(len(mode) + len(name) + 2 + size for mode, name in entries) != len(raw):
            raise _flawed(f"{where} is damaged")
        for mode, name in {*entries} - known:
            if int(mode, 8) not in _MODES or _is_bad_name(name):
                # A flaw that the branch already has is not the change's fault.
                if not _has(objects.repository, base, path, name):
                    raise _flawed(f"{where} has {_shown(name[:NAME_MAX_BYTES])}, which git would not write")
            else:
                known.add((mode, name))


def _has(repository: pygit2.Repository, tree: str, path: str, name: bytes) -> bool:
    """Return whether the directory with this path in a tree has an entry of this name."""
    try:
        top = repository[tree]
        directory = top[path] if path else top  # type: ignore[index] # it is a tree
        return any(entry.raw_name == name for entry in directory)  # type: ignore[union-attr] # or raises TypeError
    except (KeyError, ValueError, TypeError, pygit2.GitError):
        return False


def _check(objects: SoundnessObjects, new: Collection[str], base: str, commit: str) -> None:
    for one in new:
        parts = objects.parts(one)
        which = "it" if one == commit else f"commit {one}"
        if parts.flaw:
            raise _flawed(
                f"{which} is not a commit that git would write: {parts.flaw}; create it again (git commit --amend)"
            )
        if len(parts.parents) > PARENTS_MAX:
            raise _flawed(f"{which} has {len(parts.parents)} parents; at most {PARENTS_MAX} are allowed")
    TreeChecker(objects.repository).check(objects.parts(base).tree, objects.parts(commit).tree)


def _flawed(why: str) -> GitImpossible:
    return GitImpossible(("fsck",), 1, why)


def _few_steps(objects: SoundnessObjects, head: str, commit: str) -> tuple[list[str], str] | None:
    """Return the commits of the change and the commit at which it left the branch; None if that takes more steps."""
    for branch_max, change_max in SEARCHES:
        branch = set(islice(_history(objects, head, (), []), branch_max))
        left = list[str]()
        new = list(islice(_history(objects, commit, branch, left), change_max))
        # A history that reaches a root commit has bypassed the part of the branch that was read.
        if left and len(new) < change_max and all(objects.parents(one) for one in new):
            return new, left[0]
    return None


def _history(objects: SoundnessObjects, commit: str, without: Collection[str], left: list[str]) -> Iterator[str]:
    """Yield the history of `commit` up to commits in `without`, which are appended to `left` instead."""
    seen, waiting = {commit}, deque([commit])
    while waiting:
        current = waiting.popleft()
        if current in without:
            left.append(current)
            continue
        yield current
        for parent in objects.parents(current):
            if parent not in seen:
                seen.add(parent)
                waiting.append(parent)


class TreeChecker:
    """Check once what one tree adds to another."""

    def __init__(self, repository: pygit2.Repository) -> None:
        self._repository = repository
        self._files = self._bytes = 0

    def check(self, before: str, after: str) -> None:
        """Check the entries that `after` adds to `before`. Raise GitImpossible."""
        waiting = [(b"", before, after)]
        while waiting:
            path, before_id, after_id = waiting.pop()
            if before_id == after_id:
                continue
            # Flaws that the branch already has are not the change's fault, so read its side as far as possible.
            old, names = dict[bytes, str](), set[bytes]()
            clean = True
            for _, name, oid in self._entries(path, before_id, strict=False) if before_id else ():
                clean = clean and name not in old
                old[name] = oid
            # Read one by one, so that a directory of millions of entries costs no more than those that are counted.
            for mode, name, oid in self._entries(path, after_id, strict=True):
                # With two entries of one name, a review may show one, and a checkout write the other. A directory that
                # already has this flaw passes.
                if name in names and clean:
                    raise _flawed(f"the directory {_shown(path) or 'at its top'} has two entries of one name")
                names.add(name)
                # Skip unchanged subtrees, so that the cost depends on the change and not on the tree.
                if old.get(name) == oid:
                    continue
                _check_name(path, name)
                below = path + name
                self._count(below)
                if mode == FileMode.TREE:
                    waiting.append((below + b"/", old.get(name, ""), oid))
                else:
                    self._check_file(mode, name, below, oid)

    def _entries(self, path: bytes, tree: str, *, strict: bool) -> Iterator[tuple[int, bytes, str]]:
        try:
            why = too_wide(self._repository.odb, tree)
            kind, raw = self._repository.read(tree)[:2] if not why else (ObjectType.TREE, b"")
        except (KeyError, ValueError, pygit2.GitError):
            if strict:
                raise _flawed(f"the directory {_shown(path) or 'at its top'} is missing or damaged") from None
            return
        if why and strict:
            raise _flawed(f"{_shown(path) or 'the top'}: {why}")
        if kind != ObjectType.TREE:
            if strict:
                raise _flawed(f"{_shown(path)} has the mode of a directory, but is not one")
            return
        at, size = 0, len(tree) // 2
        while at < len(raw):
            found = _ENTRY.match(raw, at)
            if found is None or found.end() + size > len(raw):
                if strict:
                    raise _flawed(f"the directory {_shown(path) or 'at its top'} is damaged")
                return
            # An entry is `MODE NAME\0` and the binary id of 20 or 32 bytes.
            at = found.end() + size
            yield int(found[1], 8), found[2], raw[found.end() : at].hex()

    def _count(self, path: bytes) -> None:
        self._files += 1
        if self._files > FILES_MAX:
            raise _flawed(f"it changes more than {FILES_MAX} files")
        if len(path) > PATH_MAX_BYTES or path.count(b"/") > DEPTH_MAX:
            raise _flawed(f"the path {_shown(path[:100])}… is longer than file systems allow")

    def _check_file(self, mode: int, name: bytes, path: bytes, oid: str) -> None:
        if mode not in _MODES:
            raise _flawed(f"{_shown(path)} is neither a file nor a directory (its mode is {mode:o})")
        # A submodule's commit is in another repository.
        if mode == FileMode.COMMIT:
            return
        if mode == FileMode.LINK and name.lower() in _SPECIAL:
            raise _flawed(f"{_shown(path)} is a link, which git does not follow there")
        try:
            kind, size = self._repository.odb.read_header(oid)
        except (KeyError, ValueError, pygit2.GitError):
            raise _flawed(f"the file {_shown(path)} is missing or damaged") from None
        if kind != ObjectType.BLOB:
            raise _flawed(f"{_shown(path)} has the mode of a file, but is not one")
        self._bytes += size
        if size > FILE_MAX_BYTES or self._bytes > FILES_MAX_BYTES:
            raise _flawed(
                f"{_shown(path)} has {size} bytes; a file may have at most {FILE_MAX_BYTES}, and all files "
                f"that a change adds {FILES_MAX_BYTES} together"
            )


def _is_bad_name(name: bytes) -> bool:
    return not name or b"/" in name or name in (b".", b"..") or len(name) > NAME_MAX_BYTES or _is_dot_git(name)


def _check_name(path: bytes, name: bytes) -> None:
    if _is_bad_name(name):
        raise _flawed(f"{_shown(path + name[:NAME_MAX_BYTES])} is not a name that a file may have")


def _is_dot_git(name: bytes) -> bool:
    """Return whether any common file system treats the name as `.git`."""
    # Exit early for nearly all names: in UTF-8, the ignored characters begin with these bytes.
    if name[:1] not in b".gG\xe2\xef" and b"~" not in name:
        return False
    plain = name.decode(errors="replace").lower().translate(dict.fromkeys(map(ord, _IGNORED)))
    # NTFS treats `.git::$INDEX_ALLOCATION` and `.git. ` as `.git`; hooks written there would run at a checkout.
    plain = plain.split(":")[0].rstrip(". ")
    return plain == ".git" or _SHORT.fullmatch(plain.encode()) is not None


def _shown(path: bytes) -> str:
    return shown_name(path.decode(errors="replace")) if path else ""
