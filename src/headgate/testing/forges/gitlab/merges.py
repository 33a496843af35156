"""Tell whether a merge request can be merged, as GitLab says it in one word, and what merging makes."""

from __future__ import annotations

import pygit2

from headgate.testing.forges.github import hosts
from headgate.testing.forges.gitlab.state import FakeGitLabMergeRequest, FakeGitLabStatus, FakeGitLabUser

_ENDED_BADLY = frozenset({"failed", "canceled"})


def signature(user: FakeGitLabUser, at_s: float) -> pygit2.Signature:
    """Return whose a commit is."""
    return pygit2.Signature(user.name, f"{user.id}-{user.username}@users.noreply.gitlab.example", int(at_s), 0)


def pipeline(one: FakeGitLabMergeRequest) -> tuple[str, list[FakeGitLabStatus]]:
    """Return the state of its head pipeline, and its jobs; empty: there is none.  It is one of the branch that it comes
    from, in the project that has the branch."""
    jobs = one.source.jobs(one.sha, one.source_branch) if one.source is not None else []
    states = {job.state for job in jobs if not (job.allow_failure and job.state in _ENDED_BADLY)}
    if not jobs:
        return "", jobs
    for state in ("failed", "canceled", "running"):
        if state in states:
            return state, jobs
    return ("running" if states & {"success", "skipped"} else "pending") if "pending" in states else "success", jobs


def unresolved(one: FakeGitLabMergeRequest) -> int:
    """Return how many threads are not resolved."""
    return sum(note.resolvable and not note.resolved for note in one.notes)


def approvals_left(one: FakeGitLabMergeRequest) -> int:
    """Return how many approvals are lacking."""
    return max(0, (one.project.approvals or 0) - len(one.approvers))


def approved(one: FakeGitLabMergeRequest) -> bool:
    """Say whether it counts as approved."""
    return not approvals_left(one) if one.project.approvals is not None else bool(one.approvers)


def conflicts(one: FakeGitLabMergeRequest) -> bool:
    """Say whether it conflicts with its target."""
    base = hosts.heads(one.project).get(one.target_branch)
    return base is None or hosts.merged_tree(one.project, base, one.sha) is None


def branch_missing(one: FakeGitLabMergeRequest) -> bool:
    """Say whether it comes from nowhere any more."""
    return one.source is None or one.source_branch not in hosts.heads(one.source)


def detailed(one: FakeGitLabMergeRequest, *, asks: bool = True) -> str:
    """Return `detailed_merge_status`.  `asks`: that makes GitLab work it out, a while later."""
    if one.state != "opened":
        return "not_open"
    if one.undecided:
        # Only a question to the merge request itself makes GitLab compute it; a list shows what is known.
        one.undecided -= asks
        return "checking" if asks else "unchecked"
    project = one.project
    base = hosts.heads(project).get(one.target_branch, "")
    behind = project.merge_method != "merge" and not (base and hosts.contains(project, one.sha, base))
    # In GitLab's order: it names only the first obstacle, and the pipeline after all others.
    for holds, word in (
        (one.draft, "draft_status"),
        (branch_missing(one) or not base, "commits_status"),
        (project.only_if_resolved and unresolved(one), "discussions_not_resolved"),
        (approvals_left(one), "not_approved"),
        (one.hindered, one.hindered),
    ):
        if holds:
            return word
    if conflicts(one):
        return "conflict"
    if behind:
        return "need_rebase"
    state, _ = pipeline(one)
    if project.only_if_pipeline_succeeds and state != "success":
        return "ci_still_running" if state in ("running", "pending") else "ci_must_pass"
    return "mergeable"


def merge(
    one: FakeGitLabMergeRequest, user: FakeGitLabUser, squash: bool, message: str, squash_message: str, at_s: float
) -> str:
    """Merge; return the new head of the target, which is moved."""
    project, git = one.project, hosts.opened(one.project)
    base, who = hosts.heads(project)[one.target_branch], signature(user, at_s)
    squash = squash or project.squash_option == "always"
    head = one.sha
    if squash:
        tree = hosts.merged_tree(project, base, head)
        head = str(git.create_commit(None, who, who, squash_message or one.title, tree, [base]))
        one.squash_commit_sha = head
    if project.merge_method == "ff":
        tip = head
    else:
        text = message or f"Merge branch '{one.source_branch}' into '{one.target_branch}'\n\n{one.title}"
        tip = str(git.create_commit(None, who, who, text, hosts.merged_tree(project, base, head), [base, head]))
        one.merge_commit_sha = tip
    hosts.point(project, f"refs/heads/{one.target_branch}", tip)
    return tip
