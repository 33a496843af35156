"""What many changes are made of, with a few processes for all of them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Set

from headgate.adapters.git.command import git
from headgate.adapters.git.mirror import MirrorRepository
from headgate.adapters.git.objects.trees import between

FEW = 20
"""Commits looked at one by one, without a process."""
NEAR_MAX = 200
"""Commits of a branch looked at for where a change left it."""


async def contained(mirror: MirrorRepository, head: str, commits: Collection[str]) -> set[str]:
    """Those in the history of `head`.  All must be here."""
    if len(commits) <= FEW:
        return {commit for commit in commits if await mirror.contains(head, commit)}
    return set(commits) - set(await _outside(mirror, head, commits))


async def files(mirror: MirrorRepository, head: str, commits: Collection[str]) -> dict[str, tuple[str, ...] | None]:
    """The paths each commit changes against where it left the history of `head`; None: it never was on it."""
    bases = await asyncio.to_thread(_near_bases, mirror, head, commits) if len(commits) <= FEW else {}
    far = set(commits) - set(bases)
    if far:
        bases |= await _bases(mirror, head, far)
    changed = await changes(mirror, bases.items())
    return {commit: changed.get((commit, bases[commit]), ()) if commit in bases else None for commit in commits}


def _near_bases(mirror: MirrorRepository, head: str, commits: Collection[str]) -> dict[str, str]:
    """Of commits that left the branch lately, and in one line."""
    branch, waiting = {head}, deque([head])
    while waiting and len(branch) < NEAR_MAX:
        parents = [str(parent) for parent in mirror.commit(waiting.popleft()).parent_ids]
        waiting += (parent for parent in parents if parent not in branch)
        branch.update(parents)
    return {commit: base for commit in commits if (base := _base(mirror, branch, commit))}


def _base(mirror: MirrorRepository, branch: Set[str], commit: str) -> str:
    at = commit
    for _ in range(FEW):
        if at in branch:
            return at
        parents = mirror.commit(at).parent_ids
        if len(parents) != 1:
            break
        at = str(parents[0])
    return ""


async def _bases(mirror: MirrorRepository, head: str, commits: Collection[str]) -> dict[str, str]:
    found = await _outside(mirror, head, commits)
    edges: dict[str, frozenset[str]] = {}
    for commit, parents in found.items():
        edges[commit] = frozenset(edge for p in parents for edge in (edges.get(p, ()) if p in found else (p,)))
    bases: dict[str, str] = {}
    for commit in commits:
        left = edges.get(commit, frozenset((commit,)))
        if len(left) > 1:  # it was merged with the branch meanwhile
            _, out = await git("merge-base", head, commit, at=mirror.path)
            left = frozenset(out.split()[:1])
        if left:
            bases[commit] = min(left)
    return bases


async def _outside(mirror: MirrorRepository, head: str, commits: Collection[str]) -> dict[str, tuple[str, ...]]:
    """The commits in the history of `commits` but not of `head` -> their parents; parents first."""
    lines = "\n".join((f"^{head}", *commits)) + "\n"
    args = ("rev-list", "--stdin", "--parents", "--topo-order", "--reverse")
    _, out = await git(*args, at=mirror.path, stdin=lines)
    return {commit: tuple(parents) for commit, *parents in (line.split(" ") for line in out.split("\n") if line)}


async def changes(mirror: MirrorRepository, pairs: Iterable[tuple[str, str]]) -> dict[tuple[str, str], tuple[str, ...]]:
    """(commit, earlier commit) -> paths that differ, old and new names of what was renamed; without pairs that are
    alike."""
    wanted: Mapping[str, str] = dict(pairs)
    if len(wanted) <= FEW:
        found = await asyncio.to_thread(lambda: {pair: _differing(mirror, *pair) for pair in wanted.items()})
        return {pair: paths for pair, paths in found.items() if paths}
    lines = "".join(f"{commit} {before}\n" for commit, before in wanted.items())
    args = ("diff-tree", "--stdin", "-r", "-z", "--raw", "--no-renames", "--no-abbrev")
    _, out = await git(*args, at=mirror.path, stdin=lines)
    listed = _by_commit(out.split("\0"))
    return {(commit, wanted[commit]): tuple(paths) for commit, paths in listed}


def _differing(mirror: MirrorRepository, commit: str, before: str) -> tuple[str, ...]:
    return tuple(sorted(between(mirror.commit(before).tree, mirror.commit(commit).tree)))


def _by_commit(fields: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Each entry is two fields, of which the first begins with a colon; before the entries of a commit is its id."""
    commit, paths, at = "", list[str](), 0
    while at < len(fields) and fields[at]:
        if fields[at].startswith(":"):
            paths.append(fields[at + 1])
            at += 2
            continue
        if commit:
            yield commit, paths
        commit, paths, at = fields[at], [], at + 1
    if commit:
        yield commit, paths
