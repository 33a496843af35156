"""Merging a pull request as it was tested: its head is checked before, and the result afterwards.

Pagure merges whatever the head is when it is asked; so what it has merged is compared with what was tested.
"""

from __future__ import annotations

from typing import Any

from headgate.adapters.forges.branches import BranchReader
from headgate.adapters.forges.pagure.client import PagureClient, PagureUnauthorized
from headgate.adapters.forges.patience import ForgePatience
from headgate.adapters.forges.rest import ForgeDenied, NotThere, Rejected
from headgate.gate.change import Change
from headgate.gate.work import Landing, LandRequest
from headgate.ports.forge import (
    MergeLanded,
    NotLanded,
    ReporterAway,
    ReportPutOff,
    is_tested_on,
    merge_mode,
    tested_tree,
)

MODES = ("merge", "merge-resolve", "merge-recursive", "merge-ort")
"""Pagure makes merge commits, and fast-forwards where that suffices: the tree is the same in either case."""
PATIENCE_S = 120.0
"""How long a merge may take at Pagure, which hands it to a worker."""
CONFLICTS = "CONFLICTS"


class PagureLander:
    """Merge at one Pagure."""

    def __init__(self, client: PagureClient, branches: BranchReader) -> None:
        self._client, self._branches = client, branches
        self._patience = ForgePatience(PATIENCE_S, client.now_s)

    async def land(self, work: LandRequest, part: Landing) -> MergeLanded | NotLanded:
        """Merge one change.  Raise ReporterAway, ReportPutOff."""
        change, mode = part.change, merge_mode(work, part.change)
        if mode not in MODES:
            return NotLanded(f"Pagure cannot merge as it was tested ({mode}): set the project's merge-mode to merge")
        try:
            head = await self._branches.head(change.project, change.branch)
            there = await self._there(change)
            done = await self._done(work, change, there)
            if done is not None:
                return done
            if not is_tested_on(work, change, head):
                why = f"{change.branch} is at {head[:12] or 'no commit'}, where this was not tested"
                return NotLanded(why, moved=True)
            return await self._merge(work, change)
        except NotThere as error:
            return NotLanded(f"Pagure does not merge it: {error}")
        except PagureUnauthorized as error:
            # Pagure answers alike for an invalid token and for a
            # missing right; this raises if the token itself is refused.
            await self._client.let_in()
            return NotLanded(f"Pagure does not merge it: {error}; {_advice(error)}")
        except ForgeDenied as error:
            return NotLanded(f"Pagure does not merge it: {error}; {_advice(error)}")
        except Rejected as error:
            raise ReporterAway(f"{change.key} cannot be asked for: {error}") from error

    async def _there(self, change: Change) -> Any:
        return (await self._client.get(self._client.key, self._path(change))).content

    def _path(self, change: Change) -> str:
        return f"{self._client.project(self._client.account.short(change.project))}/pull-request/{change.number}"

    async def _done(self, work: LandRequest, change: Change, there: Any) -> MergeLanded | NotLanded | None:
        """Return the result, or why the change cannot be merged as it was tested; None: try to merge."""
        status, head, branch = there["status"], there["commit_stop"], there["branch"]
        if status == "Merged":
            if (head, branch) != (change.commit, change.branch):
                return NotLanded(f"it is merged already, of another head or into another branch than {change.branch}")
            return await self._landed(work, change)
        if branch != change.branch:
            return NotLanded(f"it was tested on {change.branch}, and is for {branch} by now")
        if head != change.commit:
            return NotLanded(f"Pagure does not merge it: its head is no more {change.commit[:12]}, which was tested")
        return NotLanded("Pagure does not merge it: it is closed") if status != "Open" else None

    async def _merge(self, work: LandRequest, change: Change) -> MergeLanded | NotLanded:
        try:
            await self._client.write("POST", self._client.key, f"{self._path(change)}/merge", {})
        except ReporterAway:
            # It may be merged although no answer came; and Pagure fails with a server error at conflicts.
            there = await self._there(change)
            done = await self._done(work, change, there)
            if done is None and there.get("cached_merge_status") != CONFLICTS:
                raise
            return done or NotLanded(f"Pagure does not merge it: it conflicts with {change.branch}")
        except (ForgeDenied, NotThere, Rejected) as error:
            if isinstance(error, PagureUnauthorized):
                await self._client.let_in()
            done = await self._done(work, change, await self._there(change))
            reason = " ".join(str(error).split())
            return done or NotLanded(f"Pagure does not merge it: {reason}; {_advice(error)}")
        return await self._taken(work, change)

    async def _taken(self, work: LandRequest, change: Change) -> MergeLanded | NotLanded:
        """Return the result of a merge that Pagure has accepted: it may still be in progress, and may fail."""
        key, there = f"{change.key} {change.commit}", await self._there(change)
        if there["status"] == "Merged":
            self._patience.forget(key)
            # Another head was merged, or another branch was the target: the author pushed at the last moment.
            same = (there["commit_stop"], there["branch"]) == (change.commit, change.branch)
            return await self._landed(work, change) if same else MergeLanded(differs=True)
        done = await self._done(work, change, there)
        if done is None and self._patience.lasts(key):
            raise ReportPutOff("Pagure has taken the merge, and has not done it yet")
        return done or NotLanded(
            f"Pagure says that it merges it, and for {PATIENCE_S:.0f} s does not: its worker is not at work, or the "
            "project takes fast-forwards alone (take that option away)"
        )

    async def _landed(self, work: LandRequest, change: Change) -> MergeLanded:
        """Compare the branch with the tested commit by git, since Pagure does not report the merge commit."""
        commit = await self._branches.merge_of(change.project, change.branch, change.commit)
        wanted = tested_tree(work, change)
        if not commit or not wanted:
            # A merge that cannot be found in the branch counts as different, so that people look at it.
            return MergeLanded(commit, differs=bool(wanted))
        return MergeLanded(commit, differs=await self._branches.tree(change.project, change.branch, commit) != wanted)


def _advice(error: Exception) -> str:
    low = str(error).lower()
    if "assign" in low:
        return "assign it to Headgate's account, or let others than assignees merge (the project's options)"
    if "score" in low or "review" in low:
        return "it needs the score that the project asks for"
    if isinstance(error, PagureUnauthorized):
        return "give the api_token the ACL to merge pull requests"
    if isinstance(error, ForgeDenied):
        return "give Headgate's account commit access to the project"
    return "the page of the pull request says more"
