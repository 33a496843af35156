"""Merge in memory, in each of the merge modes, without losing any part of a change, whatever its shape.

- `merge`: a merge commit of the branch and the change.
- `squash-merge`: one commit with everything that the change changes.
- `cherry-pick`, `rebase`: the commits of the change on top of the branch, along their first parents.  A merge commit
  among them becomes one commit with everything that it added to its first parent, including edits made in the merge
  itself (as `git cherry-pick -m 1`).  Commits that were empty from the start stay; those that become empty are
  dropped.  `rebase` leaves a change alone that is already on top of the branch; `cherry-pick` makes its commits again.

If a change is built on another one, only what it adds to that one is merged, whatever commit the other one landed as.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import pygit2

from headgate.adapters.git import command
from headgate.adapters.git.objects import Original, Parts, between, conflicts, shown_name, with_message
from headgate.adapters.git.soundness import check
from headgate.base.errors import RepositoryError
from headgate.gate.state.gitwork import MergeItem

_OBJECT_ID_LENGTHS = (40, 64)
MERGE_MAX_S = 120.0
"""Time limit of the merge of one change; a change that takes longer is an attack, or too large for a gate."""
GENTLE_AFTER_S = 5.0
"""Time after which a merge gives way to all other processes."""
MERGE_SAYS_MAX_BYTES = 64 * 2**20
PICKED_MAX = 1_000
"""Maximum number of commits of one change that are cherry-picked one by one."""


UNDONE = "its commits change and restore a file that the branch has changed in the same way, which they would undo"


class MergeConflict(RepositoryError):
    """Report that the change does not merge; the message names the files."""


class MergeObjects(Protocol):
    """Declare the repository to merge in."""

    path: Path

    @property
    def repository(self) -> pygit2.Repository: ...
    def parts(self, commit: str) -> Parts: ...
    def parents(self, commit: str) -> tuple[str, ...]: ...
    def write(self, tree: str, parents: tuple[str, ...], at_s: int, like: bytes | Original) -> str: ...
    def write_empty_tree(self) -> str: ...
    async def near(self, head: str, commit: str) -> bool | None: ...
    async def contains(self, head: str, commit: str) -> bool: ...


async def merge(objects: MergeObjects, head: str, item: MergeItem) -> str:
    """Return the commit that merges `item` into `head`; `head` if that already contains all of it. Raise MergeConflict,
    GitError."""
    # The change has one deadline: a thousand picks, each within a limit of its own, could take a day.
    until_s = asyncio.get_running_loop().time() + MERGE_MAX_S
    # Check before merging: jobs check out the result, and a malicious tree must not reach their machines.
    await check(objects, head, item.commit)
    if item.mode in ("cherry-pick", "rebase"):
        return await _pick(objects, head, item, until_s)
    onto, change = await asyncio.to_thread(lambda: (objects.parts(head), objects.parts(item.commit)))
    near = await objects.near(head, item.commit)
    # The branch already contains the change; merging would add an empty commit.
    if near:
        return head
    ours = head if near is False else await _grown(objects, head, onto.tree, item)
    # `near` is False if the change descends from the head: the merge then has the tree of the change.
    tree = change.tree if near is False else await _merge_tree(objects.path, ours, item.commit, until_s)
    message = item.message.strip().replace("\0", "") or item.commit
    if item.mode == "squash-merge":
        if tree == onto.tree:
            return head
        squashed = with_message(change.original, f"{message}\n")
        return await asyncio.to_thread(objects.write, tree, (head,), item.at_s, squashed)
    if tree == onto.tree and await objects.contains(head, item.commit):
        return head
    topic = item.ref.removeprefix(f"refs/for/{item.branch}/")
    text = f"Merge {topic!r} into {item.branch}\n\n{message}\n".encode(errors="replace")
    return await asyncio.to_thread(objects.write, tree, (head, item.commit), item.at_s, text)


async def _pick(objects: MergeObjects, head: str, item: MergeItem, until_s: float) -> str:
    objects.parts(item.commit)
    if item.mode == "rebase" and await objects.contains(item.commit, head):
        return item.commit
    beneath = [f"^{base}" for base in await _bases(objects, head, item)]
    args = ("rev-list", "--reverse", "--first-parent", f"{head}..{item.commit}", *beneath, "--")
    _, out = await command.git(*args, at=objects.path)
    names = out.split()
    if len(names) > PICKED_MAX:
        raise command.GitImpossible(args, 1, f"it has {len(names)} commits; {PICKED_MAX} can be picked one by one")
    onto = head
    for name in names:
        head = await _pick_one(objects, head, name, item.at_s, until_s)
    if len(names) > 1:
        await _check_undone(objects, onto, head, item.commit, names)
    return head


async def _check_undone(objects: MergeObjects, onto: str, picked: str, commit: str, names: Sequence[str]) -> None:
    """Check that the picks `names`, which made `picked` from `onto`, change no file that the change as a whole leaves
    as it was. If the branch has one of its commits already, only the one that takes it back has an effect: nobody would
    see that in the change, and jobs for the file would not run. Raise GitImpossible, GitError."""
    args, limits = ("merge-base", "--all", onto, commit), command.GitLimits(MERGE_MAX_S)
    try:
        code, out = await command.git(*args, at=objects.path, ok=(0, 1), limits=limits)
    except command.GitTimeout as error:
        raise command.GitImpossible(args, error.code, f"{error}; propose it in smaller parts") from error
    bases = out.split() if code == 0 else []

    def undone() -> set[str]:
        try:
            found = _changed(objects, onto, picked)
            for base in bases:
                found -= _changed(objects, base, commit)
            steps = ((parents[0] if (parents := objects.parents(name)) else "", name) for name in names if found)
            return found & {path for before, name in steps for path in _changed(objects, before, name)}
        # The files of a change that is too large to compare are unknown, so all jobs run for it.
        except command.GitImpossible:
            return set()

    if bases and (paths := await asyncio.to_thread(undone)):
        raise command.GitImpossible(args, 1, f"{UNDONE}: {shown_name(min(paths))}; squash them, or rebase the change")


def _changed(objects: MergeObjects, before: str, after: str) -> set[str]:
    """Return the paths that differ between two commits; an empty name stands for one without files. Raise
    GitImpossible."""
    old, new = (objects.parts(one).tree if one else objects.write_empty_tree() for one in (before, after))
    trees = objects.repository[old].peel(pygit2.Tree), objects.repository[new].peel(pygit2.Tree)
    return set(between(objects.repository.odb, *trees))


async def _bases(objects: MergeObjects, head: str, item: MergeItem) -> list[str]:
    """Return the commits on which the change is built and that `head` contains as different commits."""
    found = list[str]()
    for base in item.bases:
        try:
            objects.parts(base)
        except command.GitImpossible:  # it cannot be read, so the change is not built on it
            continue
        if await objects.contains(item.commit, base) and not await objects.contains(head, base):
            found.append(base)
    return found


async def _grown(objects: MergeObjects, head: str, tree: str, item: MergeItem) -> str:
    """Return `head`, or a stand-in with the same files whose ancestors include those that the change is built on, so
    that their changes are not merged twice."""
    bases = await _bases(objects, head, item) if item.bases else []
    # Use a fixed time and no message, so that the stand-in is always the same object.
    return await asyncio.to_thread(objects.write, tree, (head, *bases), 0, b"") if bases else head


async def _pick_one(objects: MergeObjects, head: str, name: str, at_s: int, until_s: float) -> str:
    onto, picked = await asyncio.to_thread(lambda: (objects.parts(head), objects.parts(name)))
    before = (await asyncio.to_thread(objects.parts, picked.parents[0])).tree if picked.parents else command.EMPTY_TREE
    if before == picked.tree:
        if len(picked.parents) > 1:
            return head
        return await asyncio.to_thread(objects.write, onto.tree, (head,), at_s, picked.original)
    tree = picked.tree
    # If the parent has the same files as the head, the picked commit's tree is the result, without a merge.
    if before != onto.tree:
        ours, theirs = await asyncio.to_thread(_sides, objects, onto.tree, name, picked)
        tree = await _merge_tree(objects.path, ours, theirs, until_s)
    if tree == onto.tree:
        return head
    return await asyncio.to_thread(objects.write, tree, (head,), at_s, picked.original)


def _sides(objects: MergeObjects, tree: str, name: str, picked: Parts) -> tuple[str, str]:
    """Return two commits whose merge applies only `picked` to `tree`: a stand-in for the head that descends from the
    parent of `picked`, and `picked` itself. A commit without a parent gets one without files."""
    if picked.parents:
        return objects.write(tree, picked.parents[:1], 0, b""), name
    root = objects.write(objects.write_empty_tree(), (), 0, b"")
    return objects.write(tree, (root,), 0, b""), objects.write(picked.tree, (root,), 0, b"")


async def _merge_tree(path: Path, ours: str, theirs: str, until_s: float) -> str:
    args = ("merge-tree", "--write-tree", "-z", "--name-only", ours, theirs)
    left_s = until_s - asyncio.get_running_loop().time()
    if left_s <= 0:
        why = f"merging its commits took longer than {MERGE_MAX_S:.0f} s; propose it in smaller parts"
        raise command.GitImpossible(args, -1, why)
    limits = command.GitLimits(left_s, MERGE_SAYS_MAX_BYTES, gentle_after_s=GENTLE_AFTER_S)
    try:
        code, out = await command.git(*args, at=path, ok=(0, 1), limits=limits)
        tree, *fields = out.split("\0")
        if len(tree) not in _OBJECT_ID_LENGTHS:  # 1 is also the status of a git that failed
            raise command.GitError(args, code, out)
    except command.GitTimeout as error:
        raise command.GitImpossible(args, error.code, f"{error}; propose it in smaller parts") from error
    except command.GitError as error:
        # Git hit our own memory limit, so another attempt would fail in the same way.
        if command.is_want_of_memory(error):
            raise command.GitImpossible(args, error.code, f"{error}; propose it in smaller parts") from error
        if command.is_of_this_machine(error):
            raise
        # A change without a common history is at fault itself, so repeating the merge would not help.
        unrelated, _ = await command.git("merge-base", ours, theirs, at=path, ok=(0, 1, 128))
        if unrelated or command.is_damage(error):
            raise command.GitImpossible(args, error.code, error.message) from error
        raise
    if code == 1:
        raise MergeConflict(await asyncio.to_thread(conflicts, fields, (ours, theirs)))
    return tree
