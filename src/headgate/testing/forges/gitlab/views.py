"""Render the stand-in's state as GitLab's API does, and send it to webhooks."""

from __future__ import annotations

import base64
import hashlib
import hmac
import uuid
from dataclasses import dataclass
from typing import Any

import msgspec

from headgate.testing.forges.github.mail import Delivery, Mail
from headgate.testing.forges.gitlab import model

KINDS = {
    "merge_request": "Merge Request Hook",
    "note": "Note Hook",
    "push": "Push Hook",
    "tag_push": "Tag Push Hook",
    "pipeline": "Pipeline Hook",
}
"""Kind of object -> its name in the header of a webhook."""
_BROKEN = frozenset({"conflict", "commits_status"})
"""Values of `detailed_merge_status` that make `merge_status` say `cannot_be_merged`."""

Shown = dict[str, Any]
"""JSON of the API."""


@dataclass(frozen=True, slots=True)
class FakeGitLabShows:
    """Render JSON."""

    web: str
    """Address of the instance, without a trailing slash."""

    def user(self, one: model.FakeGitLabUser) -> Shown:
        return {
            "id": one.id,
            "username": one.username,
            "name": one.name,
            "state": "active",
            "locked": False,
            "avatar_url": None,
            "web_url": f"{self.web}/{one.username}",
        }

    def project(self, one: model.FakeGitLabProject) -> Shown:
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
            "created_at": model.stamp(one.created_s),
            "visibility": "private" if one.private else "public",
            "merge_method": one.merge_method,
            "squash_option": one.squash_option,
            "only_allow_merge_if_pipeline_succeeds": one.only_if_pipeline_succeeds,
            "only_allow_merge_if_all_discussions_are_resolved": one.only_if_resolved,
        }

    def request(self, one: model.FakeGitLabMergeRequest, asker: model.FakeGitLabUser, *, asks: bool = True) -> Shown:
        """Return a merge request. `asks`: the request makes GitLab compute whether it can be merged."""
        word = model.detailed(one, asks=asks)
        state, _ = model.pipeline(one)
        merge_status = "cannot_be_merged" if word in _BROKEN else "can_be_merged"
        merge_status = word if word in ("checking", "unchecked") else merge_status
        return {
            "id": one.id,
            "iid": one.iid,
            "project_id": one.project.id,
            "title": one.title,
            "description": one.description or None,
            "state": one.state,
            "created_at": model.stamp(one.created_s),
            "updated_at": model.stamp(one.updated_s),
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
            "blocking_discussions_resolved": not one.project.only_if_resolved or not model.unresolved(one),
            "sha": one.sha,
            "merge_commit_sha": one.merge_commit_sha,
            "squash_commit_sha": one.squash_commit_sha,
            "web_url": f"{self.web}/{one.project.path}/-/merge_requests/{one.iid}",
            "references": {"full": f"{one.project.path}!{one.iid}"},
            "head_pipeline": self._pipeline(one, state) if state and one.source is not None else None,
            "user": {"can_merge": one.project.may_merge(asker, one.target_branch)},
        }

    def _pipeline(self, one: model.FakeGitLabMergeRequest, state: str) -> Shown:
        assert one.source is not None, "a pipeline is where the branch is"
        id = one.source.pipeline(one.sha, one.source_branch)
        where = {"id": id, "project_id": one.source.id, "ref": one.source_branch}
        return {**where, "sha": one.sha, "status": state, "source": "external"}

    def approvals(self, one: model.FakeGitLabMergeRequest, asker: model.FakeGitLabUser) -> Shown:
        shown: Shown = {
            "id": one.id,
            "iid": one.iid,
            "project_id": one.project.id,
            "state": one.state,
            "approved": model.approved(one),
            "approved_by": [
                {"user": self.user(user), "approved_at": model.stamp(one.approved_s[user.id])} for user in one.approvers
            ],
            "user_has_approved": asker in one.approvers,
            "user_can_approve": asker not in one.approvers,
        }
        # Only paid editions require approvals and report how many are missing.
        if one.project.approvals is not None:
            shown |= {"approvals_required": one.project.approvals, "approvals_left": model.approvals_left(one)}
        return shown

    def note(self, one: model.Note) -> Shown:
        shown: Shown = {
            "id": one.id,
            "body": one.body,
            "author": self.user(one.author),
            "created_at": model.stamp(one.at_s),
            "system": one.system,
            "noteable_type": "MergeRequest",
            "resolvable": one.resolvable,
        }
        return shown | {"resolved": one.resolved} if one.resolvable else shown

    def status(self, one: model.FakeGitLabStatus) -> Shown:
        return {
            "id": one.id,
            "sha": one.sha,
            "ref": one.ref,
            "status": one.state,
            "name": one.name,
            "description": one.description,
            "target_url": one.target_url,
            "author": self.user(one.author),
            "created_at": model.stamp(one.at_s),
            "finished_at": model.stamp(one.at_s) if one.state in model.FINISHED else None,
            "allow_failure": one.allow_failure,
        }

    # --- deliveries

    def hook_project(self, one: model.FakeGitLabProject) -> Shown:
        shown = self.project(one)
        return {k: shown[k] for k in ("id", "name", "path_with_namespace", "default_branch", "web_url")}

    def hook_user(self, one: model.FakeGitLabUser) -> Shown:
        # GitLab hides private email addresses from webhooks.
        return {"id": one.id, "name": one.name, "username": one.username, "email": "[REDACTED]"}

    def hook_request(self, one: model.FakeGitLabMergeRequest) -> Shown:
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
            "detailed_merge_status": model.detailed(one, asks=False),
            "url": f"{self.web}/{one.project.path}/-/merge_requests/{one.iid}",
        }


@dataclass(slots=True)
class FakeGitLabHookDelivery(Delivery):
    """Represent one delivery of GitLab."""

    signing: str = ""

    def headers(self) -> dict[str, str]:
        """Return the headers of one delivery as GitLab sends them; see `Delivery`."""
        found = {
            "Content-Type": "application/json",
            "User-Agent": "GitLab/18.9.0",
            "X-Gitlab-Event": KINDS[self.event],
            "X-Gitlab-Event-UUID": self.guid,
            "X-Gitlab-Webhook-UUID": str(uuid.UUID(int=self.app_id)),
            "Idempotency-Key": self.guid,
        }
        if self.secret:
            found["X-Gitlab-Token"] = self.secret
        return found | signed(self.signing, self.guid, int(self.at_s), self.body) if self.signing else found


def signed(signing: str, id: str, at_s: int, body: bytes) -> dict[str, str]:
    """Return the headers of a signature."""
    key = base64.b64decode(signing.removeprefix("whsec_"))
    mac = base64.b64encode(hmac.new(key, f"{id}.{at_s}.".encode() + body, hashlib.sha256).digest()).decode()
    return {"webhook-id": id, "webhook-timestamp": str(at_s), "webhook-signature": f"v1,{mac}"}


@dataclass(frozen=True, slots=True)
class FakeGitLabPost:
    """Send events to the hooks of a project."""

    world: model.FakeGitLabWorld
    shows: FakeGitLabShows
    mail: Mail

    def tell(self, project: model.FakeGitLabProject, kind: str, payload: Shown) -> None:
        """Deliver it to every hook of the project."""
        for hook in project.hooks:
            self.mail.post(self._made(hook, kind, payload))

    def _made(self, hook: model.FakeGitLabHook, kind: str, payload: Shown) -> FakeGitLabHookDelivery:
        body, now_s = msgspec.json.encode({"object_kind": kind, **payload}), self.world.clock.now_s()
        id, guid = next(self.world.ids), str(uuid.uuid4())
        return FakeGitLabHookDelivery(
            id, guid, kind, None, body, hook.url, hook.token, hook.id, None, None, now_s, signing=hook.signing
        )

    def of_request(
        self, one: model.FakeGitLabMergeRequest, who: model.FakeGitLabUser, action: str, **more: Any
    ) -> None:
        """Deliver an event of a merge request; `changes` may be among `more`."""
        one.updated_s = self.world.clock.now_s()
        changes = more.pop("changes", {})
        payload = {
            "user": self.shows.hook_user(who),
            "project": self.shows.hook_project(one.project),
            "object_attributes": {**self.shows.hook_request(one), "action": action, **more},
            "labels": [{"title": name} for name in one.labels],
            "changes": changes,
        }
        self.tell(one.project, "merge_request", payload)

    def of_note(self, one: model.FakeGitLabMergeRequest, note: model.Note) -> None:
        """Deliver a comment."""
        payload = {
            "user": self.shows.hook_user(note.author),
            "project": self.shows.hook_project(one.project),
            "object_attributes": {
                "id": note.id, "note": note.body, "noteable_type": "MergeRequest", "system": note.system,
                "author_id": note.author.id, "action": "create",
            },
            "merge_request": self.shows.hook_request(one),
        }  # fmt: skip
        self.tell(one.project, "note", payload)

    def of_push(
        self, project: model.FakeGitLabProject, who: model.FakeGitLabUser, ref: str, old: str, new: str
    ) -> None:
        """Deliver a push."""
        payload = {
            "ref": ref,
            "before": old,
            "after": new,
            # After a deletion there is no commit to check out.
            "checkout_sha": new if new.strip("0") else None,
            "user_id": who.id,
            "user_username": who.username,
            "project": self.shows.hook_project(project),
        }
        self.tell(project, "tag_push" if ref.startswith("refs/tags/") else "push", payload)

    def of_pipeline(
        self, project: model.FakeGitLabProject, who: model.FakeGitLabUser, ref: str, sha: str, state: str
    ) -> None:
        """Deliver a new state of a pipeline. A pipeline of statuses is `external`, and belongs to the user who posted
        the first."""
        payload = {
            "object_attributes": {"ref": ref, "sha": sha, "status": state, "source": "external", "tag": False},
            "user": self.shows.hook_user(who),
            "project": self.shows.hook_project(project),
            "merge_request": None,
        }
        self.tell(project, "pipeline", payload)
