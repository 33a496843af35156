"""Do a merger's work for reviewers: the files and commits of a change, patches and remarks."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence

import pygit2

from headgate.adapters.git.command import EMPTY_TREE, GitError, GitImpossible, GitLimits, GitTimeout, git
from headgate.adapters.git.mirror import MirrorRepository
from headgate.adapters.git.notes import REVIEW_NOTES, read_remarks, with_remark
from headgate.adapters.git.objects import decoded
from headgate.adapters.git.patches import Patches
from headgate.adapters.git.push import say
from headgate.adapters.git.series import BASES_MAX
from headgate.gate.state import gitwork

COMMITS_MAX = 100
"""Maximum number of commits of a change that are shown."""
MESSAGE_MAX_CHARS = 4_000
LISTED_MAX = 4
"""Comparisons of trees that are cached for the request of their next page."""
LIMITS = GitLimits(timeout_s=30.0, out_max_bytes=32 * 2**20, memory_max_bytes=2**30)
"""Limits of a comparison; they suffice for some 200,000 files."""
SUBMODULE = "160000"
_FAILURES = (GitError, OSError, pygit2.GitError)


class Listed:
    """List the files that differ between two commits, and cache the latest lists."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, str, tuple[str, ...]], list[gitwork.ReviewFile]] = OrderedDict()

    async def page(
        self, mirror: MirrorRepository, befores: tuple[str, ...], after: str, number: int
    ) -> tuple[tuple[gitwork.ReviewFile, ...], int]:
        """Return a page of the files, and their total number. A file that differs in several of `befores` is compared
        with the first of these. Raise GitError, OSError."""
        key = (str(mirror.path), after, befores)
        found = self._known.get(key)
        if found is None:
            by_path = dict[str, gitwork.ReviewFile]()
            for before in befores:
                by_path = {**{one.path: one for one in await _compared(mirror, before, after)}, **by_path}
            found = self._known[key] = list(by_path.values())
            if len(self._known) > LISTED_MAX:
                self._known.popitem(last=False)
        self._known.move_to_end(key)
        start = number * gitwork.FILES_A_PAGE
        page = found[start : start + gitwork.FILES_A_PAGE]
        return tuple(await asyncio.to_thread(_sized, mirror.repository, page)), len(found)


async def _compared(mirror: MirrorRepository, before: str, after: str) -> list[gitwork.ReviewFile]:
    args = ("diff-tree", "-r", "-z", "-M", "--raw", "--full-index", "--end-of-options", before or EMPTY_TREE, after)
    # The empty tree is known to git but need not exist as an object in the repository.
    if not before:
        mirror.write_empty_tree()
    try:
        _, out = await git(*args, at=mirror.path, limits=LIMITS)
    except GitTimeout as error:
        raise GitImpossible(args, -1, f"it changes more files than can be listed here; use git: {error}") from error
    return await asyncio.to_thread(lambda: list(_files(out.split("\0"))))


def _files(words: Sequence[str]) -> Iterator[gitwork.ReviewFile]:
    """Yield the files that the output of `git diff-tree -z --raw` names; `words` is the output split at NULs."""
    rest = iter(words)
    for head in rest:
        if not head.startswith(":"):
            continue
        old_mode, new_mode, old, new, status = head[1:].split(" ")
        path, old_path = next(rest), ""
        if status[0] in "RC":
            path, old_path = next(rest), path
        yield gitwork.ReviewFile(path, status[0], old, new, old_mode, new_mode, old_path)


def _sized(repository: pygit2.Repository, files: Sequence[gitwork.ReviewFile]) -> Iterator[gitwork.ReviewFile]:
    return iter([_with_sizes(repository, one) for one in files])


def _with_sizes(repository: pygit2.Repository, file: gitwork.ReviewFile) -> gitwork.ReviewFile:
    sizes = [_size(repository, *side) for side in ((file.old, file.old_mode), (file.new, file.new_mode))]
    return gitwork.ReviewFile(
        file.path, file.status, file.old, file.new, file.old_mode, file.new_mode, file.old_path, *sizes
    )


def _size(repository: pygit2.Repository, id: str, mode: str) -> int:
    if mode == SUBMODULE or not id.strip("0"):
        return 0
    try:
        return int(repository.odb.read_header(id)[1])
    except (KeyError, pygit2.GitError, ValueError):
        return 0


async def commits_of(
    mirror: MirrorRepository, head: str, commit: str, below: Collection[str]
) -> tuple[tuple[str, ...], tuple[gitwork.ReviewCommit, ...], bool]:
    """Return the commits to compare a change with, the change's own commits, newest first, and whether there are more
    of them. There are several to compare with if a merge has several bases: it may take back what one of them has.
    Raise GitError, OSError."""
    code, out = await git("merge-base", "--all", head, commit, at=mirror.path, ok=(0, 1), limits=LIMITS)
    bases = tuple(out.split()[:BASES_MAX]) if code == 0 and out.split() else ("",)
    wanted = [f"^{base}" for base in bases if base]
    walk = ("rev-list", "--topo-order", f"--max-count={COMMITS_MAX + 1}", commit, *wanted)
    _, out = await git(*walk, at=mirror.path, limits=LIMITS)
    ids, beneath = out.split(), set(below) - {commit}
    lowest = next((number for number, id in enumerate(ids) if id in beneath), None)
    if lowest is not None:
        bases = (ids[lowest],)
        _, out = await git(*walk, f"^{ids[lowest]}", at=mirror.path, limits=LIMITS)
        ids = out.split()
    shown = await asyncio.to_thread(lambda: tuple(_commit(mirror, id) for id in ids[:COMMITS_MAX]))
    return bases, shown, len(ids) > COMMITS_MAX


async def alone(mirror: MirrorRepository, commit: str) -> tuple[str, tuple[gitwork.ReviewCommit, ...]]:
    """Return the commit to compare a single commit with, and the commit itself. Raise GitError."""
    shown = await asyncio.to_thread(_commit, mirror, commit)
    return (shown.parents[0] if shown.parents else ""), (shown,)


def _commit(mirror: MirrorRepository, id: str) -> gitwork.ReviewCommit:
    """Return the commit for reviewers. Raise GitImpossible."""
    parts = mirror.parts(id)
    message = decoded(parts.original, parts.original.message)
    author = decoded(parts.original, parts.original.author)
    person, _, when = author.rpartition("> ")
    seconds = when.split(" ")[0]
    return gitwork.ReviewCommit(
        id,
        f"{person}>" if person else author,
        # Dates of forged commits may have any number of digits, which JavaScript's dates and JSON numbers cannot hold.
        int(seconds) if seconds.isdigit() and len(seconds) < 12 else 0,
        (message.splitlines() or [""])[0][:MESSAGE_MAX_CHARS],
        message[:MESSAGE_MAX_CHARS],
        parts.parents[:10],
    )


class Reviewer:
    """Serve reviews for all repositories of a merger."""

    def __init__(self, mirror: Callable[[str, str], MirrorRepository]) -> None:
        """Make a reviewer. `mirror` returns the bare copy of a project at a connection, or raises GitError."""
        self._mirror, self._listed, self._patches = mirror, Listed(), Patches()

    async def do(self, work: gitwork.ReviewWork) -> gitwork.ReviewResult:
        """Return the answer, which may report that the request is impossible."""
        try:
            match work:
                case gitwork.ReviewRequest():
                    return await self._review(work)
                case gitwork.PatchRequest():
                    mirror = await self._having(work.project, work.connection, work.ref, work.commit)
                    return await self._patches.part(mirror, work.old, work.new, work.part)
                case gitwork.RemarksRequest():
                    mirror = self._mirror(work.project, work.connection)
                    notes = (await mirror.remote.refs(REVIEW_NOTES)).get(REVIEW_NOTES, "")
                    await mirror.ready()
                    lines, unread = await read_remarks(mirror, notes, work.commits)
                    return gitwork.RemarksAnswer(True, lines=lines, unread=unread)
                case gitwork.SayRequest():
                    return await self._say(work)
        except _FAILURES as error:
            return _failed(work, str(error))

    async def _having(self, project: str, connection: str, ref: str, commit: str) -> MirrorRepository:
        """Return the mirror with the commit. Raise GitImpossible if the commit cannot be fetched."""
        mirror = self._mirror(project, connection)
        if await mirror.bring({ref: commit}):
            raise GitImpossible(("fetch",), 1, f"{ref} no longer names {commit[:12]}")
        return mirror

    async def _review(self, work: gitwork.ReviewRequest) -> gitwork.ReviewAnswer:
        mirror = await self._having(work.project, work.connection, work.ref, work.commit)
        head_ref = f"refs/heads/{work.branch}"
        head = (await mirror.remote.refs(head_ref)).get(head_ref, "")
        if not head or await mirror.bring({head_ref: head}):
            raise GitImpossible(("fetch",), 1, f"the branch {work.branch} cannot be fetched")
        landed = await mirror.contains(head, work.commit)
        # After the landing, the branch contains the commit, so the merge base is the commit itself, and nothing would
        # be shown.
        if landed:
            (base, commits), more = await alone(mirror, work.commit), False
            bases: tuple[str, ...] = (base,)
        else:
            bases, commits, more = await commits_of(mirror, head, work.commit, work.below)
        befores, after = bases, work.commit
        if work.one:
            own = next((one for one in commits if one.id == work.one), None)
            if own is None:
                raise GitImpossible(("log",), 1, f"{work.one[:12]} is not a commit of this change")
            befores, after = ((own.parents[0] if own.parents else ""),), own.id
        files, total = await self._listed.page(mirror, befores, after, work.page)
        shown = () if work.page else commits
        return gitwork.ReviewAnswer(
            True, base=befores[0], commits=shown, more_commits=more, files=files, total=total, landed=landed
        )

    async def _say(self, work: gitwork.SayRequest) -> gitwork.SayAnswer:
        mirror = await self._having(work.project, work.connection, work.ref, work.commit)

        async def noted(notes: str) -> str:
            return await with_remark(mirror, notes, work.commit, work.line) if work.line else notes

        await say(mirror, REVIEW_NOTES, noted, work.words, {work.ref: work.commit})
        return gitwork.SayAnswer(True)


def _failed(work: gitwork.ReviewWork, why: str) -> gitwork.ReviewResult:
    match work:
        case gitwork.ReviewRequest():
            return gitwork.ReviewAnswer(False, why)
        case gitwork.PatchRequest():
            return gitwork.PatchAnswer(False, why)
        case gitwork.RemarksRequest():
            return gitwork.RemarksAnswer(False, why)
        case gitwork.SayRequest():
            return gitwork.SayAnswer(False, why)
