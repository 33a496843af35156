"""A bare copy of one repository, in which merging is done."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from pathlib import Path

import pygit2

from headgate.adapters.git.command import GitError, git
from headgate.adapters.git.texts import texts
from headgate.gate.work import MergeItem

IDENTITY = ("Headgate", "headgate@localhost")
MEMO_MAX = 5_000
"""Merges remembered."""
_CONFIG = {"gc.auto": "0", "maintenance.auto": "false", "fetch.writeCommitGraph": "true"}
"""Merged commits have no ref until they land: nothing may collect them; the commit graph makes merging quick."""
_REFSPECS = ("+refs/heads/*:refs/heads/*", "+refs/for/*:refs/for/*")


class Conflict(Exception):
    """The change does not merge; the text names the files."""


class MirrorRepository:
    """`lock` is held by whoever changes refs or pushes; merging needs no lock, objects only grow."""

    def __init__(self, path: Path, url: str) -> None:
        self.path, self.url = path, url
        self.lock = asyncio.Lock()
        self._making = asyncio.Lock()
        self._repository: pygit2.Repository | None = None
        self._merged: OrderedDict[tuple[str, str, str, int], str] = OrderedDict()
        self.merges = 0
        """How many merges were really done."""

    async def ready(self) -> None:
        """Raises GitError when there is no such repository."""
        async with self._making:
            if self._repository is None:
                if not (self.path / "HEAD").exists():
                    self.path.parent.mkdir(parents=True, exist_ok=True)
                    await git("init", "-q", "--bare", str(self.path))
                for name, value in {**_CONFIG, "remote.origin.url": self.url}.items():
                    await git("config", name, value, at=self.path)
                self._repository = pygit2.Repository(str(self.path))

    async def fetch(self) -> dict[str, str]:
        """Brings branches and proposed changes up to date; branch ref -> commit."""
        async with self.lock:
            await self.ready()
            await git(
                "fetch", "-q", "--prune", "--no-tags", "--no-write-fetch-head", "origin", *_REFSPECS, at=self.path
            )
            return await self.heads()

    async def heads(self) -> dict[str, str]:
        _, out = await git("for-each-ref", "--format=%(objectname) %(refname)", "refs/heads", at=self.path)
        return {ref: commit for commit, ref in (line.split(" ", 1) for line in out.splitlines())}

    async def default_branch(self) -> str:
        """As the remote's HEAD says; empty when it says nothing."""
        _, out = await git("ls-remote", "--symref", "origin", "HEAD", at=self.path)
        first = out.splitlines()[0] if out else ""
        return first.split()[1].removeprefix("refs/heads/") if first.startswith("ref:") else ""

    def has(self, commit: str) -> bool:
        found = self._odb.get(commit)
        return isinstance(found, pygit2.Commit)

    @property
    def _odb(self) -> pygit2.Repository:
        assert self._repository is not None, "ready() comes first"
        return self._repository

    def commit(self, commit: str) -> pygit2.Commit:
        found = self._odb.get(commit)
        if not isinstance(found, pygit2.Commit):
            raise GitError(("cat-file",), 1, f"commit {commit} is not in {self.url}")
        return found

    def contains(self, head: str, commit: str) -> bool:
        """Is `commit` in the history of `head`?"""
        return head == commit or bool(self._odb.descendant_of(head, commit))

    # --- merging

    async def merge(self, head: str, item: MergeItem) -> str:
        """The commit after `item` was merged onto `head`.  Raises Conflict, GitError."""
        key = (head, item.commit, item.mode, item.at_s)
        known = self._merged.get(key)
        if known is not None and self.has(known):
            self._merged.move_to_end(key)
            return known
        self.commit(item.commit)
        self.merges += 1
        if item.mode in ("cherry-pick", "rebase"):
            made = await self._pick(head, item)
        elif self.contains(head, item.commit):
            made = head
        else:
            tree = await self._merge_tree(head, item.commit)
            made = self._record(head, tree, item)
        self._merged[key] = made
        if len(self._merged) > MEMO_MAX:
            self._merged.popitem(last=False)
        return made

    def _record(self, head: str, tree: str, item: MergeItem) -> str:
        """Same input, same commit: author, committer and times come from the request."""
        me = pygit2.Signature(*IDENTITY, item.at_s, 0)
        subject = item.message.strip() or item.commit
        if item.mode == "squash-merge":
            if tree == str(self.commit(head).tree.id):
                return head
            author = self.commit(item.commit).author
            return str(self._odb.create_commit(None, author, me, subject + "\n", tree, [head]))
        topic = item.ref.removeprefix(f"refs/for/{item.branch}/")
        message = f"Merge {topic!r} into {item.branch}\n\n{subject}\n"
        return str(self._odb.create_commit(None, me, me, message, tree, [head, item.commit]))

    async def _pick(self, head: str, item: MergeItem) -> str:
        """Each commit of the change on top of the last one; what changes nothing any more is left out."""
        _, out = await git("rev-list", "--reverse", "--no-merges", f"{head}..{item.commit}", at=self.path)
        me = pygit2.Signature(*IDENTITY, item.at_s, 0)
        for name in out.split():
            picked = self.commit(name)
            tree = str(picked.tree.id)
            if picked.parent_ids:
                # a stand-in for the head, grown from the commit's own parent, so that just this commit is merged
                stand_in = self._odb.create_commit(None, me, me, "", self.commit(head).tree.id, [picked.parent_ids[0]])
                tree = await self._merge_tree(str(stand_in), name)
            if tree != str(self.commit(head).tree.id):
                head = str(self._odb.create_commit(None, picked.author, me, picked.message, tree, [head]))
        return head

    async def _merge_tree(self, ours: str, theirs: str) -> str:
        args = ("merge-tree", "--write-tree", "--name-only", "--no-messages", ours, theirs)
        code, out = await git(*args, at=self.path, ok=(0, 1))
        lines = out.splitlines()
        if not lines or len(lines[0]) != 40:
            raise GitError(args, code, out or "the two histories cannot be merged")
        if code == 1:
            raise Conflict(", ".join(dict.fromkeys(name for name in lines[1:] if name)))
        return lines[0]

    # --- reading

    def texts(self, commit: str, paths: tuple[str, ...]) -> dict[str, str]:
        """Files named, and the `*.yaml` files (and `.zuul.ignore`) below the directories named; path -> text."""
        return texts(self.commit(commit).tree, paths)
