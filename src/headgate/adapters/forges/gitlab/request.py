"""Read one merge request from GitLab, and what it still lacks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from headgate.adapters.forges.gitlab.client import GitLabClient
from headgate.adapters.forges.pulls import cut, ms
from headgate.adapters.forges.rest import ForgeDenied, NotThere, Query, Rejected, ResponseTooLarge
from headgate.config.forges.facts import ProgramStatus, Rule

NOTE_PAGES_MAX = 10
LABELS_MAX, APPROVALS_MAX = 100, 100
JOBS_MAX = 500
"""Maximum number of jobs of a pipeline that are read: it runs in the author's fork and may have any number of jobs."""
LONG_NOTES = 5
"""Notes in one response if some are long: this many fit, even if each has the greatest length."""
NOTES_AT_FIRST = 1
"""Pages of comments that are read when no comment is known yet."""
CI = frozenset({"ci_must_pass", "ci_still_running"})
"""Statuses in which only the pipeline is missing."""
WAITS = frozenset({"checking", "unchecked", "preparing", "approvals_syncing", "cannot_be_merged_recheck"})
"""Statuses while GitLab is still computing the status."""

_PASSES = frozenset({"success", "skipped"})
_UNDER_WAY = frozenset({"created", "waiting_for_resource", "preparing", "pending", "running", "scheduled"})
_ELSEWHERE = frozenset({"mergeable", "draft_status", "conflict", "not_open"})
"""Statuses that other members represent, or that block nothing."""
_WORDS = {
    "discussions_not_resolved": "needs all its threads to be resolved",
    "requested_changes": "needs those who requested changes to approve it",
    "merge_request_blocked": "needs the merge requests that block it to be merged first",
    "locked_paths": "needs the files that somebody has locked to be unlocked",
    "locked_lfs_files": "needs the files that somebody has locked in LFS to be unlocked",
    "jira_association_missing": "needs to name an issue of Jira in its title or description",
    "security_policy_violations": "needs the security policies of the project to be met; its page names them",
    "security_policy_pipeline_check": "needs the pipelines of the project's security policies to pass",
    "status_checks_must_pass": "needs its external status checks to pass; its page names them",
    "merge_time": "may not be merged before the time that its page names",
    "title_regex": "needs a title in the form that the project requires",
    "commits_status": "needs its branch, which is gone or has no commits of its own",
    "broken_status": "needs its branch, which is gone or has no commits of its own",
}
"""Status -> message about what a merge request with this status needs."""


class GitLabUser(msgspec.Struct, frozen=True):
    """Identify an account."""

    id: int
    name: str


class Approval(msgspec.Struct, frozen=True):
    """Record an approval."""

    who: GitLabUser
    at_ms: int
    """Time of the approval; 0 if this GitLab does not provide it."""


class Remark(msgspec.Struct, frozen=True):
    """Represent a comment."""

    id: int
    who: GitLabUser
    text: str
    at_ms: int


class Job(msgspec.Struct, frozen=True):
    """Represent a job of the pipeline, or a status that another program has set."""

    status: ProgramStatus
    may_fail: bool


@dataclass(frozen=True, slots=True)
class GitLabMergeRequest:
    """Describe a merge request at one moment."""

    project: str
    """Canonical name of the project, as requested."""
    number: int
    title: str
    body: str
    url: str
    state: str
    """opened | closed | merged | locked; a merge request is locked while it is being merged."""
    draft: bool
    updated: str
    head: str
    target: str
    base: str
    """Commit that GitLab compares the head with; empty until GitLab has computed it."""
    author: GitLabUser
    status: str
    """`detailed_merge_status`, or its equivalent for the `merge_status` of an older GitLab."""
    mergeable: bool | None
    approved: bool
    approvals_left: int | None
    """Number of approvals that are missing; None if this GitLab does not require a number of approvals."""
    approvals: tuple[Approval, ...]
    labels: tuple[str, ...]
    remarks: tuple[Remark, ...]
    """New remarks, oldest first."""
    jobs: tuple[Job, ...]
    """Jobs of the pipeline, if only the pipeline is missing."""

    @property
    def ids(self) -> Mapping[str, int]:
        """Return the ids of the accounts with these names."""
        users = (self.author, *(one.who for one in self.approvals), *(one.who for one in self.remarks))
        return {one.name: one.id for one in users}


async def look(
    client: GitLabClient, project: str, number: int, after: int = 0, *, urgent: bool = True
) -> GitLabMergeRequest:
    """Return a merge request of a project (canonical name), with the comments after a given one. Raise NotThere,
    ForgeDenied, Rejected, ReporterAway."""
    path = f"{client.account.path(project)}/merge_requests/{number}"
    merge_request = (await client.get(client.key, path, urgent=urgent)).content
    if not merge_request["sha"]:  # this is permanent if the branch was deleted immediately
        if merge_request["state"] != "opened":
            raise NotThere(f"{project}!{number} has no commits")
        raise Rejected(200, f"{project}!{number}: GitLab has not processed its commits yet")
    approvals, remarks, jobs = dict[str, Any](), tuple[Remark, ...](), tuple[Job, ...]()
    if merge_request["state"] == "opened":
        approvals = (await client.get(client.key, f"{path}/approvals", urgent=urgent)).content
        # Save the call if GitLab reports that there are no comments.
        if merge_request.get("user_notes_count", 1):
            remarks = await _remarks(client, path, after, urgent)
        # GitLab names the pipeline last, so its jobs matter only then.
        if merge_request.get("detailed_merge_status") in CI:
            jobs = await _jobs(client, project, merge_request, urgent)
    return _request(project, merge_request, approvals, remarks, jobs)


async def _remarks(client: GitLabClient, path: str, after: int, urgent: bool) -> tuple[Remark, ...]:
    """Return the newest comments down to the last known one. A flood of comments hides none of them, and long comments
    do not block the change."""
    try:
        return await _newest(client, path, after, urgent, 100)
    except ResponseTooLarge:
        return await _newest(client, path, after, urgent, LONG_NOTES)


async def _newest(client: GitLabClient, path: str, after: int, urgent: bool, size: int) -> tuple[Remark, ...]:
    found: list[Remark] = []
    query: Query = {"sort": "desc", "order_by": "created_at", "per_page": size}
    pages = 0
    async for page in client.pages(client.key, f"{path}/notes", query, urgent=urgent):
        notes = [one for one in page if not one["system"]]
        fresh = [_remark(one) for one in notes if int(one["id"]) > after]
        found += fresh
        pages += 1
        # Newest first: a page with a known comment ends the list. The
        # bound keeps a flood of comments from costing a flood of calls.
        if len(fresh) < len(notes) or pages * size >= 100 * (NOTE_PAGES_MAX if after else NOTES_AT_FIRST):
            break
    return tuple(sorted(found, key=lambda one: one.id))


async def _jobs(client: GitLabClient, project: str, merge_request: Mapping[str, Any], urgent: bool) -> tuple[Job, ...]:
    """Return the jobs of its pipeline; none if it has no pipeline, or we may not read the project of the pipeline."""
    pipeline = merge_request.get("head_pipeline")
    if not pipeline:
        return ()
    home = f"/projects/{int(pipeline.get('project_id') or merge_request['project_id'])}"
    found: list[Job] = []
    path, query = f"{home}/repository/commits/{merge_request['sha']}/statuses", {"pipeline_id": int(pipeline["id"])}
    try:
        async for page in client.pages(client.key, path, query, urgent=urgent):
            found += [_job(one) for one in page]
            if len(found) >= JOBS_MAX:  # GitLab itself counts all jobs
                break
    except (NotThere, ForgeDenied):
        # We may not see the fork's pipeline, but the merge request contains its overall state.
        state = str(pipeline.get("status") or "failed")
        return (Job(ProgramStatus("", f"its pipeline in the fork, which is {state}", state), False),)
    return tuple(found[:JOBS_MAX])


def _job(status: Mapping[str, Any]) -> Job:
    who, url = (status.get("author") or {}).get("username", ""), status.get("target_url") or ""
    return Job(
        ProgramStatus(str(who), str(status["name"]), str(status["status"]), url=str(url)),
        bool(status.get("allow_failure")),
    )


def _request(
    project: str,
    merge_request: Mapping[str, Any],
    approvals: Mapping[str, Any],
    remarks: tuple[Remark, ...],
    jobs: tuple[Job, ...],
) -> GitLabMergeRequest:
    left = approvals.get("approvals_left")
    status = str(merge_request.get("detailed_merge_status") or _of_old(merge_request))
    mergeable = None if status in WAITS else not (status == "conflict" or bool(merge_request.get("has_conflicts")))
    return GitLabMergeRequest(
        project=project,
        number=int(merge_request["iid"]),
        title=str(merge_request["title"]),
        body=(merge_request["description"] or "").replace("\r\n", "\n"),
        url=str(merge_request["web_url"]),
        state=str(merge_request["state"]),
        draft=bool(merge_request.get("draft", merge_request.get("work_in_progress"))),
        updated=str(merge_request["updated_at"]),
        head=str(merge_request["sha"]),
        target=str(merge_request["target_branch"]),
        base=str((merge_request.get("diff_refs") or {}).get("base_sha") or ""),
        author=_user(merge_request["author"]),
        status=status,
        mergeable=mergeable,
        approved=not left if left is not None else bool(approvals.get("approved")),
        approvals_left=int(left) if left is not None else None,
        approvals=tuple(_approval(one) for one in (approvals.get("approved_by") or ())[:APPROVALS_MAX]),
        labels=tuple(map(str, merge_request["labels"][:LABELS_MAX])),
        remarks=remarks,
        jobs=jobs,
    )


def _of_old(merge_request: Mapping[str, Any]) -> str:
    """Translate the response of a GitLab before 15.6 into the statuses of newer ones."""
    word = str(merge_request["merge_status"])
    if merge_request.get("blocking_discussions_resolved") is False:
        return "discussions_not_resolved"
    return {"can_be_merged": "mergeable", "cannot_be_merged": "conflict"}.get(word, "checking")


def _user(user: Mapping[str, Any] | None) -> GitLabUser:
    return GitLabUser(int(user["id"]), str(user["username"])) if user else GitLabUser(0, "ghost")


def _approval(approval: Mapping[str, Any]) -> Approval:
    at = approval.get("approved_at")
    return Approval(_user(approval["user"]), ms(at) if at else 0)


def _remark(note: Mapping[str, Any]) -> Remark:
    # Cut here, as a thousand comments of a megabyte may be new.
    return Remark(int(note["id"]), _user(note["author"]), cut(str(note["body"])), ms(note["created_at"]))


def rule_book(request: GitLabMergeRequest) -> tuple[Rule, ...]:
    """Return the missing requirements; empty if there are none, or if other members represent it (drafts, conflicts).

    GitLab names one thing at a time, and the pipeline after all others: if it names the pipeline, nothing is missing
    except statuses, among them those that the gate sets itself.
    """
    word = request.status
    if word in _ELSEWHERE:
        return ()
    if word in WAITS:
        return (Rule("waits for GitLab to work out whether it can be merged", None),)
    if word in CI:
        return (_pipeline(request),)
    if word == "not_approved":
        left = request.approvals_left or 1
        return (Rule(f"needs {left} more approval{'s' if left > 1 else ''}", False),)
    if word == "need_rebase":
        advice = "a gate makes that needless: let the project use merge commits (Settings, Merge requests)"
        return (Rule(f"needs to be on the newest commit of {request.target}; {advice}", False),)
    return (Rule(_WORDS.get(word, f"cannot be merged: GitLab says {word}"), False),)


def _pipeline(request: GitLabMergeRequest) -> Rule:
    if not request.jobs:
        return Rule("needs a pipeline that passes; the first status creates one", None)
    states = {one.status.name: one.status.state for one in request.jobs if not one.may_fail}
    missing = tuple(sorted(name for name, state in states.items() if state not in _PASSES))
    text = f"needs its pipeline to pass{': ' if missing else ''}{', '.join(missing)}"
    return Rule(text, None if all(states[name] in _UNDER_WAY for name in missing) else False, missing=missing)
