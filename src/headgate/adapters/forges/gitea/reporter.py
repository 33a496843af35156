"""Reports on a pull request at Gitea: status, labels, review with what jobs say of lines, comment.

Labels have numbers there, which are looked up; one that there is none of is made.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Any

from headgate.adapters.forges.gitea.client import GiteaClient
from headgate.adapters.forges.markup import inert
from headgate.adapters.forges.reporter import ChangeReporter, heading
from headgate.adapters.forges.rest import ForgeDenied, ForgeKey, ForgeServerError, NotThere, Rejected, ResponseTooLarge
from headgate.base.texts import visible
from headgate.config.files.check import as_list
from headgate.gate.change import Change
from headgate.map.outbox import QueueReport

NOTES_MAX, NOTE_MAX = 200, 8_000
"""Most comments on lines, and most characters of each."""
COLOR = "#ededed"
REVIEWS = {"approve": "APPROVED", "request-changes": "REQUEST_CHANGES", "comment": "COMMENT"}


class GiteaTeller(ChangeReporter):
    """Report on changes at one Gitea."""

    noun = "Gitea"

    def __init__(self, client: GiteaClient) -> None:
        super().__init__(client, client)
        self._client = client

    def short(self, project: str) -> str:
        """See `ChangeReporter`."""
        return self._client.account.short(project)

    def advice(self, error: Exception) -> str:
        """See `ChangeReporter`."""
        return " (let the account of its api_token write there)" if isinstance(error, ForgeDenied) else ""

    async def all(self, key: ForgeKey, repo: str, change: Change, report: QueueReport, how: Mapping[str, Any]) -> None:
        """See `ChangeReporter`."""
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
        """See `ChangeReporter`: Gitea returns all comments at once; if they are too many, none counts as ours, and a
        new one is written."""
        try:
            yield (await self._client.get(key, path)).content or []
        except ResponseTooLarge:
            yield []

    async def end(self, key: ForgeKey, path: str, commit: str) -> None:
        """See `ChangeReporter`. A setting of the repository decides whether a change may be marked as merged by a
        commit."""
        try:
            await self._client.write("POST", key, f"{path}/merge", {"Do": "manually-merged", "MergeCommitID": commit})
        # The repository does not allow that; closing it is all that is left.
        except (ForgeDenied, Rejected):
            await super().end(key, path, commit)

    # --- labels

    async def _labels(self, key: ForgeKey, repo: str, change: Change, how: Mapping[str, Any]) -> None:
        put, off = [str(one) for one in as_list(how.get("label"))], [str(one) for one in as_list(how.get("unlabel"))]
        path = f"{repo}/issues/{change.number}/labels"
        if put:
            ids = await self._ids(key, repo, put)
            await self._client.write("POST", key, path, {"labels": [ids[name] for name in put]})
        if off:
            there = {str(one["name"]): int(one["id"]) for one in (await self._client.get(key, path)).content or ()}
            for name in off:
                if name in there:
                    with suppress(NotThere):  # the label is removed already
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
        """Post a review if the report has one or jobs comment on lines; return why that is impossible, for people."""
        notes = notes_of(report, change)
        if not how.get("review") and not notes:
            return ""
        text, event = str(how.get("review-body") or heading(report)), REVIEWS[str(how.get("review") or "comment")]
        review: dict[str, Any] = {"event": event, "body": text, "commit_id": change.commit}
        try:
            await self.review(key, path, report, {**review, "comments": notes} if notes else review)
        # Gitea fails as a whole at one comment on a line that it
        # does not know; without the comments, the vote still counts.
        except (Rejected, ForgeServerError) as error:
            if not notes:
                raise
            if how.get("review"):
                await self.review(key, path, report, review)
            return f"What jobs say of lines could not be written: {error}"
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
                found[path, line, f"{level}{inert(visible(one.message)[:NOTE_MAX]) or '(nothing is said)'}"] = None
    return [{"path": path, "new_position": line, "body": text} for path, line, text in [*found][:NOTES_MAX]]
