"""Do a merger's work for people who review.  Requests do not wait for fetches: pages repeat them."""

from __future__ import annotations

from collections.abc import Callable

import pygit2

from headgate.adapters.git.command import GitError, GitImpossible
from headgate.adapters.git.mirror import MirrorRepository
from headgate.adapters.git.push import say
from headgate.adapters.git.review.files import Listed, alone, commits_of
from headgate.adapters.git.review.patches import Patches
from headgate.adapters.git.review.remarks import REVIEW_NOTES, added, read
from headgate.gate.review import (
    PatchAnswer,
    PatchRequest,
    RemarksAnswer,
    RemarksRequest,
    ReviewAnswer,
    ReviewRequest,
    ReviewResult,
    ReviewWork,
    SayAnswer,
    SayRequest,
)

_FAILURES = (GitError, OSError, pygit2.GitError)


class Reviewer:
    """Serve reviews for all repositories of a merger."""

    def __init__(self, mirror: Callable[[str, str], MirrorRepository]) -> None:
        """Take `mirror`, which returns the bare copy for a project and a connection or raises GitError."""
        self._mirror, self._listed, self._patches = mirror, Listed(), Patches()

    async def do(self, work: ReviewWork) -> ReviewResult:
        """Return the answer, which may be that the request is impossible."""
        try:
            match work:
                case ReviewRequest():
                    return await self._review(work)
                case PatchRequest():
                    mirror = await self._having(work.project, work.connection, work.ref, work.commit)
                    return await self._patches.part(mirror, work.old, work.new, work.part)
                case RemarksRequest():
                    mirror = self._mirror(work.project, work.connection)
                    notes = (await mirror.remote.refs(REVIEW_NOTES)).get(REVIEW_NOTES, "")
                    await mirror.ready()
                    lines, unread = await read(mirror, notes, work.commits)
                    return RemarksAnswer(True, lines=lines, unread=unread)
                case SayRequest():
                    return await self._say(work)
        except _FAILURES as error:
            return _failed(work, str(error))

    async def _having(self, project: str, connection: str, ref: str, commit: str) -> MirrorRepository:
        """Raise GitImpossible if the commit cannot be fetched."""
        mirror = self._mirror(project, connection)
        if await mirror.bring({ref: commit}):
            raise GitImpossible(("fetch",), 1, f"{ref} does not name {commit[:12]} any more")
        return mirror

    async def _review(self, work: ReviewRequest) -> ReviewAnswer:
        mirror = await self._having(work.project, work.connection, work.ref, work.commit)
        head_ref = f"refs/heads/{work.branch}"
        head = (await mirror.remote.refs(head_ref)).get(head_ref, "")
        if not head or await mirror.bring({head_ref: head}):
            raise GitImpossible(("fetch",), 1, f"the branch {work.branch} cannot be had")
        landed = await mirror.contains(head, work.commit)
        # After landing, the branch contains the commit and the merge
        # base is the commit itself, so nothing would be shown.
        if landed:
            (base, commits), more = await alone(mirror, work.commit), False
        else:
            base, commits, more = await commits_of(mirror, head, work.commit, work.below)
        before, after = base, work.commit
        if work.one:
            own = next((one for one in commits if one.id == work.one), None)
            if own is None:
                raise GitImpossible(("log",), 1, f"{work.one[:12]} is not a commit of this change")
            before, after = (own.parents[0] if own.parents else ""), own.id
        files, total = await self._listed.page(mirror, before, after, work.page)
        shown = () if work.page else commits
        return ReviewAnswer(
            True, base=before, commits=shown, more_commits=more, files=files, total=total, landed=landed
        )

    async def _say(self, work: SayRequest) -> SayAnswer:
        mirror = await self._having(work.project, work.connection, work.ref, work.commit)

        async def noted(notes: str) -> str:
            return await added(mirror, notes, work.commit, work.line) if work.line else notes

        await say(mirror, REVIEW_NOTES, noted, work.words, {work.ref: work.commit})
        return SayAnswer(True)


def _failed(work: ReviewWork, why: str) -> ReviewResult:
    match work:
        case ReviewRequest():
            return ReviewAnswer(False, why)
        case PatchRequest():
            return PatchAnswer(False, why)
        case RemarksRequest():
            return RemarksAnswer(False, why)
        case SayRequest():
            return SayAnswer(False, why)
