"""Merging a merge request as it was tested: that head and no other, and the tree is compared afterwards."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from headgate.adapters.forges.branches import BranchReader
from headgate.adapters.forges.gitlab.client import GitLabClient, GitLabUnauthorized
from headgate.adapters.forges.gitlab.request import WAITS, look
from headgate.adapters.forges.gitlab.rules import rule_book
from headgate.adapters.forges.rest import ForgeDenied, NotThere, Rejected
from headgate.adapters.git.engine import GitEngine
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

SQUASHES = {
    "merge": False,
    "merge-resolve": False,
    "merge-recursive": False,
    "merge-ort": False,
    "squash-merge": True,
}
"""Merge mode of the test -> whether GitLab squashes the commits."""
TOKEN_AGAIN_S = 60.0
"""Pause after GitLab refused a token, in which the operator may provide another one."""
MergeRequestData = Mapping[str, Any]


class GitLabLander:
    """Merge at one GitLab."""

    def __init__(self, client: GitLabClient, engine: Callable[[], GitEngine]) -> None:
        self._client, self._branches = client, BranchReader(engine, client.account.name)

    async def land(self, work: LandRequest, part: Landing) -> MergeLanded | NotLanded:
        """Merge one change.  Raise ReporterAway, ReportPutOff."""
        change, mode = part.change, merge_mode(work, part.change)
        if mode not in SQUASHES:
            return NotLanded(
                f"GitLab cannot merge as it was tested ({mode}): set the project's merge-mode to merge or squash-merge"
            )
        try:
            merge_request = await self._now(change)
            done = await self._done(work, change, merge_request)
            if done is not None:
                return done
            head = await self._branches.head(change.project, change.branch)
            if not is_tested_on(work, change, head):
                why = f"{change.branch} is at {head[:12] or 'no commit'}, where this was not tested"
                return NotLanded(why, moved=True)
            return await self._merge(work, change, squash=SQUASHES[mode])
        except NotThere as error:
            return NotLanded(f"GitLab does not merge it: {error}")
        except GitLabUnauthorized as error:
            raise ReporterAway(f"GitLab does not let us in: {error}", TOKEN_AGAIN_S) from error
        except (ForgeDenied, Rejected) as error:
            return NotLanded(f"GitLab does not merge it: {error}")

    async def _now(self, change: Change) -> MergeRequestData:
        path = f"{self._client.account.path(change.project)}/merge_requests/{change.number}"
        merge_request: MergeRequestData = (await self._client.get(self._client.key, path)).content
        return merge_request

    async def _done(
        self, work: LandRequest, change: Change, merge_request: MergeRequestData
    ) -> MergeLanded | NotLanded | None:
        """Return the result if this very head is merged into this very branch, or why another head cannot be merged;
        None: try to merge."""
        state, sha, target = merge_request["state"], merge_request["sha"], merge_request["target_branch"]
        if target != change.branch:
            return NotLanded(f"it was tested on {change.branch}, and is for {target} by now")
        if sha != change.commit:
            return NotLanded(f"GitLab does not merge it: its head is no more {change.commit[:12]}, which was tested")
        if state == "merged":
            return await self._landed(work, change, merge_request)
        return NotLanded("GitLab does not merge it: it is closed") if state == "closed" else None

    async def _merge(self, work: LandRequest, change: Change, *, squash: bool) -> MergeLanded | NotLanded:
        path = f"/merge_requests/{change.number}/merge"
        try:
            merge_request = (
                # GitLab refuses if the head is not this commit. Without `squash`,
                # the author's own choice would decide the tree's history.
                await self._client.change("PUT", change.project, path, {"sha": change.commit, "squash": squash})
            ).content
        except ReporterAway:
            # It may be merged although no answer came.
            done = await self._done(work, change, await self._now(change))
            if done is None:
                raise
            return done
        except (ForgeDenied, Rejected) as error:
            return await self._refused(work, change, error)
        # GitLab may answer while it still merges; the courier asks again.
        if merge_request["state"] != "merged":
            raise ReportPutOff(f"GitLab has taken the order to merge, and {change.key} is {merge_request['state']}")
        return await self._landed(work, change, merge_request)

    async def _refused(
        self, work: LandRequest, change: Change, error: ForgeDenied | Rejected
    ) -> MergeLanded | NotLanded:
        """Return the meaning of a refusal: GitLab gives hardly any reason."""
        done = await self._done(work, change, await self._now(change))
        if done is not None:
            return done
        if isinstance(error, ForgeDenied):
            advice = f"let our account merge into {change.branch} (Settings, Repository, Protected branches)"
            return NotLanded(f"GitLab does not merge it: {error}; {advice}")
        request = await look(self._client, change.project, int(change.number))
        rules = rule_book(request)
        if request.status in WAITS or any(rule.met is None for rule in rules):
            raise ReportPutOff(f"{change.key} {rules[0].text}") from error
        if request.mergeable is False:
            return NotLanded(f"GitLab does not merge it: it conflicts with {change.branch}")
        if request.draft:
            return NotLanded("GitLab does not merge it: it is a draft")
        return NotLanded(f"GitLab does not merge it: {'; '.join(f'it {rule.text}' for rule in rules) or error}")

    # --- result of the merge

    async def _landed(self, work: LandRequest, change: Change, merge_request: MergeRequestData) -> MergeLanded:
        """Compare the branch with the tested commit by git, since the API provides no trees."""
        commit = str(
            merge_request.get("merge_commit_sha") or merge_request.get("squash_commit_sha") or merge_request["sha"]
        )
        wanted = tested_tree(work, change)
        differs = bool(wanted) and await self._branches.tree(change.project, change.branch, commit) != wanted
        return MergeLanded(commit, differs=differs)
