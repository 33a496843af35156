"""Tell what a merge request still lacks, of the one word that GitLab says of it.  Pure.

GitLab names one thing at a time, and the pipeline after all others: where nothing is lacking but statuses that the gate
sets itself, the change is ready.
"""

from __future__ import annotations

from headgate.adapters.forges.gitlab.request import CI, WAITS, GitLabMergeRequest
from headgate.config.forges.facts import Rule

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
    "merge_time": "is not to be merged before the time that its page names",
    "title_regex": "needs a title of the form that the project asks for",
    "commits_status": "needs its branch, which is gone or has no commits of its own",
    "broken_status": "needs its branch, which is gone or has no commits of its own",
}


def rule_book(request: GitLabMergeRequest) -> tuple[Rule, ...]:
    """Return what is missing; empty if nothing is, or if other members represent it (drafts, conflicts)."""
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
        advice = "a gate makes that needless: let the project make merge commits (Settings, Merge requests)"
        return (Rule(f"needs to be on the newest commit of {request.target}; {advice}", False),)
    return (Rule(_WORDS.get(word, f"cannot be merged: GitLab says {word}"), False),)


def _pipeline(request: GitLabMergeRequest) -> Rule:
    if not request.jobs:
        return Rule("needs a pipeline that passes; the first status makes one", None)
    states = {one.status.name: one.status.state for one in request.jobs if not one.may_fail}
    missing = tuple(sorted(name for name, state in states.items() if state not in _PASSES))
    text = f"needs its pipeline to pass{': ' if missing else ''}{', '.join(missing)}"
    return Rule(text, None if all(states[name] in _UNDER_WAY for name in missing) else False, missing=missing)
