"""Report on a pull request at Gitea, and merge it in the state that was tested."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Any

from headgate.adapters.forges.driver import BranchReader, ForgePatience
from headgate.adapters.forges.gitea.client import GiteaClient
from headgate.adapters.forges.reporter import ChangeReporter, heading, inert
from headgate.adapters.forges.rest import ForgeDenied, ForgeKey, ForgeServerError, NotThere, Rejected, ResponseTooLarge
from headgate.base.texts import visible
from headgate.config.files.checks import as_list
from headgate.gate.state.change import Change
from headgate.gate.state.works import Landing, LandRequest
from headgate.map.outbox import QueueReport
from headgate.ports import forge

NOTES_MAX, NOTE_MAX = 200, 8_000
"""Maximum number of comments on lines, and maximum length of each in characters."""
COLOR = "#ededed"
"""Color of labels that are created."""
REVIEWS = {"approve": "APPROVED", "request-changes": "REQUEST_CHANGES", "comment": "COMMENT"}

METHODS = {
    "merge": "merge",
    "merge-resolve": "merge",
    "merge-recursive": "merge",
    "merge-ort": "merge",
    "squash-merge": "squash",
    "rebase": "rebase",
}
"""Merge mode of the test -> Gitea's method with the same result."""
_NOT_READY = "try again later"
"""Part of Gitea's response while it checks whether a change can be merged."""
PATIENCE_S = 45.0
"""How long to wait for Gitea to check whether a change can be merged; until then it reports a conflict."""
MESSAGE_MAX = 60_000
"""Length to which the message of a merge commit is cut."""


class GiteaTeller(ChangeReporter):
    """Report on changes at one Gitea."""

    noun = "Gitea"

    def __init__(self, client: GiteaClient) -> None:
        super().__init__(client, client)
        self._client = client

    def short(self, project: str) -> str:
        """Return the forge's name of a project; see `ChangeReporter`."""
        return self._client.account.short(project)

    def advice(self, error: Exception) -> str:
        """Return advice about a refusal; see `ChangeReporter`."""
        return " (let the account of its api_token write there)" if isinstance(error, ForgeDenied) else ""

    async def all(self, key: ForgeKey, repo: str, change: Change, report: QueueReport, how: Mapping[str, Any]) -> None:
        """Perform all actions of the reporter; see `ChangeReporter`."""
        name = f"{report.tenant}/{report.pipeline}"
        if how.get("status"):
            await self.status(key, repo, change, report, name, how)
        if not change.is_change:
            return
        await self._labels(key, repo, change, how)
        problem = await self._review(key, f"{repo}/pulls/{change.number}/reviews", change, report, how)
        if how.get("comment", True) or problem:
            await self.comment(key, repo, change, report, name, problem)

    async def comments(self, key: ForgeKey, path: str) -> AsyncIterator[Any]:
        """Yield the comments; see `ChangeReporter`. Gitea returns all of them in one response; if there are too many,
        yield none, so that the report becomes a new comment."""
        try:
            yield (await self._client.get(key, path)).content or []
        except ResponseTooLarge:
            yield []

    async def end(self, key: ForgeKey, path: str, commit: str) -> None:
        """End a change that has landed; see `ChangeReporter`. A setting of the repository decides whether a change may
        be marked as merged by a commit."""
        try:
            await self._client.write("POST", key, f"{path}/merge", {"Do": "manually-merged", "MergeCommitID": commit})
        # The repository does not allow that, so only close the change.
        except (ForgeDenied, Rejected):
            await super().end(key, path, commit)

    # --- labels

    async def _labels(self, key: ForgeKey, repo: str, change: Change, how: Mapping[str, Any]) -> None:
        put, off = [str(one) for one in as_list(how.get("label"))], [str(one) for one in as_list(how.get("unlabel"))]
        path = f"{repo}/issues/{change.number}/labels"
        if put:
            # Gitea's calls identify labels by number instead of by name.
            ids = await self._ids(key, repo, put)
            await self._client.write("POST", key, path, {"labels": [ids[name] for name in put]})
        if off:
            there = {str(one["name"]): int(one["id"]) for one in (await self._client.get(key, path)).content or ()}
            for name in off:
                if name in there:
                    with suppress(NotThere):  # the label has already been removed
                        await self._client.write("DELETE", key, f"{path}/{there[name]}")

    async def _ids(self, key: ForgeKey, repo: str, names: list[str]) -> dict[str, int]:
        """Return the numbers of labels, including the organization's; missing labels are created."""
        found: dict[str, int] = {}
        for path in (f"{repo}/labels", f"/orgs/{repo.split('/')[2]}/labels"):
            if set(names) <= found.keys():
                break
            with suppress(NotThere, ForgeDenied):  # the owner is not an organization
                async for page in self._client.pages(key, path):
                    found = {str(one["name"]): int(one["id"]) for one in page} | found
        for name in names:
            if name not in found:
                made = await self._client.write("POST", key, f"{repo}/labels", {"name": name, "color": COLOR})
                found[name] = int(made.content["id"])
        return found

    # --- the review

    async def _review(
        self, key: ForgeKey, path: str, change: Change, report: QueueReport, how: Mapping[str, Any]
    ) -> str:
        """Post a review if the report has one or jobs comment on lines; return a readable reason if that fails."""
        notes = notes_of(report, change)
        if not how.get("review") and not notes:
            return ""
        text, event = str(how.get("review-body") or heading(report)), REVIEWS[str(how.get("review") or "comment")]
        review: dict[str, Any] = {"event": event, "body": text, "commit_id": change.commit}
        try:
            await self.review(key, path, report, {**review, "comments": notes} if notes else review)
        # One comment on a line that Gitea does not know makes the entire review fail; without the comments, the vote
        # still counts.
        except (Rejected, ForgeServerError) as error:
            if not notes:
                raise
            if how.get("review"):
                await self.review(key, path, report, review)
            return f"The jobs' comments on lines could not be posted: {error}"
        return ""


def notes_of(report: QueueReport, change: Change) -> list[dict[str, Any]]:
    """Return the jobs' comments on lines: each once, for files that the change has."""
    files = None if change.files is None else frozenset(change.files)
    found: dict[tuple[str, int, str], None] = {}
    for path, comments in report.comments.items():
        for one in comments if files is None or path in files else ():
            line = one.range.start_line if one.range is not None else one.line
            if line > 0:
                level = f"**{one.level}**: " if one.level else ""
                found[path, line, f"{level}{inert(visible(one.message)[:NOTE_MAX]) or '(no message)'}"] = None
    return [{"path": path, "new_position": line, "body": text} for path, line, text in [*found][:NOTES_MAX]]


class GiteaLander:
    """Merge at one Gitea."""

    def __init__(self, client: GiteaClient, branches: BranchReader) -> None:
        self._client, self._branches = client, branches
        self._patience = ForgePatience(PATIENCE_S, client.now_s)

    async def land(self, work: LandRequest, part: Landing) -> forge.MergeLanded | forge.NotLanded:
        """Merge one change.  Raise ReporterAway, ReportPutOff."""
        change = part.change
        method = METHODS.get(forge.merge_mode(work, change))
        if method is None:
            return forge.NotLanded(
                f"Gitea cannot merge it the way it was tested ({forge.merge_mode(work, change)}): set the project's "
                "merge-mode to merge, squash-merge or rebase"
            )
        try:
            # Read the head before the change: if it is merged in between, the next lines see that, instead of a branch
            # that has moved.
            head = await self._branches.head(change.project, change.branch)
            there = await self._there(change)
            if there["merged"]:
                return await self._merged(work, change, there) or forge.NotLanded(
                    f"it has already been merged, with another head or into a branch other than {change.branch}"
                )
            if not forge.is_tested_on(work, change, head):
                return forge.NotLanded(
                    f"{change.branch} is at {head[:12] or 'no commit'}, but this change was tested on another commit",
                    moved=True,
                )
            base = str(there["base"]["ref"])
            if base != change.branch:
                return forge.NotLanded(f"it was tested on {change.branch}, but now targets {base}")
            return await self._merge(work, change, method)
        except (NotThere, ForgeDenied) as error:
            return forge.NotLanded(f"Gitea refused to merge it: {error}")
        # Gitea refuses even to read it, so nothing is known: wait rather than call the change unmergeable.
        except Rejected as error:
            raise forge.ReporterAway(f"{change.key} cannot be read: {error}") from error

    async def _there(self, change: Change) -> Any:
        path = f"/repos/{self._client.account.short(change.project)}/pulls/{change.number}"
        return (await self._client.get(self._client.key, path)).content

    async def _merge(self, work: LandRequest, change: Change, method: str) -> forge.MergeLanded | forge.NotLanded:
        # Gitea refuses if the head is not this commit, so an untested push cannot slip in.
        request = {"Do": method, "head_commit_id": change.commit, **_message(change, method)}
        path = f"/repos/{self._client.account.short(change.project)}/pulls/{change.number}/merge"
        try:
            await self._client.write("POST", self._client.key, path, request)
        except forge.ReporterAway:
            # It may be merged although no response came.
            done = await self._merged(work, change, await self._there(change))
            if done is None:
                raise
            return done
        except (ForgeDenied, NotThere, Rejected) as error:
            return await self._refused(work, change, error)
        self._patience.forget(_head_of(change))
        there = await self._there(change)
        # `_merged` returns None if the author chose another target branch at the last moment.
        return await self._merged(work, change, there) or forge.MergeLanded(differs=bool(there["merged"]))

    async def _refused(
        self, work: LandRequest, change: Change, error: Exception
    ) -> forge.MergeLanded | forge.NotLanded:
        there = await self._there(change)
        done = await self._merged(work, change, there)
        if done is not None:
            return done
        reason = " ".join(str(error).split())
        if there["head"]["sha"] != change.commit:
            return forge.NotLanded(
                f"Gitea refused to merge it: its head is no longer {change.commit[:12]}, which was tested"
            )
        if there["state"] != "open":
            return forge.NotLanded("Gitea refused to merge it: it is closed")
        if isinstance(error, Rejected) and error.status == 405 and _NOT_READY in reason.lower():
            if self._patience.lasts(_head_of(change)):
                raise forge.ReportPutOff(f"Gitea is still checking whether it can be merged: {reason}")
            return forge.NotLanded(
                f"Gitea refused to merge it: for {PATIENCE_S:.0f} s it has reported a conflict with {change.branch}, "
                f"or that it is still checking: {reason}"
            )
        return forge.NotLanded(f"Gitea refused to merge it: {reason}{_advice(error, reason)}")

    async def _merged(self, work: LandRequest, change: Change, there: Any) -> forge.MergeLanded | None:
        """Return the result of a merge of this very head into this very branch, if it has already been merged."""
        if not there["merged"] or (there["head"]["sha"], there["base"]["ref"]) != (change.commit, change.branch):
            return None
        commit, wanted = str(there.get("merge_commit_sha") or ""), forge.tested_tree(work, change)
        if not wanted or not commit:
            return forge.MergeLanded(commit)
        path = f"/repos/{self._client.account.short(change.project)}/git/commits/{commit}"
        found = (await self._client.get(self._client.key, path, {"stat": "false", "files": "false"})).content
        return forge.MergeLanded(commit, differs=str(found["commit"]["tree"]["sha"]) != wanted)


def _head_of(change: Change) -> str:
    """Return the key under which to wait for a merge: the change with its head."""
    return f"{change.key} {change.commit}"


def _message(change: Change, method: str) -> dict[str, str]:
    """Return the message of the commit: the title, and the author's description."""
    body = change.message.removeprefix(change.title).strip() if change.title else change.message
    # A rebase keeps the commits of the author, with their messages.
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
