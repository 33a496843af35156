"""A bare copy of one repository, in which merging is done."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from pathlib import Path

import pygit2
from msgspec.structs import replace

from headgate.adapters.git.command import GitError, Impossible, git
from headgate.adapters.git.exclusive import Exclusive
from headgate.adapters.git.objects.commits import IDENTITY, original, signature
from headgate.adapters.git.objects.commits import commit as commit_bytes
from headgate.adapters.git.objects.merging import Parts, merge
from headgate.adapters.git.remote.fetching import fetch
from headgate.adapters.git.remote.refs import Remote
from headgate.adapters.git.texts import texts
from headgate.gate.work import MergeItem

log = logging.getLogger("headgate.git")

MEMO_MAX = 5_000
"""Merges remembered."""
TIDIED_EVERY, LOOSE_MAX, PACKS_MAX = 100, 20_000, 60
"""After so many merges it is looked whether there are that many objects in files of their own."""
HERE_MAX = 200_000
"""Commits remembered to be here."""
NEAR_MAX = 50
"""Steps along first parents that are looked at before git is asked."""


class MirrorRepository:
    """`exclusive` is held by whoever pushes; merging needs no lock, as objects only grow and nothing collects them."""

    def __init__(self, path: Path, url: str, who: bytes = IDENTITY) -> None:
        """`who` makes the commits."""
        self.path, self.remote, self._who = path, Remote(url), who
        self.exclusive = Exclusive(path.with_name(f"{path.name}.lock"))
        self.atomic = True
        """False once the remote was found not to take several refs in one step."""
        self._fetching = Exclusive(path.with_name(f"{path.name}.fetch.lock"))
        self._making = asyncio.Lock()
        self._repository: pygit2.Repository | None = None
        self._merged: OrderedDict[tuple[str, MergeItem], str] = OrderedDict()
        self.merges = 0
        """How many merges were really done."""
        self._here: set[str] = set()
        """Commits that are here."""

    async def ready(self) -> None:
        """Raises GitError, OSError."""
        async with self._making:
            there = (self.path / "HEAD").exists()
            if self._repository is None or not there:
                if not there:
                    self._here.clear()
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

    async def bring(self, wanted: Mapping[str, str]) -> set[str]:
        """Ref of the remote -> commit, which is fetched unless it is here.  Commits that could not be had: their refs
        have moved.  Raises GitError, OSError."""
        if not await self.missing(wanted.values()):
            return set()
        async with self._fetching.hold():
            absent = await self.missing(wanted.values())
            if absent:
                await fetch(self.path, self.remote.url, [ref for ref, commit in wanted.items() if commit in absent])
                absent = await self.missing(absent)
        return absent

    # --- objects

    @property
    def repository(self) -> pygit2.Repository:
        assert self._repository is not None, "ready() comes first"
        return self._repository

    def has(self, commit: str) -> bool:
        if commit in self._here:
            return True
        found = isinstance(self.repository.get(commit), pygit2.Commit)
        if found:
            if len(self._here) >= HERE_MAX:
                self._here.clear()
            self._here.add(commit)
        return found

    async def missing(self, commits: Iterable[str]) -> set[str]:
        await self.ready()
        unsure = set(commits) - self._here
        return await asyncio.to_thread(lambda: {c for c in unsure if not self.has(c)}) if unsure else set()

    def commit(self, commit: str) -> pygit2.Commit:
        """Raises Impossible."""
        found = self.repository.get(commit)
        if not isinstance(found, pygit2.Commit):
            raise Impossible(("cat-file",), 1, f"commit {commit} is not in {self.remote.url}")
        return found

    async def contains(self, head: str, commit: str) -> bool:
        """Is `commit` in the history of `head`?  Both must be here."""
        near = await self.near(head, commit)
        if near is not None:
            return near
        code, _ = await git("merge-base", "--is-ancestor", commit, head, at=self.path, ok=(0, 1))
        return code == 0

    async def near(self, head: str, commit: str) -> bool | None:
        """Is `commit` in the history of `head`, as few steps tell?  False: it is the other way round."""

        def walk() -> bool | None:
            if self._reaches(head, commit):
                return True
            return False if self._reaches(commit, head) else None

        return await asyncio.to_thread(walk)

    def _reaches(self, start: str, goal: str) -> bool:
        at = start
        for _ in range(NEAR_MAX):
            if at == goal:
                return True
            parents = [str(parent) for parent in self.commit(at).parent_ids]
            if goal in parents:
                return True
            if not parents:
                return False
            at = parents[0]
        return False

    async def texts(self, commit: str, paths: tuple[str, ...]) -> dict[str, str]:
        """Files named, and the `*.yaml` files (and `.zuul.ignore`) below the directories named; path -> text."""
        return await asyncio.to_thread(lambda: texts(self.commit(commit).tree, paths))

    def parts(self, commit: str) -> Parts:
        """Raises Impossible."""
        found = self.commit(commit)
        raw = original(found.read_raw())
        return Parts(str(found.tree_id), tuple(str(parent) for parent in found.parent_ids), raw)

    def write(self, tree: str, parents: tuple[str, ...], at_s: int, like: bytes | Parts) -> str:
        """A commit with this message, or one with message and author of another; its id."""
        author = b"author " + signature(at_s, self._who)
        kept = like.original if isinstance(like, Parts) else original(author + b"\n\n" + like)
        return str(
            self.repository.write(pygit2.enums.ObjectType.COMMIT, commit_bytes(tree, parents, kept, at_s, self._who))
        )

    def write_empty_tree(self) -> str:
        return str(self.repository.write(pygit2.enums.ObjectType.TREE, b""))

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
        if self.merges % TIDIED_EVERY == 1:
            await self._tidy()
        return made

    async def _tidy(self) -> None:
        """What is merged becomes files, one each; when they are many they are packed.  Nothing goes, as what has not
        landed has no ref."""
        objects = self.path / "objects"
        loose, packs = await asyncio.to_thread(
            lambda: (len(list(objects.glob("17/*"))) * 256, len(list(objects.glob("pack/*.pack"))))
        )
        if loose < LOOSE_MAX and packs < PACKS_MAX:
            return
        try:
            async with self._fetching.hold():
                if loose >= LOOSE_MAX:
                    await git("maintenance", "run", "--quiet", "--task=loose-objects", at=self.path)
                if packs >= PACKS_MAX:
                    await git("repack", "-q", "-d", "--geometric=2", at=self.path)
        except (GitError, OSError) as error:
            log.warning("%s: the objects could not be packed, which makes it slow in time: %s", self.path, error)
