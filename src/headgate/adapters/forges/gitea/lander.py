"""Merging a pull request as it was tested: that head and no other, and the tree is compared afterwards."""

from __future__ import annotations

from typing import Any

from headgate.adapters.forges.branches import BranchReader
from headgate.adapters.forges.gitea.client import GiteaClient
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

METHODS = {
    "merge": "merge",
    "merge-resolve": "merge",
    "merge-recursive": "merge",
    "merge-ort": "merge",
    "squash-merge": "squash",
    "rebase": "rebase",
}
"""Merge mode of the test -> Gitea's method with the same result."""
_WAITS = "try again later"
PATIENCE_S = 45.0
"""How long to wait for Gitea to work out whether a change can be merged; until then it reports a conflict."""
MESSAGE_MAX = 60_000


class GiteaLander:
    """Merge at one Gitea."""

    def __init__(self, client: GiteaClient, branches: BranchReader) -> None:
        self._client, self._branches = client, branches
        self._patience = ForgePatience(PATIENCE_S, client.now_s)

    async def land(self, work: LandRequest, part: Landing) -> MergeLanded | NotLanded:
        """Merge one change.  Raise ReporterAway, ReportPutOff."""
        change = part.change
        method = METHODS.get(merge_mode(work, change))
        if method is None:
            return NotLanded(
                f"Gitea cannot merge as it was tested ({merge_mode(work, change)}): set the project's merge-mode to "
                "merge, squash-merge or rebase"
            )
        try:
            # Before the change is read: if it was merged in between,
            # the next lines see that, and not a branch that has moved.
            head = await self._branches.head(change.project, change.branch)
            there = await self._there(change)
            if there["merged"]:
                return await self._merged(work, change, there) or NotLanded(
                    f"it is merged already, of another head or into another branch than {change.branch}"
                )
            if not is_tested_on(work, change, head):
                return NotLanded(
                    f"{change.branch} is at {head[:12] or 'no commit'}, where this was not tested", moved=True
                )
            base = str(there["base"]["ref"])
            if base != change.branch:
                return NotLanded(f"it was tested on {change.branch}, and is for {base} by now")
            return await self._merge(work, change, method)
        except (NotThere, ForgeDenied) as error:
            return NotLanded(f"Gitea does not merge it: {error}")
        # Even reading was refused, so nothing is known: better to wait than to call the change unmergeable.
        except Rejected as error:
            raise ReporterAway(f"{change.key} cannot be asked for: {error}") from error

    async def _there(self, change: Change) -> Any:
        path = f"/repos/{self._client.account.short(change.project)}/pulls/{change.number}"
        return (await self._client.get(self._client.key, path)).content

    async def _merge(self, work: LandRequest, change: Change, method: str) -> MergeLanded | NotLanded:
        # Gitea refuses if the head is not this commit, so an untested push cannot slip in.
        request = {"Do": method, "head_commit_id": change.commit, **_message(change, method)}
        path = f"/repos/{self._client.account.short(change.project)}/pulls/{change.number}/merge"
        try:
            await self._client.write("POST", self._client.key, path, request)
        except ReporterAway:
            # It may be merged although no answer came.
            done = await self._merged(work, change, await self._there(change))
            if done is None:
                raise
            return done
        except (ForgeDenied, NotThere, Rejected) as error:
            return await self._refused(work, change, error)
        self._patience.forget(_waits(change))
        there = await self._there(change)
        # Merged differently: the author chose another target branch at the last moment.
        return await self._merged(work, change, there) or MergeLanded(differs=bool(there["merged"]))

    async def _refused(self, work: LandRequest, change: Change, error: Exception) -> MergeLanded | NotLanded:
        there = await self._there(change)
        done = await self._merged(work, change, there)
        if done is not None:
            return done
        reason = " ".join(str(error).split())
        if there["head"]["sha"] != change.commit:
            return NotLanded(f"Gitea does not merge it: its head is no more {change.commit[:12]}, which was tested")
        if there["state"] != "open":
            return NotLanded("Gitea does not merge it: it is closed")
        if isinstance(error, Rejected) and error.status == 405 and _WAITS in reason.lower():
            if self._patience.lasts(_waits(change)):
                raise ReportPutOff(f"Gitea has not worked out whether it can be merged: {reason}")
            return NotLanded(
                f"Gitea does not merge it: for {PATIENCE_S:.0f} s it has said that it conflicts with {change.branch}, "
                f"or that this is still worked out: {reason}"
            )
        return NotLanded(f"Gitea does not merge it: {reason}{_advice(error, reason)}")

    async def _merged(self, work: LandRequest, change: Change, there: Any) -> MergeLanded | None:
        """Return the result of a merge of this very head into this very branch, if it is merged already."""
        if not there["merged"] or (there["head"]["sha"], there["base"]["ref"]) != (change.commit, change.branch):
            return None
        commit, wanted = str(there.get("merge_commit_sha") or ""), tested_tree(work, change)
        if not wanted or not commit:
            return MergeLanded(commit)
        path = f"/repos/{self._client.account.short(change.project)}/git/commits/{commit}"
        found = (await self._client.get(self._client.key, path, {"stat": "false", "files": "false"})).content
        return MergeLanded(commit, differs=str(found["commit"]["tree"]["sha"]) != wanted)


def _waits(change: Change) -> str:
    return f"{change.key} {change.commit}"


def _message(change: Change, method: str) -> dict[str, str]:
    """Return the message of the commit: the title, and the author's description."""
    body = change.message.removeprefix(change.title).strip() if change.title else change.message
    if method == "rebase":
        return {}
    title = f"{change.title} (#{change.number})"[:250]
    return {"MergeTitleField": title, "MergeMessageField": body[:MESSAGE_MAX]}


def _advice(error: Exception, reason: str) -> str:
    low = reason.lower()
    if isinstance(error, Rejected) and error.status == 423:
        return "; the repository is archived"
    if "not allowed to merge" in low and "reason" not in low:
        return "; let Headgate's account merge into the branch, in its protection"
    if "style" in low or "not allowed in this repository" in low or "invalid merge" in low:
        return "; allow it in the repository's settings, or set the project's merge-mode to one that is allowed"
    return ""
