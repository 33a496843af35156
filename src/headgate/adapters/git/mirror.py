"""A bare copy of one repository, in which merging is done."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import time
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path

import pygit2
from msgspec.structs import replace

from headgate.adapters.git.command import GitError, git, refs_in
from headgate.adapters.git.exclusive import Exclusive
from headgate.adapters.git.objects.commits import commit as commit_bytes
from headgate.adapters.git.objects.commits import original, signature
from headgate.adapters.git.objects.merging import Parts, merge
from headgate.adapters.git.texts import texts
from headgate.gate.work import MergeItem

MEMO_MAX = 5_000
"""Merges remembered."""
FETCH_ATTEMPTS_MAX = 5
STALE_S = 60.0
"""A lock file of git this old, found by whoever has the mirror for himself, was left by a git that was killed."""
_REFSPECS = ("+refs/heads/*:refs/heads/*", "+refs/for/*:refs/for/*")
_LOCKED = re.compile(r"Unable to create '([^\n']+\.lock)': File exists")


class MirrorRepository:
    """`exclusive` is held by whoever changes refs or pushes; merging needs no lock, objects only grow."""

    def __init__(self, path: Path, url: str) -> None:
        self.path, self.url = path, url
        self.exclusive = Exclusive(path.with_name(f"{path.name}.lock"))
        self.atomic = True
        """False once the remote was found not to take several refs in one step."""
        self._making = asyncio.Lock()
        self._repository: pygit2.Repository | None = None
        self._merged: OrderedDict[tuple[str, MergeItem], str] = OrderedDict()
        self.merges = 0
        """How many merges were really done."""

    async def ready(self) -> None:
        """Raises GitError, OSError."""
        async with self._making:
            if self._repository is None:
                if not (self.path / "HEAD").exists():
                    await self._create()
                self._repository = await asyncio.to_thread(pygit2.Repository, str(self.path))

    async def _create(self) -> None:
        """Complete, or not at all."""
        new = self.path.with_name(f"{self.path.name}.new-{os.getpid()}")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(new, ignore_errors=True)
        await git("init", "-q", "--bare", "--template=", str(new))
        await git("config", "gc.auto", "0", at=new)  # for people who look around in it
        try:
            new.rename(self.path)
        except OSError:
            if not (self.path / "HEAD").exists():
                raise
            shutil.rmtree(new)  # another process was quicker

    # --- refs

    async def fetch(self) -> dict[str, str]:
        """Brings branches and proposed changes up to date; branch ref -> commit.  Raises GitError, OSError."""
        await self.ready()
        async with self.exclusive.hold():
            await self.fetch_refs("--prune", *_REFSPECS)
            return await self.heads()

    async def fetch_refs(self, *args: str) -> None:
        """For the holder of `exclusive`."""
        options = ("-q", "--no-tags", "--no-write-fetch-head", "--refmap=")
        for attempt in range(FETCH_ATTEMPTS_MAX):
            try:
                await git("fetch", *options, self.url, *args, at=self.path, remote=True)
                return
            except GitError as error:
                if attempt == FETCH_ATTEMPTS_MAX - 1 or not _unlocked(error):
                    raise

    async def heads(self) -> dict[str, str]:
        _, out = await git("for-each-ref", "--format=%(objectname)%09%(refname)", "refs/heads", at=self.path)
        return refs_in(out)

    async def remote_refs(self, *patterns: str) -> dict[str, str]:
        """ref -> commit, as the remote has them now.  Raises RemoteError."""
        await self.ready()
        _, out = await git("ls-remote", self.url, *patterns, at=self.path, remote=True)
        return refs_in(out)

    async def default_branch(self) -> str:
        """As the remote's HEAD says; empty when it says nothing."""
        _, out = await git("ls-remote", "--symref", self.url, "HEAD", at=self.path, remote=True)
        first = out.split("\n", 1)[0]
        return first.split()[1].removeprefix("refs/heads/") if first.startswith("ref:") else ""

    # --- objects

    @property
    def _odb(self) -> pygit2.Repository:
        assert self._repository is not None, "ready() comes first"
        return self._repository

    def has(self, commit: str) -> bool:
        return isinstance(self._odb.get(commit), pygit2.Commit)

    async def missing(self, commits: Iterable[str]) -> set[str]:
        wanted = set(commits)
        return await asyncio.to_thread(lambda: {commit for commit in wanted if not self.has(commit)})

    def commit(self, commit: str) -> pygit2.Commit:
        found = self._odb.get(commit)
        if not isinstance(found, pygit2.Commit):
            raise GitError(("cat-file",), 1, f"commit {commit} is not in {self.url}")
        return found

    async def contains(self, head: str, commit: str) -> bool:
        """Is `commit` in the history of `head`?  Both must be here."""
        if head == commit:
            return True
        code, _ = await git("merge-base", "--is-ancestor", commit, head, at=self.path, ok=(0, 1))
        return code == 0

    async def texts(self, commit: str, paths: tuple[str, ...]) -> dict[str, str]:
        """Files named, and the `*.yaml` files (and `.zuul.ignore`) below the directories named; path -> text."""
        return await asyncio.to_thread(lambda: texts(self.commit(commit).tree, paths))

    def parts(self, commit: str) -> Parts:
        """Raises GitError."""
        found = self.commit(commit)
        raw = original(found.read_raw())
        return Parts(str(found.tree_id), tuple(str(parent) for parent in found.parent_ids), raw)

    def write(self, tree: str, parents: tuple[str, ...], at_s: int, like: bytes | Parts) -> str:
        """A commit with this message, or one with message and author of another; its id."""
        kept = like.original if isinstance(like, Parts) else original(b"author " + signature(at_s) + b"\n\n" + like)
        return str(self._odb.write(pygit2.enums.ObjectType.COMMIT, commit_bytes(tree, parents, kept, at_s)))

    def write_empty_tree(self) -> str:
        return str(self._odb.write(pygit2.enums.ObjectType.TREE, b""))

    # --- merging

    async def merge(self, head: str, item: MergeItem) -> str:
        """The commit after `item` was merged onto `head`.  Raises Conflict, GitError."""
        key = (head, replace(item, item=""))
        known = self._merged.get(key)
        if known is not None and self.has(known):
            self._merged.move_to_end(key)
            return known
        self.merges += 1
        made = self._merged[key] = await merge(self, head, item)
        if len(self._merged) > MEMO_MAX:
            self._merged.popitem(last=False)
        return made


def _unlocked(error: GitError) -> bool:
    """Was it a lock file somebody left behind?  Then it is gone now."""
    found = _LOCKED.search(error.said)
    if found is None:
        return False
    file = Path(found[1])
    try:
        stale = time.time() - file.stat().st_mtime > STALE_S
        if stale:
            file.unlink()
    except FileNotFoundError:
        return True
    return stale
