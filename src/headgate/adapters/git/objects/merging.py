"""Merging in memory, in each of the modes.  Nothing of a change is lost, whatever its shape:

- `merge`: a merge commit of the branch and the change.
- `squash-merge`: one commit with everything the change changes.
- `cherry-pick`, `rebase`: the commits of the change on top of the branch, along their first parents.  A merge commit
  among them becomes one commit with all it brought to its first parent, what was made in the merge included (as
  `git cherry-pick -m 1`).  Commits that were empty from the start stay; those that become empty go.  `rebase` leaves a
  change that is on top of the branch already as it is; `cherry-pick` makes its commits anew.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import NamedTuple, Protocol

from headgate.adapters.git.command import EMPTY_TREE, GitError, Impossible, git
from headgate.adapters.git.objects.commits import Original, retold
from headgate.adapters.git.objects.conflicts import conflicts
from headgate.gate.work import MergeItem

_OBJECT_ID_LENGTHS = (40, 64)


class Conflict(Exception):
    """The change does not merge; the text names the files."""


class Parts(NamedTuple):
    """A commit, taken apart."""

    tree: str
    parents: tuple[str, ...]
    original: Original


class Objects(Protocol):
    """The repository merged in."""

    path: Path

    def parts(self, commit: str) -> Parts: ...
    def write(self, tree: str, parents: tuple[str, ...], at_s: int, like: bytes | Parts) -> str: ...
    def write_empty_tree(self) -> str: ...
    async def near(self, head: str, commit: str) -> bool | None: ...
    async def contains(self, head: str, commit: str) -> bool: ...


async def merge(objects: Objects, head: str, item: MergeItem) -> str:
    """The commit after `item` was merged onto `head`; `head` when it has all of it.  Raises Conflict, GitError."""
    if item.mode in ("cherry-pick", "rebase"):
        return await _pick(objects, head, item)
    onto, change = await asyncio.to_thread(lambda: (objects.parts(head), objects.parts(item.commit)))
    near = await objects.near(head, item.commit)
    if near:
        return head
    tree = change.tree if near is False else await _merge_tree(objects.path, head, item.commit)
    message = item.message.strip().replace("\0", "") or item.commit
    if item.mode == "squash-merge":
        if tree == onto.tree:
            return head
        told = Parts(tree, (), retold(change.original, f"{message}\n"))
        return await asyncio.to_thread(objects.write, tree, (head,), item.at_s, told)
    if tree == onto.tree and await objects.contains(head, item.commit):
        return head
    topic = item.ref.removeprefix(f"refs/for/{item.branch}/")
    text = f"Merge {topic!r} into {item.branch}\n\n{message}\n".encode(errors="replace")
    return await asyncio.to_thread(objects.write, tree, (head, item.commit), item.at_s, text)


async def _pick(objects: Objects, head: str, item: MergeItem) -> str:
    objects.parts(item.commit)
    if item.mode == "rebase" and await objects.contains(item.commit, head):
        return item.commit
    args = ("rev-list", "--reverse", "--first-parent", f"{head}..{item.commit}", "--")
    _, out = await git(*args, at=objects.path)
    for name in out.split():
        head = await _pick_one(objects, head, name, item.at_s)
    return head


async def _pick_one(objects: Objects, head: str, name: str, at_s: int) -> str:
    onto, picked = await asyncio.to_thread(lambda: (objects.parts(head), objects.parts(name)))
    before = (await asyncio.to_thread(objects.parts, picked.parents[0])).tree if picked.parents else EMPTY_TREE
    if before == picked.tree:
        if len(picked.parents) > 1:
            return head
        return await asyncio.to_thread(objects.write, onto.tree, (head,), at_s, picked)
    tree = picked.tree
    if before != onto.tree:
        ours, theirs = await asyncio.to_thread(_sides, objects, onto.tree, name, picked)
        tree = await _merge_tree(objects.path, ours, theirs)
    if tree == onto.tree:
        return head
    return await asyncio.to_thread(objects.write, tree, (head,), at_s, picked)


def _sides(objects: Objects, tree: str, name: str, picked: Parts) -> tuple[str, str]:
    """Two commits whose merge applies just `picked` to `tree`: a stand-in for the head that grew from the parent of
    `picked`, and `picked` itself.  One without a parent is given one without files."""
    if picked.parents:
        return objects.write(tree, picked.parents[:1], 0, b""), name
    root = objects.write(objects.write_empty_tree(), (), 0, b"")
    return objects.write(tree, (root,), 0, b""), objects.write(picked.tree, (root,), 0, b"")


async def _merge_tree(path: Path, ours: str, theirs: str) -> str:
    args = ("merge-tree", "--write-tree", "-z", "--name-only", ours, theirs)
    try:
        code, out = await git(*args, at=path, ok=(0, 1))
        tree, *fields = out.split("\0")
        if len(tree) not in _OBJECT_ID_LENGTHS:  # 1 is also the status of a git that failed
            raise GitError(args, code, out)
    except GitError as error:
        unrelated, _ = await git("merge-base", ours, theirs, at=path, ok=(0, 1))
        if unrelated:
            raise Impossible(args, error.code, error.said) from error
        raise
    if code == 1:
        raise Conflict(conflicts(fields, (ours, theirs)))
    return tree
