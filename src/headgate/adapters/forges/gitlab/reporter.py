"""Report on a merge request, and merge it in the state that was tested.

A repeated report changes nothing. GitLab refuses to set the same status or approval again, and to withdraw a missing
approval. Our own comment is edited: unless this process made it, it is searched for first.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from headgate.adapters.forges.driver import BranchReader
from headgate.adapters.forges.gitlab.client import GitLabClient, GitLabUnauthorized, People
from headgate.adapters.forges.gitlab.request import WAITS, look, rule_book
from headgate.adapters.forges.reporter import KNOWN_MAX, MARK, body, mark_of
from headgate.adapters.forges.rest import ForgeDenied, NotThere, Rejected, ResponseTooLarge
from headgate.adapters.git.engine import GitEngine
from headgate.adapters.reporters.wordings import WORDS, page
from headgate.config.files.checks import as_list
from headgate.gate.state.change import HEADS, TAGS, Change
from headgate.gate.state.works import Landing, LandRequest
from headgate.map.outbox import OutboxMessage, QueueReport
from headgate.ports import forge
from headgate.ports.reporter import ReporterAway, ReportRefused

DESCRIPTION_MAX, NAME_MAX = 250, 255
"""Lengths in characters."""
_QUICK = re.compile(r"^(\s*)/", re.MULTILINE)
"""GitLab executes a line that begins with a slash as a command of its author: `/merge`, `/approve`."""
_SET_ALREADY = "cannot transition status"
"""Part of GitLab's response to a status that is already set."""
SQUASHES = {
    "merge": False,
    "merge-resolve": False,
    "merge-recursive": False,
    "merge-ort": False,
    "squash-merge": True,
}
"""Merge mode of the test -> whether GitLab squashes the commits."""
TOKEN_AGAIN_S = 60.0
"""Pause after GitLab refuses a token; meanwhile the operator may provide another one."""
MergeRequestData = Mapping[str, Any]


class GitLabStatusPlace(NamedTuple):
    """Locate a status: it belongs to the pipeline of the head, in the project that the head comes from."""

    project: str
    """Project as in the paths of calls: `/projects/1`."""
    ref: str
    pipeline: int = 0
    fallback: str = ""
    """The project of the merge request, where our account can write; empty if it is the same project."""


class GitLabReporter:
    """Report on changes at one GitLab."""

    def __init__(self, client: GitLabClient, people: People) -> None:
        self._client, self._people = client, people
        self._notes: OrderedDict[tuple[str, str], int] = OrderedDict()
        """(path of a merge request, mark) -> id of our note; an entry with an empty mark means that all our notes
        there are known.
        """

    async def tell(self, outgoing: OutboxMessage) -> None:
        """Perform the reporter's actions. Raise ReporterAway, ReportRefused."""
        change, how = outgoing.change, outgoing.how
        assert change is not None, "a report to a forge is about a change"
        with _refused(change, "does not accept the report"):
            await self._all(change, outgoing.report, how)

    async def conclude(self, change: Change, commit: str) -> None:
        """Close a merge request that landed by a push and is still open. Raise ReporterAway, ReportRefused."""
        with _refused(change, f"does not close the merge request that landed as {commit[:12]}"):
            place = f"/merge_requests/{change.number}"
            await self._client.change("PUT", change.project, place, {"state_event": "close"})

    async def _all(self, change: Change, report: QueueReport, how: Mapping[str, Any]) -> None:
        name = f"{report.tenant}/{report.pipeline}"
        if how.get("status"):
            await self._status(change, report, name, str(how["status"]))
        if not change.is_change:
            return
        if how.get("comment", True):
            await self._comment(change, report, name)
        if how.get("approval") is not None:
            await self._approval(change, bool(how["approval"]))
        labels = {
            f"{word}_labels": ",".join(str(one) for one in as_list(how.get(key)))
            for word, key in (("add", "label"), ("remove", "unlabel"))
        }
        if any(labels.values()):
            request = {key: value for key, value in labels.items() if value}
            await self._client.change("PUT", change.project, f"/merge_requests/{change.number}", request)

    # --- the status

    async def _status(self, change: Change, report: QueueReport, name: str, state: str) -> None:
        # A deleted ref names the zero commit, for which no forge accepts a status.
        commit = change.commit if change.commit.strip("0") else change.old_commit
        place = await self._place(change)
        status: dict[str, Any] = {
            "state": state,
            "name": name[:NAME_MAX],
            "ref": place.ref,
            "description": f"{report.pipeline} {WORDS.get(report.report, report.report)}"[:DESCRIPTION_MAX],
        }
        if address := page(report):
            status["target_url"] = address
        try:
            pipeline = {"pipeline_id": place.pipeline} if place.pipeline else {}
            await self._say(f"{place.project}/statuses/{commit}", status | pipeline)
        except (NotThere, ForgeDenied):
            if not place.fallback:
                raise
            await self._say(f"{place.fallback}/statuses/{commit}", status)  # we may not write to the fork

    async def _say(self, path: str, content: Mapping[str, Any]) -> None:
        try:
            await self._client.write("POST", self._client.key, path, content)
        except Rejected as error:
            # A report that is repeated after a lost response finds the status already set, which is success.
            if error.status != 400 or _SET_ALREADY not in str(error).lower():
                raise

    async def _place(self, change: Change) -> GitLabStatusPlace:
        own = self._client.account.path(change.project)
        if not change.is_change:
            return GitLabStatusPlace(own, change.ref.removeprefix(HEADS).removeprefix(TAGS))
        merge_request = (await self._client.get(self._client.key, f"{own}/merge_requests/{change.number}")).content
        home, here = merge_request.get("source_project_id"), f"/projects/{int(merge_request['project_id'])}"
        source = f"/projects/{int(home)}" if home else here
        fallback = here if source != here else ""
        pipeline = merge_request.get("head_pipeline") or {}
        # A status outside the head's pipeline would open a second pipeline, and GitLab would still wait for the first.
        if pipeline.get("sha") == change.commit and pipeline.get("id") and pipeline.get("ref"):
            at = f"/projects/{int(pipeline.get('project_id') or merge_request['project_id'])}"
            return GitLabStatusPlace(at, str(pipeline["ref"]), int(pipeline["id"]), here if at != here else "")
        return GitLabStatusPlace(source, str(merge_request["source_branch"]), 0, fallback)

    # --- the approval

    async def _approval(self, change: Change, approves: bool) -> None:
        """Set the approval. It is no error if GitLab refuses because the approval is already set, or because the head
        moved."""
        path = f"/merge_requests/{change.number}"
        if not approves:
            with suppress(NotThere):
                await self._client.change("POST", change.project, f"{path}/unapprove", {})
            return
        try:
            await self._client.change("POST", change.project, f"{path}/approve", {"sha": change.commit})
        except Rejected as error:
            if error.status != 409:
                raise
        except GitLabUnauthorized:
            # The change already has our approval, or we may not approve: the response does not distinguish them.
            place = f"{self._client.account.path(change.project)}{path}/approvals"
            if not (await self._client.get(self._client.key, place)).content.get("user_has_approved"):
                raise ReportRefused(f"{change.project}: our account may not approve {change.id}") from None

    # --- the comment

    async def _comment(self, change: Change, report: QueueReport, name: str) -> None:
        """Write the report into the one comment of this pipeline, which is edited."""
        mark = mark_of(name)
        request, path = {"body": note(report, mark)}, f"/merge_requests/{change.number}/notes"
        place = f"{change.project}{path}"
        if (place, "") not in self._notes:
            await self._own_notes(change, path, place)
        id = self._notes.get((place, mark))
        if id is not None:
            try:
                await self._client.change("PUT", change.project, f"{path}/{id}", request)
                return
            except NotThere:
                self._notes.pop((place, mark), None)  # somebody removed it
        made = await self._client.change("POST", change.project, path, request)
        self._remember(place, mark, int(made.content["id"]))

    async def _own_notes(self, change: Change, path: str, place: str) -> None:
        """Find our comments for all pipelines, once."""
        us = await self._people.us()
        where = self._client.account.path(change.project) + path
        with suppress(ResponseTooLarge):  # our notes are among the first, or a new note is written
            async for notes in self._client.pages(self._client.key, where, {"sort": "asc"}):
                for one in notes:
                    found = MARK.search(one.get("body") or "")
                    if found is not None and (one.get("author") or {}).get("username") in us:
                        self._remember(place, found[0], int(one["id"]))
        self._remember(place, "", 0)

    def _remember(self, place: str, mark: str, id: int) -> None:
        self._notes[place, mark] = id
        self._notes.move_to_end((place, mark))
        while len(self._notes) > KNOWN_MAX:
            self._notes.popitem(last=False)


def note(report: QueueReport, mark: str) -> str:
    """Return a comment that contains no commands for GitLab, whatever jobs and messages say."""
    # A carriage return may begin a line for GitLab but does not for `^`, so it could hide a command from the pattern.
    return _QUICK.sub(r"\1\\/", body(report, mark).replace("\r", "\n"))


@contextmanager
def _refused(change: Change, what: str) -> Iterator[None]:
    """Raise ReportRefused if GitLab refuses, ReporterAway if it rejects our token."""
    try:
        yield
    except NotThere as error:
        raise ReportRefused(f"{change.project} no longer has {change.id}: {error}") from error
    except GitLabUnauthorized as error:
        raise ReporterAway(f"GitLab rejects our token: {error}", TOKEN_AGAIN_S) from error
    except (ForgeDenied, Rejected) as error:
        raise ReportRefused(f"{change.project}: GitLab {what}: {error}") from error


class GitLabLander:
    """Merge at one GitLab."""

    def __init__(self, client: GitLabClient, engine: Callable[[], GitEngine]) -> None:
        self._client, self._branches = client, BranchReader(engine, client.account.name)

    async def land(self, work: LandRequest, part: Landing) -> forge.MergeLanded | forge.NotLanded:
        """Merge one change.  Raise ReporterAway, ReportPutOff."""
        change, mode = part.change, forge.merge_mode(work, part.change)
        if mode not in SQUASHES:
            return forge.NotLanded(
                f"GitLab cannot merge it the way it was tested ({mode}): "
                "set the project's merge-mode to merge or squash-merge"
            )
        try:
            merge_request = await self._now(change)
            done = await self._done(work, change, merge_request)
            if done is not None:
                return done
            head = await self._branches.head(change.project, change.branch)
            if not forge.is_tested_on(work, change, head):
                why = f"{change.branch} is at {head[:12] or 'no commit'}, but this change was tested on another commit"
                return forge.NotLanded(why, moved=True)
            return await self._merge(work, change, squash=SQUASHES[mode])
        except NotThere as error:
            return forge.NotLanded(f"GitLab refused to merge it: {error}")
        except GitLabUnauthorized as error:
            raise ReporterAway(f"GitLab rejects our token: {error}", TOKEN_AGAIN_S) from error
        except (ForgeDenied, Rejected) as error:
            return forge.NotLanded(f"GitLab refused to merge it: {error}")

    async def _now(self, change: Change) -> MergeRequestData:
        path = f"{self._client.account.path(change.project)}/merge_requests/{change.number}"
        merge_request: MergeRequestData = (await self._client.get(self._client.key, path)).content
        return merge_request

    async def _done(
        self, work: LandRequest, change: Change, merge_request: MergeRequestData
    ) -> forge.MergeLanded | forge.NotLanded | None:
        """Return the result if this very head is merged into this very branch, or why another head cannot be merged;
        None: try to merge."""
        state, sha, target = merge_request["state"], merge_request["sha"], merge_request["target_branch"]
        if target != change.branch:
            return forge.NotLanded(f"it was tested on {change.branch}, but now targets {target}")
        if sha != change.commit:
            return forge.NotLanded(
                f"GitLab refused to merge it: its head is no longer {change.commit[:12]}, which was tested"
            )
        if state == "merged":
            return await self._landed(work, change, merge_request)
        return forge.NotLanded("GitLab refused to merge it: it is closed") if state == "closed" else None

    async def _merge(self, work: LandRequest, change: Change, *, squash: bool) -> forge.MergeLanded | forge.NotLanded:
        path = f"/merge_requests/{change.number}/merge"
        try:
            merge_request = (
                # GitLab refuses if the head is not this commit. Without `squash`,
                # the author's own choice would decide the tree's history.
                await self._client.change("PUT", change.project, path, {"sha": change.commit, "squash": squash})
            ).content
        except ReporterAway:
            # It may be merged although no response came.
            done = await self._done(work, change, await self._now(change))
            if done is None:
                raise
            return done
        except (ForgeDenied, Rejected) as error:
            return await self._refused(work, change, error)
        # GitLab may answer while it is still merging; the courier calls again.
        if merge_request["state"] != "merged":
            raise forge.ReportPutOff(
                f"GitLab accepted the request to merge, but {change.key} is {merge_request['state']}"
            )
        return await self._landed(work, change, merge_request)

    async def _refused(
        self, work: LandRequest, change: Change, error: ForgeDenied | Rejected
    ) -> forge.MergeLanded | forge.NotLanded:
        """Find out why GitLab refuses to merge, since its response barely gives a reason."""
        done = await self._done(work, change, await self._now(change))
        if done is not None:
            return done
        if isinstance(error, ForgeDenied):
            advice = f"let our account merge into {change.branch} (Settings, Repository, Protected branches)"
            return forge.NotLanded(f"GitLab refused to merge it: {error}; {advice}")
        request = await look(self._client, change.project, int(change.number))
        rules = rule_book(request)
        if request.status in WAITS or any(rule.met is None for rule in rules):
            raise forge.ReportPutOff(f"{change.key} {rules[0].text}") from error
        if request.mergeable is False:
            return forge.NotLanded(f"GitLab refused to merge it: it conflicts with {change.branch}")
        if request.draft:
            return forge.NotLanded("GitLab refused to merge it: it is a draft")
        return forge.NotLanded(f"GitLab refused to merge it: {'; '.join(f'it {rule.text}' for rule in rules) or error}")

    # --- result of the merge

    async def _landed(self, work: LandRequest, change: Change, merge_request: MergeRequestData) -> forge.MergeLanded:
        """Compare the branch with the tested commit by git, since the API provides no trees. Return the landing."""
        commit = str(
            merge_request.get("merge_commit_sha") or merge_request.get("squash_commit_sha") or merge_request["sha"]
        )
        wanted = forge.tested_tree(work, change)
        differs = bool(wanted) and await self._branches.tree(change.project, change.branch, commit) != wanted
        return forge.MergeLanded(commit, differs=differs)
