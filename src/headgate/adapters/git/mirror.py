"""Keep a bare copy of one repository, and merge in it."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import logging
import os
import random
import shutil
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pygit2
from msgspec.structs import replace

from headgate.adapters.git.command import GitError, GitImpossible, git, is_damage
from headgate.adapters.git.fetch import FIRST_MAX_S, Refusals, fetch
from headgate.adapters.git.merge import merge
from headgate.adapters.git.objects import IDENTITY, Opened, Original, Parts, parts, signature, texts, too_wide
from headgate.adapters.git.objects import commit as commit_bytes
from headgate.adapters.git.remote import Remote
from headgate.base.tasks import with_place
from headgate.gate.state.gitwork import MergeItem

# One push, or one fetch into a filled copy, may take this long; a first fetch may take FIRST_MAX_S.
WAIT_MAX_S = 600.0
# flock cannot be awaited, so it is polled. The pause is random, so that processes do not poll in lockstep.
LOOK_AGAIN_MAX_S = 0.2


class Exclusive:
    """Hold a lock that ends with its process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._ours = asyncio.Lock()

    @asynccontextmanager
    async def hold(self, wait_max_s: float | None = None) -> AsyncIterator[None]:
        """Hold the lock. Raise OSError if others hold it for `wait_max_s`, by default WAIT_MAX_S."""
        # Within this process, an asyncio lock queues the waiters in order; only across processes is polling needed.
        async with self._ours:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            # The kernel drops an flock with its descriptor, so a merger that dies leaves no lock behind. The file
            # itself is never removed: two processes could then hold locks on two files of the same name.
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                await self._take(file, WAIT_MAX_S if wait_max_s is None else wait_max_s)
                yield
            finally:
                os.close(file)

    async def _take(self, file: int, wait_max_s: float) -> None:
        try:
            async with asyncio.timeout(wait_max_s):
                while not _taken(file):  # noqa: ASYNC110  # another process sets no event here
                    await asyncio.sleep(random.uniform(0, LOOK_AGAIN_MAX_S))
        except TimeoutError:
            raise OSError(f"{self._path} was locked by another process for {wait_max_s:.0f} s") from None


def _taken(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _unread(commit: str, error: Exception) -> GitImpossible:
    return GitImpossible(("cat-file",), 1, f"the files of commit {commit} cannot be read: {error}")


log = logging.getLogger("headgate.git")

MEMO_MAX = 5_000
"""Merges whose results are cached."""
TIDIED_EVERY, LOOSE_MAX, PACKS_MAX = 25, 2_000, 50
"""Once in `TIDIED_EVERY` merges or fetches, the repository is repacked if it has this many loose objects, or packs."""
HERE_MAX = 50_000
"""Objects that are cached as present."""
COMMIT_MAX_BYTES = 32 * 2**20
"""Size above which a commit is not read."""
MERGES_HERE_MAX = 4
"""Concurrent merges in one repository."""
PLACE_MAX_S = 5.0
"""How long a merge may occupy one of the places that all repositories share, so that slow merges delay no others."""
NEAR_MAX = 50
"""Steps along first parents that are searched before git is called."""


class MirrorRepository:
    """Keep a bare copy of a repository. A push holds `exclusive`; merging needs no lock, because objects are only added
    and never collected."""

    def __init__(
        self,
        path: Path,
        remote: Remote,
        who: bytes = IDENTITY,
        merging: asyncio.Semaphore | None = None,
    ) -> None:
        """Make a mirror. `who` is the committer of its merges; `merging` limits the merges in all repositories
        together."""
        self.path, self.remote, self._who = path, remote, who
        self._merging = merging or asyncio.Semaphore(1)
        self._merging_here = asyncio.Semaphore(MERGES_HERE_MAX)
        self.exclusive = Exclusive(path.with_name(f"{path.name}.lock"))
        self._fetching = Exclusive(path.with_name(f"{path.name}.fetch.lock"))
        self._making = asyncio.Lock()
        self._opened = Opened(path)
        self._merged: OrderedDict[tuple[str, bytes], str] = OrderedDict()
        self.merges = self._fetches = 0
        """Merges and fetches that were performed rather than found in a cache."""
        self._here: set[str] = set()
        """Objects known to be present."""
        self.refusals = Refusals()

    async def ready(self) -> None:
        """Prepare the copy for use. Raise OSError or pygit2.GitError."""
        async with self._making:
            exists = (self.path / "HEAD").exists()
            # Somebody has removed the copy while this process runs, so forget which objects were present.
            if not exists:
                self._here.clear()
                self._opened.close()
                self._create()
            self._opened.renew()

    def _create(self) -> None:
        """Create the copy completely, or not at all. Start no process for it: when it starts, Headgate creates one copy
        for each project."""
        # The rename makes the complete copy appear atomically. A crash before it leaves a directory that the next
        # process with this pid removes.
        new = self.path.with_name(f"{self.path.name}.new-{os.getpid()}")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(new, ignore_errors=True)
        pygit2.init_repository(new, bare=True).config["gc.auto"] = 0  # in case people run git in it
        try:
            new.rename(self.path)
        except OSError:
            if not (self.path / "HEAD").exists():
                raise
            shutil.rmtree(new)  # another process was faster

    async def bring(self, wanted: Mapping[str, str]) -> set[str]:
        """Fetch the commits of `wanted` (remote ref to commit) that are missing. Return those that could not be
        fetched: their refs have moved, or `refusals` says why. Raise GitError or OSError."""
        # First check without the lock: usually all commits are here, and a poll must not wait for a long fetch.
        if not await self.missing(wanted.values()):
            return set()
        # If the copy is empty, another process may be filling it, which takes long.
        async with self._fetching.hold(FIRST_MAX_S if self._is_empty() else None):
            # Another process may have fetched them while we waited for the lock.
            absent = await self.missing(wanted.values())
            due = {ref: commit for ref, commit in wanted.items() if commit in absent and self.refusals.is_due(commit)}
            if due:
                refused = await fetch(self.path, self.remote, due, first=self._is_empty())
                self._fetches += 1
                if self._fetches % TIDIED_EVERY == 0:
                    await self._tidy()
                absent = await self.missing(absent)
                for ref, why in refused.items():
                    if due[ref] in absent:
                        self.refusals.add(due[ref], why)
        return absent

    def _is_empty(self) -> bool:
        """Return whether nothing was ever fetched: the first fetch brings all history, and gets the longer time
        limit.
        """
        return not any((self.path / "objects/pack").glob("*.pack"))

    # --- objects

    @property
    def repository(self) -> pygit2.Repository:
        """Return the repository; requires `ready`. Objects read from it keep it open, and work with no other
        repository."""
        return self._opened.repository

    def rest(self) -> None:
        """Close the repository until its next use."""
        self._opened.close()

    def has(self, commit: str) -> bool:
        """Return whether an object with this id exists, even if it is damaged or not a commit."""
        if commit in self._here:
            return True
        # Cache only presence: an absent object may arrive with a fetch of another process.
        found = self.repository.odb.exists(commit)
        if found:
            # Forgetting is safe: objects are never removed, so this set only saves lookups.
            if len(self._here) >= HERE_MAX:
                self._here.clear()
            self._here.add(commit)
        return found

    async def missing(self, commits: Iterable[str]) -> set[str]:
        await self.ready()
        unsure = set(commits) - self._here
        return await asyncio.to_thread(lambda: {c for c in unsure if not self.has(c)}) if unsure else set()

    def parts(self, commit: str) -> Parts:
        """Return the parts of a commit. Raise GitImpossible."""

        def impossible(why: str) -> GitImpossible:
            return GitImpossible(("cat-file",), 1, f"commit {commit} {why}")

        try:
            kind, size = self.repository.odb.read_header(commit)
            if kind == pygit2.enums.ObjectType.COMMIT and size <= COMMIT_MAX_BYTES:
                # Read and parse it ourselves: the library rejects commits with a flaw in the author, which occur in old
                # histories.
                return parts(self.repository.read(commit)[1])
        except KeyError as error:
            why = self.refusals.why(commit)
            raise impossible(f"cannot be fetched: {why}" if why else f"is not in {self.remote.url}") from error
        except (pygit2.GitError, ValueError, OSError) as error:
            raise impossible(f"cannot be read: {error}") from error
        if kind == pygit2.enums.ObjectType.COMMIT:
            raise impossible(f"has {size} bytes; at most {COMMIT_MAX_BYTES} are allowed")
        raise GitImpossible(("cat-file",), 1, f"{commit} is a {kind.name.lower()}, not a commit; push a commit")

    def parents(self, commit: str) -> tuple[str, ...]:
        """Return the parents of a commit, or none if it cannot be read."""
        try:
            return self.parts(commit).parents
        except GitImpossible:
            return ()

    def tree(self, commit: str) -> pygit2.Tree:
        """Return the tree of a commit. Raise GitImpossible."""
        tree = self.parts(commit).tree
        try:
            if why := too_wide(self.repository.odb, tree):
                raise GitImpossible(("cat-file",), 1, f"commit {commit} cannot be read: {why}")
            found = self.repository[tree]
        except (KeyError, pygit2.GitError, ValueError) as error:
            raise _unread(commit, error) from error
        if not isinstance(found, pygit2.Tree):
            raise GitImpossible(("cat-file",), 1, f"the tree that commit {commit} names is not a tree")
        return found

    async def contains(self, head: str, commit: str) -> bool:
        """Return whether `commit` is in the history of `head`. Both must have been fetched; False if one cannot be
        read."""
        near = await self.near(head, commit)
        if near is not None:
            return near
        try:
            code, _ = await git("merge-base", "--is-ancestor", commit, head, at=self.path, ok=(0, 1))
        except GitError as error:
            if is_damage(error):
                return False
            raise
        return code == 0

    async def near(self, head: str, commit: str) -> bool | None:
        """Return True if a few steps show that `commit` is in the history of `head`, False if they show the reverse,
        and None otherwise."""

        def walk() -> bool | None:
            if self._soon_contains(head, commit):
                return True
            # The reverse search usually finds the answer: a new change is a few commits above the head of its branch.
            return False if self._soon_contains(commit, head) else None

        return await asyncio.to_thread(walk)

    def _soon_contains(self, start: str, goal: str) -> bool:
        at = start
        for _ in range(NEAR_MAX):
            if at == goal:
                return True
            parents = self.parents(at)
            if goal in parents:
                return True
            if not parents:
                return False
            at = parents[0]
        return False

    async def texts(self, commit: str, paths: tuple[str, ...]) -> dict[str, str]:
        """Map paths to texts: the named files, and the `*.yaml` files (and `.zuul.ignore`) below the named
        directories. Raise GitImpossible if one of them cannot be read."""

        def read() -> dict[str, str]:
            tree = self.tree(commit)
            try:
                return texts(self.repository, tree, paths)
            except (KeyError, pygit2.GitError, ValueError) as error:
                raise _unread(commit, error) from error

        return await asyncio.to_thread(read)

    def write(self, tree: str, parents: tuple[str, ...], at_s: int, like: bytes | Original) -> str:
        """Write a commit with this message, or with message and author of another commit; return its id."""
        original = like if isinstance(like, Original) else Original(signature(at_s, self._who), b"", like)
        return str(
            self.repository.write(
                pygit2.enums.ObjectType.COMMIT, commit_bytes(tree, parents, original, at_s, self._who)
            )
        )

    def write_empty_tree(self) -> str:
        return str(self.repository.write(pygit2.enums.ObjectType.TREE, b""))

    # --- merging

    async def merge(self, head: str, item: MergeItem) -> str:
        """Return the commit that merges `item` into `head`. Raise MergeConflict, GitError."""
        # The item's id does not affect the merge: after a reset, another item merges the same change into the same
        # head.
        key = (head, hashlib.sha256(msgspec.json.encode(replace(item, item=""))).digest())
        known = self._merged.get(key)
        # Somebody may have removed the copy since; then the merge must be written again.
        if known is not None and self.has(known):
            self._merged.move_to_end(key)
            return known
        self.merges += 1
        # Take this place before a shared one, so that one repository with slow merges cannot occupy all shared places.
        async with self._merging_here:
            made = await with_place(self._merging, lambda: merge(self, head, item), PLACE_MAX_S)
        self._merged[key] = made
        if len(self._merged) > MEMO_MAX:
            self._merged.popitem(last=False)
        # Compare with 1, so that a merger that restarts often still tidies after its first merge.
        if self.merges % TIDIED_EVERY == 1:
            async with self._fetching.hold():
                await self._tidy()
        return made

    async def _tidy(self) -> None:
        """Pack the loose objects of merges and the packs of fetches once there are many of them. Nothing is removed,
        since unlanded commits have no ref. Requires `_fetching`; merges and reads may run in the meantime, since each
        object stays available."""
        objects = self.path / "objects"
        loose, packs = await asyncio.to_thread(
            # Loose objects are spread evenly over 256 directories; `git gc --auto` estimates their number from this
            # directory, too.
            lambda: (len(list(objects.glob("17/*"))) * 256, len(list(objects.glob("pack/*.pack"))))
        )
        try:
            if loose >= LOOSE_MAX or packs >= PACKS_MAX:
                # A geometric repack rewrites only small packs, and keeps unreachable objects, unlike `repack -a -d`.
                await git("repack", "-q", "-d", "--geometric=2", at=self.path)
        except (GitError, OSError) as error:
            log.warning("%s: its objects could not be packed, which will make it slow: %s", self.path, error)
