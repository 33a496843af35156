"""What many changes are made of, with a few processes for all of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from headgate.adapters.git.command import git
from headgate.adapters.git.mirror import MirrorRepository


async def outside(mirror: MirrorRepository, head: str, commits: Collection[str]) -> dict[str, tuple[str, ...]]:
    """The commits in the history of `commits` but not of `head` -> their parents; parents first."""
    lines = "\n".join((f"^{head}", *commits)) + "\n"
    args = ("rev-list", "--stdin", "--parents", "--topo-order", "--reverse")
    _, out = await git(*args, at=mirror.path, stdin=lines)
    return {commit: tuple(parents) for commit, *parents in (line.split(" ") for line in out.split("\n") if line)}


async def files(mirror: MirrorRepository, head: str, commits: Collection[str]) -> dict[str, tuple[str, ...] | None]:
    """The paths each commit changes against where it left the history of `head`; None: it never was on it."""
    found = await outside(mirror, head, commits)
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
    changed = await changes(mirror, bases.items())
    return {commit: changed.get((commit, bases[commit]), ()) if commit in bases else None for commit in commits}


async def changes(mirror: MirrorRepository, pairs: Iterable[tuple[str, str]]) -> dict[tuple[str, str], tuple[str, ...]]:
    """(commit, earlier commit) -> paths that differ, old and new names of what was renamed; without pairs that are
    alike."""
    wanted: Mapping[str, str] = dict(pairs)
    if not wanted:
        return {}
    lines = "".join(f"{commit} {before}\n" for commit, before in wanted.items())
    args = ("diff-tree", "--stdin", "-r", "-z", "--raw", "--no-renames", "--no-abbrev")
    _, out = await git(*args, at=mirror.path, stdin=lines)
    found: dict[tuple[str, str], tuple[str, ...]] = {}
    for commit, paths in _by_commit(out.split("\0")):
        found[commit, wanted[commit]] = tuple(paths)
    return found


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
