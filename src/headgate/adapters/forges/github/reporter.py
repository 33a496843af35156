"""Report on a pull request at GitHub, and merge it in the state that was tested."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote
from weakref import WeakValueDictionary

import msgspec

from headgate.adapters.forges.driver import BranchReader
from headgate.adapters.forges.github.client import GitHubAppNotInstalled, GitHubClient, Tokens
from headgate.adapters.forges.github.hook import ABORT, Meant
from headgate.adapters.forges.reporter import BODY_MAX, ChangeReporter, body, heading
from headgate.adapters.forges.rest import ForgeDenied, ForgeKey, NotThere, Rejected
from headgate.adapters.reporters.wordings import page
from headgate.base.texts import line, visible
from headgate.config.files.checks import as_list
from headgate.gate.state.change import Change
from headgate.gate.state.works import Landing, LandRequest
from headgate.map.outbox import QueueReport
from headgate.ports import forge

ANNOTATION_MAX_BYTES = 60_000
"""Length to which the message of an annotation is cut."""
ANNOTATIONS_MAX, ANNOTATIONS_ALL_MAX = 50, 1_000
"""Maximum numbers of annotations in one request, and in one check run."""
CONCLUDED = frozenset({"success", "failure", "cancelled", "skipped", "neutral"})
DESCRIPTION_MAX = 40
"""Length of the description of a button."""
LEVELS = {"info": "notice", "warning": "warning", "error": "failure"}
REVIEWS = {"approve": "APPROVE", "request-changes": "REQUEST_CHANGES", "comment": "COMMENT"}
METHODS = {
    "merge": "merge",
    "merge-resolve": "merge",
    "merge-recursive": "merge",
    "merge-ort": "merge",
    "squash-merge": "squash",
    "rebase": "rebase",
}
"""Merge mode of the test -> GitHub's method with the same result."""
_NOT_READY = ("base branch was modified", "try the merge again", "in progress")
"""Parts of GitHub's responses while it checks whether a change can be merged."""
_HIDDEN = "; Headgate cannot read the rules in force, as the app lacks a permission: administration: read"
MESSAGE_MAX = 60_000
"""Length to which the message of a merge commit is cut."""


class GitHubTeller(ChangeReporter):
    """Report on changes at one GitHub."""

    noun = "GitHub"

    def __init__(self, client: GitHubClient, tokens: Tokens) -> None:
        super().__init__(client, tokens)
        self._client = client
        self._changing = WeakValueDictionary[str, asyncio.Lock]()
        """Repository, commit and name -> lock, which lasts as long as somebody holds it or waits for it."""

    def short(self, project: str) -> str:
        """Return the forge's name of a project; see `ChangeReporter`."""
        return self._client.account.short(project)

    def advice(self, error: Exception) -> str:
        """Return advice about a refusal; see `ChangeReporter`."""
        return _advice(error)

    async def all(self, key: ForgeKey, repo: str, change: Change, report: QueueReport, how: Mapping[str, Any]) -> None:
        """Perform all actions of the reporter; see `ChangeReporter`."""
        name = f"{report.tenant}/{report.pipeline}"
        if how.get("status"):
            await self.status(key, repo, change, report, name, how)
        if not change.is_change:
            return
        await self._labels(key, f"{repo}/issues/{change.number}/labels", how)
        if how.get("review"):
            await self._review(key, f"{repo}/pulls/{change.number}/reviews", change, report, how)
        problem = ""
        if how.get("check"):
            problem = await self._check(key, repo, change, report, name, str(how["check"]))
        if how.get("comment", True) or problem:
            await self.comment(key, repo, change, report, name, problem)

    async def _labels(self, key: ForgeKey, path: str, how: Mapping[str, Any]) -> None:
        if labels := [str(one) for one in as_list(how.get("label"))]:
            await self._client.write("POST", key, path, {"labels": labels})
        for label in as_list(how.get("unlabel")):
            with suppress(NotThere):  # the label has already been removed
                await self._client.write("DELETE", key, f"{path}/{quote(str(label), safe='')}")

    async def _review(
        self, key: ForgeKey, path: str, change: Change, report: QueueReport, how: Mapping[str, Any]
    ) -> None:
        text = str(how.get("review-body") or heading(report))
        review = {"event": REVIEWS[str(how["review"])], "commit_id": change.commit, "body": text}
        await self.review(key, path, report, review)

    # --- the check run

    async def _check(self, key: ForgeKey, repo: str, change: Change, report: QueueReport, name: str, value: str) -> str:
        """Create or update the check run of this pipeline; return a readable reason if that is impossible."""
        run = check_run(report, name, change, value, datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))
        if self._client.account.webhook_token:  # without webhooks, Headgate does not learn that somebody uses a button
            run["actions"] = [] if value in CONCLUDED else [button(report.pipeline)]
        batches = list(_batches(notes_of(report, change)))
        output = {"title": run["output"]["title"], "summary": run["output"]["summary"]}
        lock = self._changing.setdefault(f"{repo} {change.commit} {name}", asyncio.Lock())
        try:
            # Two concurrent reports must not create two runs of the same name.
            async with lock:
                id = await self._own_run(key, repo, change.commit, name, ends=value in CONCLUDED)
                first = {**run, "output": {**output, "annotations": batches[0]}} if batches else run
                if id is None:
                    made = await self._client.write("POST", key, f"{repo}/check-runs", first)
                    id = int(made.content["id"])
                else:
                    # A run cannot move to another commit.
                    first = {k: v for k, v in first.items() if k != "head_sha"}
                    await self._client.write("PATCH", key, f"{repo}/check-runs/{id}", first)
                self.remember("run", f"{repo} {change.commit}", name, id)
                if value in CONCLUDED:
                    self._ended(id)
                # GitHub appends the annotations of each request to those that the run already has.
                for batch in batches[1:]:
                    more = {"output": {**output, "annotations": batch}}
                    await self._client.write("PATCH", key, f"{repo}/check-runs/{id}", more)
        except (ForgeDenied, Rejected) as error:
            return f"The check run {name} could not be written: {error}{_advice(error)}"
        return ""

    async def _own_run(self, key: ForgeKey, repo: str, commit: str, name: str, *, ends: bool) -> int | None:
        """Return our run to update, or None to create one. Only a report that completes a run (`ends`) updates one that
        is already completed."""
        known = self.known.get(("run", f"{repo} {commit}", name))
        if known is not None:
            return known if ends or ("ended", str(known), "") not in self.known else None
        for one in await self._runs(key, repo, commit):
            if one["name"] == name and (ends or one["status"] != "completed"):
                return int(one["id"])
        return None

    def _ended(self, run: int) -> None:
        self.remember("ended", str(run), "", run)

    async def _runs(self, key: ForgeKey, repo: str, commit: str) -> Sequence[Mapping[str, Any]]:
        """Return our check runs of a commit; they are requested once and then cached."""
        if ("listed", f"{repo} {commit}", "") in self.known:
            return ()
        app_id = self._client.account.app_id
        query = {"app_id": int(app_id)} if app_id else {}
        pages = self._client.pages(key, f"{repo}/commits/{commit}/check-runs", query)
        found = [one async for page in pages for one in page["check_runs"]]
        self.remember("listed", f"{repo} {commit}", "", 0)
        # The newest run comes first in the list; remember it last, so that it replaces older ones.
        for one in reversed(found):
            self.remember("run", f"{repo} {commit}", str(one["name"]), int(one["id"]))
            if one["status"] == "completed":
                self._ended(int(one["id"]))
        return found


def check_run(report: QueueReport, name: str, change: Change, value: str, now: str) -> dict[str, Any]:
    """Return a check run with the settings of the configuration."""
    about = Meant(report.tenant, report.pipeline, change.number, report.event)
    summary = body(report, "")[: BODY_MAX - 1].strip() or heading(report)
    run: dict[str, Any] = {
        "name": name,
        "head_sha": change.commit,
        "external_id": msgspec.json.encode(about).decode(),
        "output": {"title": heading(report), "summary": summary},
    }
    if address := page(report):
        run["details_url"] = address
    if value in CONCLUDED:
        return run | {"status": "completed", "conclusion": value, "completed_at": now}
    return run | {"status": value}


def button(pipeline: str) -> dict[str, str]:
    """Return the button of a check run that removes its change from the pipeline; see `hook`."""
    description = line(f"Remove it from {pipeline}", DESCRIPTION_MAX)
    return {"label": "Abort", "description": description, "identifier": ABORT}


def notes_of(report: QueueReport, change: Change) -> list[dict[str, Any]]:
    """Return the jobs' comments on lines: each once, for files that the change has, the most severe first."""
    files = None if change.files is None else frozenset(change.files)
    found: dict[bytes, dict[str, Any]] = {}
    for path, comments in report.comments.items():
        for one in comments if files is None or path in files else ():
            note = _annotation(path, one)
            if note is not None:
                found.setdefault(msgspec.json.encode(note), note)
    order = list(LEVELS.values())
    notes = sorted(found.values(), key=lambda note: -order.index(note["annotation_level"]))
    return notes[:ANNOTATIONS_ALL_MAX]


def _annotation(path: str, one: Any) -> dict[str, Any] | None:
    start = one.range.start_line if one.range is not None else one.line
    end = one.range.end_line if one.range is not None else one.line
    if start < 1 or end < start:
        return None
    message = visible(one.message).encode()[:ANNOTATION_MAX_BYTES].decode("utf-8", "ignore")
    note = {
        "path": path,
        "start_line": start,
        "end_line": end,
        "annotation_level": LEVELS.get(one.level or "", "warning"),
        "message": message or "(no message)",
    }
    if one.range is not None and start == end:
        note |= {"start_column": one.range.start_character + 1, "end_column": one.range.end_character + 1}
    return note


def _batches(notes: Sequence[dict[str, Any]]) -> Iterator[Sequence[dict[str, Any]]]:
    for start in range(0, len(notes), ANNOTATIONS_MAX):
        yield notes[start : start + ANNOTATIONS_MAX]


def _advice(error: Exception) -> str:
    if "Resource not accessible" in str(error):
        return (
            " (the app lacks a permission: its owner must grant it in the app's settings, and whoever installed the "
            "app must accept)"
        )
    if "You must authenticate via a GitHub App" in str(error):
        return " (check runs need an app: set app_id and app_key, or report a status instead)"
    return ""


class GitHubLander:
    """Merge at one GitHub."""

    def __init__(self, client: GitHubClient, tokens: Tokens, branches: BranchReader) -> None:
        self._client, self._tokens, self._branches = client, tokens, branches

    async def land(self, work: LandRequest, part: Landing) -> forge.MergeLanded | forge.NotLanded:
        """Merge one change.  Raise ReporterAway, ReportPutOff."""
        change = part.change
        method = METHODS.get(forge.merge_mode(work, change))
        if method is None:
            return forge.NotLanded(
                f"GitHub cannot merge it the way it was tested ({forge.merge_mode(work, change)}): set the project's "
                "merge-mode to merge, squash-merge or rebase"
            )
        project = self._client.account.short(change.project)
        try:
            key = await self._tokens.of(project)
            # Somebody may still push before GitHub merges; the comparison of the trees in `_landed` reveals that.
            head = await self._branches.head(change.project, change.branch)
            if not forge.is_tested_on(work, change, head):
                return await self._merged(key, project, work, change) or forge.NotLanded(
                    f"{change.branch} is at {head[:12] or 'no commit'}, but this change was tested on another commit",
                    moved=True,
                )
            base = await self._base(key, project, change)
            if base != change.branch:
                return forge.NotLanded(f"it was tested on {change.branch}, but now targets {base}")
            return await self._merge(key, project, work, change, method)
        except (GitHubAppNotInstalled, NotThere) as error:
            return forge.NotLanded(f"GitHub refused to merge it: {error}")

    async def _base(self, key: ForgeKey, project: str, change: Change) -> str:
        """Return the current target branch: the author may choose another one, and GitHub merges there."""
        pull = (await self._client.get(key, f"/repos/{project}/pulls/{change.number}")).content
        return str(pull["base"]["ref"])

    async def _merge(
        self, key: ForgeKey, project: str, work: LandRequest, change: Change, method: str
    ) -> forge.MergeLanded | forge.NotLanded:
        # GitHub refuses with 409 if the head is not this commit, so an untested push cannot slip in.
        request = {"sha": change.commit, "merge_method": method, **_message(change, method)}
        try:
            answer = await self._client.write("PUT", key, f"/repos/{project}/pulls/{change.number}/merge", request)
        except forge.ReporterAway:
            # It may be merged although no response came.
            done = await self._merged(key, project, work, change)
            if done is None:
                raise
            return done
        except (ForgeDenied, Rejected) as error:
            return await self._refused(key, project, work, change, error)
        return await self._landed(key, project, work, change, str(answer.content["sha"]))

    async def _refused(
        self, key: ForgeKey, project: str, work: LandRequest, change: Change, error: ForgeDenied | Rejected
    ) -> forge.MergeLanded | forge.NotLanded:
        done = await self._merged(key, project, work, change)
        if done is not None:
            return done
        reason = " ".join(str(error).split())
        if isinstance(error, Rejected) and error.status == 409:
            return forge.NotLanded(
                f"GitHub refused to merge it: its head is no longer {change.commit[:12]}, which was tested"
            )
        if isinstance(error, Rejected) and error.status == 405 and any(one in reason.lower() for one in _NOT_READY):
            raise forge.ReportPutOff(f"GitHub is still checking whether it can be merged: {reason}") from error
        hidden = "" if self._tokens.reads_rules(project) else _HIDDEN
        return forge.NotLanded(f"GitHub refused to merge it: {reason}{_merge_advice(reason) or hidden}")

    async def _merged(self, key: ForgeKey, project: str, work: LandRequest, change: Change) -> forge.MergeLanded | None:
        """Return the result of a merge of this very head into this very branch, if it has already been merged."""
        pull = (await self._client.get(key, f"/repos/{project}/pulls/{change.number}")).content
        if not pull.get("merged") or (pull["head"]["sha"], pull["base"]["ref"]) != (change.commit, change.branch):
            return None
        return await self._landed(key, project, work, change, str(pull["merge_commit_sha"] or ""))

    async def _landed(
        self, key: ForgeKey, project: str, work: LandRequest, change: Change, commit: str
    ) -> forge.MergeLanded:
        wanted = forge.tested_tree(work, change)
        if not wanted or not commit:
            return forge.MergeLanded(commit)
        found = (await self._client.get(key, f"/repos/{project}/git/commits/{commit}")).content
        return forge.MergeLanded(commit, differs=str(found["tree"]["sha"]) != wanted)


def _message(change: Change, method: str) -> dict[str, str]:
    """Return the message of the commit: the title, and the author's description."""
    body = change.message.removeprefix(change.title).strip() if change.title else change.message
    # A rebase keeps the commits of the author, with their messages.
    if method == "rebase":
        return {}
    return {"commit_title": f"{change.title} (#{change.number})"[:250], "commit_message": body[:MESSAGE_MAX]}


def _merge_advice(reason: str) -> str:
    low = reason.lower()
    if "resource not accessible" in low:
        return "; the app lacks a permission: contents: write, and workflows: write for changes of .github/workflows"
    if "merge queue" in low:
        return "; remove the rule of GitHub's merge queue, or let Headgate bypass it"
    if "not allowed on this repository" in low:
        return "; allow it in the repository's settings, or set the project's merge-mode to one that is allowed"
    return ""
