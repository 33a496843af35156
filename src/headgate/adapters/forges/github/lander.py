"""Merging a pull request as it was tested: that head and no other, and the tree is compared afterwards."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from headgate.adapters.forges.github.client import GitHubClient
from headgate.adapters.forges.github.tokens import GitHubAppNotInstalled, Tokens
from headgate.adapters.forges.rest import ForgeDenied, ForgeKey, NotThere, Rejected
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

METHODS = {
    "merge": "merge",
    "merge-resolve": "merge",
    "merge-recursive": "merge",
    "merge-ort": "merge",
    "squash-merge": "squash",
    "rebase": "rebase",
}
"""Merge mode of the test -> GitHub's method with the same result."""
_WAITS = ("base branch was modified", "try the merge again", "in progress")
_HIDDEN = "; what its rules ask for cannot be told, as the app lacks a permission: administration: read"
MESSAGE_MAX = 60_000

HeadOf = Callable[[str, str], Awaitable[str]]
"""(project, branch) -> the branch's current commit, empty if the branch does not exist; raises ReporterAway."""


class GitHubLander:
    """Merge at one GitHub."""

    def __init__(self, client: GitHubClient, tokens: Tokens, head_of: HeadOf) -> None:
        self._client, self._tokens, self._head_of = client, tokens, head_of

    async def land(self, work: LandRequest, part: Landing) -> MergeLanded | NotLanded:
        """Merge one change.  Raise ReporterAway, ReportPutOff."""
        change = part.change
        method = METHODS.get(merge_mode(work, change))
        if method is None:
            return NotLanded(
                f"GitHub cannot merge as it was tested ({merge_mode(work, change)}): set the project's merge-mode to "
                "merge, squash-merge or rebase"
            )
        project = self._client.account.short(change.project)
        try:
            key = await self._tokens.of(project)
            # Somebody may still push before GitHub merges; the comparison of the trees in `_landed` reveals that.
            head = await self._head_of(change.project, change.branch)
            if not is_tested_on(work, change, head):
                return await self._merged(key, project, work, change) or NotLanded(
                    f"{change.branch} is at {head[:12] or 'no commit'}, where this was not tested", moved=True
                )
            base = await self._base(key, project, change)
            if base != change.branch:
                return NotLanded(f"it was tested on {change.branch}, and is for {base} by now")
            return await self._merge(key, project, work, change, method)
        except (GitHubAppNotInstalled, NotThere) as error:
            return NotLanded(f"GitHub does not merge it: {error}")

    async def _base(self, key: ForgeKey, project: str, change: Change) -> str:
        """Return the present target branch: the author may choose another one, and GitHub merges there."""
        pull = (await self._client.get(key, f"/repos/{project}/pulls/{change.number}")).content
        return str(pull["base"]["ref"])

    async def _merge(
        self, key: ForgeKey, project: str, work: LandRequest, change: Change, method: str
    ) -> MergeLanded | NotLanded:
        # GitHub refuses with 409 if the head is not this commit, so an untested push cannot slip in.
        request = {"sha": change.commit, "merge_method": method, **_message(change, method)}
        try:
            answer = await self._client.write("PUT", key, f"/repos/{project}/pulls/{change.number}/merge", request)
        except ReporterAway:
            # It may be merged although no answer came.
            done = await self._merged(key, project, work, change)
            if done is None:
                raise
            return done
        except (ForgeDenied, Rejected) as error:
            return await self._refused(key, project, work, change, error)
        return await self._landed(key, project, work, change, str(answer.content["sha"]))

    async def _refused(
        self, key: ForgeKey, project: str, work: LandRequest, change: Change, error: ForgeDenied | Rejected
    ) -> MergeLanded | NotLanded:
        done = await self._merged(key, project, work, change)
        if done is not None:
            return done
        reason = " ".join(str(error).split())
        if isinstance(error, Rejected) and error.status == 409:
            return NotLanded(f"GitHub does not merge it: its head is no more {change.commit[:12]}, which was tested")
        if isinstance(error, Rejected) and error.status == 405 and any(one in reason.lower() for one in _WAITS):
            raise ReportPutOff(f"GitHub has not worked out whether it can be merged: {reason}") from error
        hidden = "" if self._tokens.reads_rules(project) else _HIDDEN
        return NotLanded(f"GitHub does not merge it: {reason}{_advice(reason) or hidden}")

    async def _merged(self, key: ForgeKey, project: str, work: LandRequest, change: Change) -> MergeLanded | None:
        """Return the result of a merge of this very head into this very branch, if it is merged already."""
        pull = (await self._client.get(key, f"/repos/{project}/pulls/{change.number}")).content
        if not pull.get("merged") or (pull["head"]["sha"], pull["base"]["ref"]) != (change.commit, change.branch):
            return None
        return await self._landed(key, project, work, change, str(pull["merge_commit_sha"] or ""))

    async def _landed(self, key: ForgeKey, project: str, work: LandRequest, change: Change, commit: str) -> MergeLanded:
        wanted = tested_tree(work, change)
        if not wanted or not commit:
            return MergeLanded(commit)
        found = (await self._client.get(key, f"/repos/{project}/git/commits/{commit}")).content
        return MergeLanded(commit, differs=str(found["tree"]["sha"]) != wanted)


def _message(change: Change, method: str) -> dict[str, str]:
    """Return the message of the commit: the title, and the author's description."""
    body = change.message.removeprefix(change.title).strip() if change.title else change.message
    if method == "rebase":
        return {}
    return {"commit_title": f"{change.title} (#{change.number})"[:250], "commit_message": body[:MESSAGE_MAX]}


def _advice(reason: str) -> str:
    low = reason.lower()
    if "resource not accessible" in low:
        return "; the app lacks a permission: contents: write, and workflows: write where it changes .github/workflows"
    if "merge queue" in low:
        return "; take the rule of GitHub's merge queue away, or let Headgate bypass it"
    if "not allowed on this repository" in low:
        return "; allow it in the repository's settings, or set the project's merge-mode to one that is allowed"
    return ""
