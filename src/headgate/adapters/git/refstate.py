"""Determine what the jobs of a ref run on: the current branches of its repository, and the ref as it was reported."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pygit2

from headgate.adapters.git.command import GitError, GitImpossible, GitLimits, RemoteError, git, is_damage
from headgate.adapters.git.mirror import COMMIT_MAX_BYTES, MirrorRepository
from headgate.gate.state.change import HEADS, TAGS, ZEROS
from headgate.gate.state.works import RefAt

NESTED_MAX = 50
"""Longest chain of tags that name another tag."""
CONTAINING_LIMITS = GitLimits(timeout_s=60.0, out_max_bytes=64 * 2**20)


async def ref_state(
    mirror: MirrorRepository, at: RefAt, heads: Mapping[str, str]
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the refs of the project for the jobs of `at`, and the branches that contain a tag.

    `heads`: its branches, whose commits are here.  Raise GitImpossible if the ref names no commit or has moved,
    GitError, OSError."""
    others = {ref: commit for ref, commit in heads.items() if ref != at.ref}
    # The ref was deleted. For a tag, its old commit may still be here, and shows which branches the jobs concern.
    if at.commit == ZEROS:
        present = at.old_commit not in ("", ZEROS) and not await mirror.missing([at.old_commit])
        return others, await containing(mirror, at.old_commit, heads) if present and at.ref.startswith(TAGS) else ()
    # People may enqueue any commit. Without this check, an unreviewed one would run with the rights of its branch.
    if at.held:
        await _hold(mirror, at, heads)
    await _bring(mirror, at)
    commit = await asyncio.to_thread(peeled, mirror, at.commit, at.ref)
    if at.ref.startswith(TAGS) and await mirror.missing([commit]):
        raise _impossible(f"{at.ref} names {commit}, which is not in {mirror.remote.url}")
    found = await containing(mirror, commit, heads) if at.ref.startswith(TAGS) else ()
    return {**others, at.ref: at.commit}, found


async def _bring(mirror: MirrorRepository, at: RefAt) -> None:
    if at.commit not in await mirror.bring({at.ref: at.commit}):
        return
    if why := mirror.refusals.why(at.commit):
        error = GitImpossible if mirror.refusals.is_sure(at.commit) else RemoteError
        raise error(("fetch",), 1, f"{at.ref} cannot be fetched: {why}")
    raise _impossible(f"{at.ref} no longer names {at.commit}, and no other ref of {mirror.remote.url} contains it")


async def _hold(mirror: MirrorRepository, at: RefAt, heads: Mapping[str, str]) -> None:
    """Raise GitImpossible unless the ref names the commit or, as a branch, contains it."""
    if at.ref.startswith(HEADS):
        head = heads.get(at.ref, "")
        if head and not await mirror.missing([at.commit]) and await mirror.contains(head, at.commit):
            return
    elif (await mirror.remote.refs(at.ref)).get(at.ref) == at.commit:
        return
    raise _impossible(
        f"{at.commit} is not in {at.ref}; somebody with the permission enqueue-unapproved may enqueue it anyway, with "
        "the option unapproved"
    )


def _impossible(why: str) -> GitImpossible:
    return GitImpossible(("fetch",), 1, why)


def peeled(mirror: MirrorRepository, object: str, ref: str = "it") -> str:
    """Return the commit that an object is or, as a tag, names. Raise GitImpossible."""
    repository, at = mirror.repository, object
    for _ in range(NESTED_MAX):
        try:
            kind, size = repository.odb.read_header(at)
            if kind == pygit2.enums.ObjectType.COMMIT:
                return at
            if kind != pygit2.enums.ObjectType.TAG:
                break
            if size > COMMIT_MAX_BYTES:
                raise _impossible(f"{ref} names a tag of {size} bytes; at most {COMMIT_MAX_BYTES} are allowed")
            at = _tagged(repository.read(at)[1])
        except (KeyError, ValueError, pygit2.GitError, OSError) as error:
            raise _impossible(f"{ref} names {at}, which cannot be read: {error}") from error
    else:
        raise _impossible(f"{ref} names a tag of a tag, and so on, more than {NESTED_MAX} times")
    raise _impossible(f"{ref} names a {kind.name.lower()}, {at}, instead of a commit: there is nothing to run jobs on")


def noted(mirror: MirrorRepository, object: str) -> str:
    """Return the object that gets the note if a ref names `object`: its commit or, without a commit, the object
    itself.
    """
    try:
        return peeled(mirror, object)
    except GitImpossible:
        return object


def _tagged(tag: bytes) -> str:
    """Return the id of the object that a tag names.  Raise ValueError."""
    first, _, _ = tag.partition(b"\n")
    word, _, name = first.partition(b" ")
    if word != b"object" or len(name) not in (40, 64):
        raise ValueError("it is not a tag that git would write")
    return name.decode("ascii")


async def containing(mirror: MirrorRepository, commit: str, heads: Mapping[str, str]) -> tuple[str, ...]:
    """Return the branches that contain `commit`, by name. Raise GitError."""
    absent = await mirror.missing(heads.values())
    tips = {head for head in heads.values() if head not in absent}
    has = {head for head in tips if head == commit}
    unsure = set[str]()
    for head in tips - has:
        # This answers for most branches without a process; a single git process then answers for all the others.
        near = await mirror.near(head, commit)
        if near:
            has.add(head)
        elif near is None:
            unsure.add(head)
    if unsure:
        has |= unsure & await _descendants(mirror, commit, unsure)
    return tuple(sorted(ref.removeprefix(HEADS) for ref, head in heads.items() if head in has))


async def _descendants(mirror: MirrorRepository, commit: str, heads: set[str]) -> set[str]:
    """Return the commits between `commit` and the heads, and those heads that contain it. Raise GitError."""
    lines = "".join(f"{line}\n" for line in (f"^{commit}", *sorted(heads)))
    try:
        _, out = await git(
            "rev-list", "--stdin", "--ancestry-path", at=mirror.path, stdin=lines, limits=CONTAINING_LIMITS
        )
    except GitError as error:
        if not is_damage(error):
            raise
        # One damaged history must not hide the branches whose history is sound.
        return {head for head in heads if await mirror.contains(head, commit)}
    return set(out.split())
