"""Render things as answers and deliveries show them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headgate.testing.forges.gitlab import merges
from headgate.testing.forges.gitlab.state import (
    FINISHED,
    FakeGitLabMergeRequest,
    FakeGitLabProject,
    FakeGitLabStatus,
    FakeGitLabUser,
    Note,
    stamp,
)

Shown = dict[str, Any]
_BROKEN = frozenset({"conflict", "commits_status"})


@dataclass(frozen=True, slots=True)
class FakeGitLabShows:
    """Render JSON."""

    web: str
    """Address of the instance, without a trailing slash."""

    def user(self, one: FakeGitLabUser) -> Shown:
        return {
            "id": one.id,
            "username": one.username,
            "name": one.name,
            "state": "active",
            "locked": False,
            "avatar_url": None,
            "web_url": f"{self.web}/{one.username}",
        }

    def project(self, one: FakeGitLabProject) -> Shown:
        namespace, _, name = one.path.rpartition("/")
        return {
            "id": one.id,
            "name": name,
            "path": name,
            "path_with_namespace": one.path,
            "namespace": {"full_path": namespace},
            "default_branch": one.default_branch,
            "web_url": f"{self.web}/{one.path}",
            "http_url_to_repo": f"{self.web}/{one.path}.git",
            "created_at": stamp(one.created_s),
            "visibility": "private" if one.private else "public",
            "merge_method": one.merge_method,
            "squash_option": one.squash_option,
            "only_allow_merge_if_pipeline_succeeds": one.only_if_pipeline_succeeds,
            "only_allow_merge_if_all_discussions_are_resolved": one.only_if_resolved,
        }

    def request(self, one: FakeGitLabMergeRequest, asker: FakeGitLabUser, *, asks: bool = True) -> Shown:
        """Return a merge request.  `asks`: to look at it makes GitLab work out whether it can be merged."""
        word = merges.detailed(one, asks=asks)
        state, _ = merges.pipeline(one)
        merge_status = "cannot_be_merged" if word in _BROKEN else "can_be_merged"
        merge_status = word if word in ("checking", "unchecked") else merge_status
        return {
            "id": one.id,
            "iid": one.iid,
            "project_id": one.project.id,
            "title": one.title,
            "description": one.description or None,
            "state": one.state,
            "created_at": stamp(one.created_s),
            "updated_at": stamp(one.updated_s),
            "merged_by": self.user(one.merged_by) if one.merged_by is not None else None,
            "target_branch": one.target_branch,
            "source_branch": one.source_branch,
            "user_notes_count": sum(not note.system for note in one.notes),
            "author": self.user(one.author),
            "source_project_id": one.source.id if one.source is not None else None,
            "target_project_id": one.project.id,
            "labels": sorted(one.labels),
            "draft": one.draft,
            "merge_status": merge_status,
            "detailed_merge_status": word,
            "has_conflicts": word == "conflict",
            "blocking_discussions_resolved": not one.project.only_if_resolved or not merges.unresolved(one),
            "sha": one.sha,
            "merge_commit_sha": one.merge_commit_sha,
            "squash_commit_sha": one.squash_commit_sha,
            "web_url": f"{self.web}/{one.project.path}/-/merge_requests/{one.iid}",
            "references": {"full": f"{one.project.path}!{one.iid}"},
            "head_pipeline": self._pipeline(one, state) if state and one.source is not None else None,
            "user": {"can_merge": one.project.may_merge(asker, one.target_branch)},
        }

    def _pipeline(self, one: FakeGitLabMergeRequest, state: str) -> Shown:
        assert one.source is not None, "a pipeline is where the branch is"
        id = one.source.pipeline(one.sha, one.source_branch)
        where = {"id": id, "project_id": one.source.id, "ref": one.source_branch}
        return {**where, "sha": one.sha, "status": state, "source": "external"}

    def approvals(self, one: FakeGitLabMergeRequest, asker: FakeGitLabUser) -> Shown:
        shown: Shown = {
            "id": one.id,
            "iid": one.iid,
            "project_id": one.project.id,
            "state": one.state,
            "approved": merges.approved(one),
            "approved_by": [
                {"user": self.user(user), "approved_at": stamp(one.approved_s[user.id])} for user in one.approvers
            ],
            "user_has_approved": asker in one.approvers,
            "user_can_approve": asker not in one.approvers,
        }
        if one.project.approvals is not None:
            shown |= {"approvals_required": one.project.approvals, "approvals_left": merges.approvals_left(one)}
        return shown

    def note(self, one: Note) -> Shown:
        shown: Shown = {
            "id": one.id,
            "body": one.body,
            "author": self.user(one.author),
            "created_at": stamp(one.at_s),
            "system": one.system,
            "noteable_type": "MergeRequest",
            "resolvable": one.resolvable,
        }
        return shown | {"resolved": one.resolved} if one.resolvable else shown

    def status(self, one: FakeGitLabStatus) -> Shown:
        return {
            "id": one.id,
            "sha": one.sha,
            "ref": one.ref,
            "status": one.state,
            "name": one.name,
            "description": one.description,
            "target_url": one.target_url,
            "author": self.user(one.author),
            "created_at": stamp(one.at_s),
            "finished_at": stamp(one.at_s) if one.state in FINISHED else None,
            "allow_failure": one.allow_failure,
        }

    # --- deliveries

    def hook_project(self, one: FakeGitLabProject) -> Shown:
        shown = self.project(one)
        return {k: shown[k] for k in ("id", "name", "path_with_namespace", "default_branch", "web_url")}

    def hook_user(self, one: FakeGitLabUser) -> Shown:
        return {"id": one.id, "name": one.name, "username": one.username, "email": "[REDACTED]"}

    def hook_request(self, one: FakeGitLabMergeRequest) -> Shown:
        """Return the description of a merge request in deliveries."""
        return {
            "id": one.id,
            "iid": one.iid,
            "target_branch": one.target_branch,
            "source_branch": one.source_branch,
            "source_project_id": one.source.id if one.source is not None else None,
            "target_project_id": one.project.id,
            "source": self.hook_project(one.source) if one.source is not None else None,
            "target": self.hook_project(one.project),
            "author_id": one.author.id,
            "title": one.title,
            "description": one.description,
            "state": one.state,
            "draft": one.draft,
            "last_commit": {"id": one.sha},
            "merge_commit_sha": one.merge_commit_sha,
            "detailed_merge_status": merges.detailed(one, asks=False),
            "url": f"{self.web}/{one.project.path}/-/merge_requests/{one.iid}",
        }
