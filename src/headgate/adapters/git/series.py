"""Find the files and bases of many changes, with only a few git processes for all of them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from typing import NamedTuple

import pygit2

from headgate.adapters.git.command import GitError, GitImpossible, GitLimits, GitTimeout, git, is_damage
from headgate.adapters.git.mirror import MirrorRepository
from headgate.adapters.git.objects import between
from headgate.gate.state.change import ChangeState

FEW = 20
"""Up to this many commits are read in this process, without starting another one."""
COMPARED_FEW = 500
"""Up to this many pairs of commits are compared in this process."""
NEAR_MAX = 200
"""Commits of a branch that are searched for the fork point of a change."""
WALKED_MAX = 20_000
"""Up to this many commits outside of a branch are walked in this process."""
NEAREST_MAX = 201
"""Maximum number of names of ancestors that are collected for one commit."""
_NONE: frozenset[str] = frozenset()
PATHS_MAX_CHARS = 100_000
"""Total length of the paths of a change; even a small tree may have very many."""
CHANGES_LIMITS = GitLimits(timeout_s=30.0, out_max_bytes=64 * 2**20)
BASE_MAX_S = 30.0
BASES_MAX = 10
"""Maximum number of bases of one change that are compared."""
DAMAGED_MAX = 40
"""Maximum number of attempts to find the changes whose history is damaged."""


async def contained(mirror: MirrorRepository, head: str, commits: Collection[str]) -> set[str]:
    """Return the commits in the history of `head`. Requires that all of them are here."""
    if len(commits) <= FEW:
        return {commit for commit in commits if await mirror.contains(head, commit)}
    return set(commits) - set(await _outside(mirror, head, commits))


async def files(mirror: MirrorRepository, head: str, commits: Collection[str]) -> dict[str, tuple[str, ...] | None]:
    """Return the paths that each commit changes since it left the history of `head`; None if the histories have nothing
    in common, or if that cannot be determined."""
    near = await asyncio.to_thread(_near_bases, mirror, head, commits) if len(commits) <= FEW else {}
    bases: dict[str, tuple[str, ...]] = {commit: (base,) for commit, base in near.items()}
    far = set(commits) - set(bases)
    if far:
        bases |= await _bases(mirror, head, far)
    changed = await changes(mirror, ((commit, of[0]) for commit, of in bases.items()))
    found = {commit: changed.get((commit, bases[commit][0]), ()) if commit in bases else None for commit in commits}
    # What the change has of one base, a merge may bring back in place of what the branch has of another one.
    for commit, other in ((commit, other) for commit, of in bases.items() for other in of[1:]):
        before, more = found[commit], (await changes(mirror, [(commit, other)])).get((commit, other), ())
        found[commit] = None if before is None or more is None else tuple(sorted({*before, *more}))
    return found


def _near_bases(mirror: MirrorRepository, head: str, commits: Collection[str]) -> dict[str, str]:
    """Return the bases of commits that left the branch recently and have a linear history since."""
    branch, waiting = {head}, deque([head])
    while waiting and len(branch) < NEAR_MAX:
        parents = mirror.parents(waiting.popleft())
        waiting += (parent for parent in parents if parent not in branch)
        branch.update(parents)
    return {commit: base for commit in commits if (base := _base(mirror, branch, commit))}


def _base(mirror: MirrorRepository, branch: Set[str], commit: str) -> str:
    at = commit
    for _ in range(FEW):
        if at in branch:
            return at
        parents = mirror.parents(at)
        # A merge may have merged the branch itself; then the fork point is not on a single line.
        if len(parents) != 1:
            break
        at = parents[0]
    return ""


async def _bases(mirror: MirrorRepository, head: str, commits: Collection[str]) -> dict[str, tuple[str, ...]]:
    """Return the bases of a merge of each commit into `head`, which are several if the two have merged the same commits
    in different ways; without commits that have none, or too many."""
    found = await _outside(mirror, head, commits)
    edges = await asyncio.to_thread(_edges, found)
    bases: dict[str, tuple[str, ...]] = {}
    for commit in commits:
        # A commit that is not outside is already in the branch, and is its own base.
        left = edges.get(commit, frozenset((commit,)))
        if len(left) > 1:  # the change has merged the branch in the meantime
            try:
                _, out = await git("merge-base", "--all", head, commit, at=mirror.path, limits=GitLimits(BASE_MAX_S))
            except GitTimeout:
                continue
            left = frozenset(out.split())
        if 0 < len(left) <= BASES_MAX:
            bases[commit] = tuple(sorted(left))
    return bases


def _edges(found: Mapping[str, tuple[str, ...]]) -> dict[str, frozenset[str]]:
    """Return commit -> the commits at which its history leaves `found`."""
    edges: dict[str, frozenset[str]] = {}
    for commit, parents in found.items():
        first = frozenset(edges.get(parents[0], ()) if parents[0] in found else parents[:1]) if parents else frozenset()
        rest = {edge for p in parents[1:] for edge in (edges.get(p, ()) if p in found else (p,))}
        edges[commit] = first if first >= rest else first | rest
    return edges


async def outside(mirror: MirrorRepository, head: str, commits: Collection[str]) -> dict[str, tuple[str, ...]]:
    """Return the commits in the history of `commits` but not of `head` -> their parents; parents first. Requires that
    all are here; a commit that cannot be read counts as outside, without parents. Raise GitError."""
    try:
        return await asyncio.to_thread(_walked, mirror.repository, head, commits)
    # git handles more than the library, and `_outside` finds out whose history is damaged.
    except (pygit2.GitError, KeyError, ValueError, _Long):
        return dict.fromkeys(commits, ()) | await _outside(mirror, head, commits)


class _Long(Exception):
    """Report that a walk without a process would be too long."""


def _walked(repository: pygit2.Repository, head: str, commits: Collection[str]) -> dict[str, tuple[str, ...]]:
    order = pygit2.enums.SortMode.TOPOLOGICAL | pygit2.enums.SortMode.REVERSE
    walker, found = repository.walk(None, order), dict[str, tuple[str, ...]]()
    for tip in commits:
        walker.push(tip)
    walker.hide(head)
    for commit in walker:
        if len(found) >= WALKED_MAX:
            raise _Long
        found[str(commit.id)] = tuple(map(str, commit.parent_ids))
    return found


def nearest(found: Mapping[str, tuple[str, ...]], named: Mapping[str, frozenset[str]]) -> dict[str, frozenset[str]]:
    """Return commit -> the names of its nearest strict ancestors that have names, for the commits of `found`, which
    `outside` returns."""
    out: dict[str, frozenset[str]] = {}
    for commit, parents in found.items():
        names = [named.get(p) or out.get(p, _NONE) for p in parents]
        # Parents come first in `found`, so one pass suffices. In the common case of one parent, share its set, because
        # copies would need quadratic memory in a long stack.
        out[commit] = names[0] if len(names) == 1 else frozenset(sorted(frozenset().union(*names))[:NEAREST_MAX])
    return out


async def _outside(mirror: MirrorRepository, head: str, commits: Collection[str]) -> dict[str, tuple[str, ...]]:
    """Return commit -> parents, for the commits in the history of `commits` but not of `head`, parents first. Commits
    with a damaged history count as having no parents."""
    found: dict[str, tuple[str, ...]] = {}
    waiting, damaged = [list(commits)], 0
    while waiting:
        some = waiting.pop()
        lines = "\n".join((f"^{head}", *some)) + "\n"
        # `--reverse` with `--topo-order` yields parents first, so `_edges` and `nearest` need a single pass.
        args = ("rev-list", "--stdin", "--parents", "--topo-order", "--reverse")
        try:
            _, out = await git(*args, at=mirror.path, stdin=lines)
        except GitError as error:
            damaged += 1
            if not is_damage(error):
                raise
            # Halving the list finds one damaged change among n with about 2 log n calls; the others keep their
            # histories.
            if len(some) > 1 and damaged < DAMAGED_MAX:
                waiting += [some[len(some) // 2 :], some[: len(some) // 2]]
            else:
                found |= dict.fromkeys(some, ())
            continue
        found |= await asyncio.to_thread(_parents, out)
    return found


def _parents(out: str) -> dict[str, tuple[str, ...]]:
    return {commit: tuple(parents) for commit, *parents in (line.split(" ") for line in out.split("\n") if line)}


async def changes(
    mirror: MirrorRepository, pairs: Iterable[tuple[str, str]]
) -> dict[tuple[str, str], tuple[str, ...] | None]:
    """Return (commit, earlier commit) -> the paths that differ, with old and new names of renamed files, without pairs
    that are equal. None means that there are too many paths, or that they cannot be read."""
    wanted: Mapping[str, str] = dict(pairs)
    if len(wanted) > COMPARED_FEW:
        lines = "".join(f"{commit} {before}\n" for commit, before in wanted.items())
        args = ("diff-tree", "--stdin", "-r", "-z", "--raw", "--no-renames", "--no-abbrev")
        try:
            _, out = await git(*args, at=mirror.path, stdin=lines, limits=CHANGES_LIMITS)
            return {(commit, wanted[commit]): tuple(paths) for commit, paths in _by_commit(out.split("\0"))}
        except GitError as error:
            if not is_damage(error) and not isinstance(error, GitTimeout):
                raise
    found = await asyncio.to_thread(lambda: {pair: _differing(mirror, *pair) for pair in wanted.items()})
    return {pair: paths for pair, paths in found.items() if paths != ()}


def _differing(mirror: MirrorRepository, commit: str, before: str) -> tuple[str, ...] | None:
    found, size = list[str](), 0
    try:
        for path in between(mirror.repository.odb, mirror.tree(before), mirror.tree(commit)):
            found.append(path)
            size += len(path)
            if size > PATHS_MAX_CHARS:
                return None
    except (GitImpossible, pygit2.GitError, KeyError, ValueError):
        return None
    return tuple(sorted(found))


def _by_commit(fields: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield the entries of each commit. An entry is two fields, the first of which begins with a colon; the id of
    the commit precedes its entries."""
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


def few(paths: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """Return the paths, or None if their total length exceeds `PATHS_MAX_CHARS`."""
    return None if paths is None or sum(map(len, paths)) > PATHS_MAX_CHARS else paths


class Stacked(NamedTuple):
    """Hold the changes that one change is built on; `bases` and `stale` are as in `gate.state.change.Change`."""

    bases: tuple[str, ...] = ()
    stale: tuple[str, ...] = ()
    arrived: bool = False
    """Whether its branch contains the change; anybody may have pushed it there."""


async def stacked(
    mirror: MirrorRepository,
    head: str,
    tips: Mapping[str, str],
    known: Mapping[str, ChangeState],
    refs: Mapping[str, str],
) -> dict[str, Stacked]:
    """Return the changes that each of `tips` (key -> commit) is built on. All of them are proposed for one branch, with
    the head `head` and the changes `known`; `refs` contains their refs. Raise GitError."""
    found = await outside(mirror, head, set(tips.values()))
    named: dict[str, set[str]] = {}
    # The branch does not contain the commit of a change that was squashed or rebased when it landed. Changes on top of
    # it must still know this base, or its part would be merged twice.
    landed = {key: change_state.change.commit for key, change_state in known.items() if change_state.landed}
    for key, commit in (*tips.items(), *landed.items()):
        named.setdefault(commit, set()).add(key)
    near = nearest(found, {commit: frozenset(keys) for commit, keys in named.items() if commit in found})
    built = {}
    for key, tip in tips.items():
        bases, stale = set(near.get(tip, _NONE)), set[str]()
        change_state = known.get(key)
        if change_state is not None and change_state.open and change_state.change.commit == tip:
            for base in set(change_state.change.bases) - bases:
                is_base, is_stale = await _earlier(mirror, tip, known.get(base), refs)
                bases |= {base} if is_base else _NONE
                stale |= {base} if is_stale else _NONE
        built[key] = Stacked(tuple(sorted(bases)), tuple(sorted(stale)), tip not in found)
    return built


async def _earlier(
    mirror: MirrorRepository, tip: str, base: ChangeState | None, refs: Mapping[str, str]
) -> tuple[bool, bool]:
    """Return whether `base` is still a base of `tip`, as it was when `tip` was proposed, and whether `tip` is built on
    another patchset of it. An approval of the tip does not extend to the changes below, whatever happens to them."""
    if base is None:
        return False, False
    commit = refs.get(base.change.ref, base.change.commit)
    below = not await mirror.missing([commit]) and await mirror.contains(tip, commit)
    gone = not base.landed and base.change.ref not in refs
    return not below or gone, not below
