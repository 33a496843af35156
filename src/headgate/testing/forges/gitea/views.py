"""Render the stand-in's state as Gitea's API does, and send it to webhooks."""

from __future__ import annotations

import hashlib
import hmac
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec

from headgate.testing.forges.gitea import model
from headgate.testing.forges.github import hosts
from headgate.testing.forges.github.mail import Delivery, Mail
from headgate.testing.forges.github.model import FakeGitHubAccount, FakeGitHubComment, FakeGitHubLabel, FakeGitHubStatus

COARSE = {
    "pull_request_comment": "issue_comment",
    "pull_request_review_approved": "pull_request_approved",
    "pull_request_review_rejected": "pull_request_rejected",
    "pull_request_review_comment": "pull_request_comment",
    "pull_request_sync": "pull_request",
    "pull_request_label": "pull_request",
}
"""Fine-grained name of an event -> its coarse name, where they differ."""

Shown = dict[str, Any]
"""JSON of the API."""


def stamp(at_s: float | None) -> str | None:
    """Return a time as the API writes it."""
    return None if at_s is None else datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True, slots=True)
class FakeGiteaShows:
    """Render JSON."""

    world: model.FakeGiteaWorld
    web: str
    """Address of the instance, with its path."""

    @property
    def api(self) -> str:
        return f"{self.web}/api/v1"

    def user(self, one: FakeGitHubAccount) -> Shown:
        """Return an account."""
        return {
            "id": one.id, "login": one.login, "login_name": "", "full_name": one.name or "",
            "email": one.email or f"{one.login}@noreply.localhost", "avatar_url": f"{self.web}/avatars/{one.id}",
            "language": "", "is_admin": False, "last_login": "0001-01-01T00:00:00Z", "created": stamp(0.0),
            "restricted": False, "active": False, "prohibit_login": False, "location": "", "website": "",
            "description": "", "visibility": "public", "followers_count": 0, "following_count": 0,
            "starred_repos_count": 0,
        }  # fmt: skip

    def repository(self, one: model.FakeGiteaRepository) -> Shown:
        """Return a repository, with the fields that clients use."""
        return {
            "id": one.id, "owner": self.user(one.owner), "name": one.name, "full_name": one.full_name,
            "description": "", "empty": False, "private": one.private, "fork": False, "template": False,
            "html_url": f"{self.web}/{one.full_name}", "clone_url": f"{self.web}/{one.full_name}.git",
            "default_branch": one.default_branch, "archived": one.archived,
            "allow_merge_commits": "merge" in one.styles, "allow_rebase": "rebase" in one.styles,
            "allow_rebase_explicit": "rebase-merge" in one.styles, "allow_squash_merge": "squash" in one.styles,
            "allow_fast_forward_only_merge": "fast-forward-only" in one.styles,
        }  # fmt: skip

    def label(self, one: FakeGitHubLabel) -> Shown:
        """Return a label."""
        return {
            "id": one.id, "name": one.name, "exclusive": False, "is_archived": False, "color": one.color,
            "description": "", "url": f"{self.api}/labels/{one.id}",
        }  # fmt: skip

    def _side(self, repository: model.FakeGiteaRepository | None, number: int, ref: str, sha: str) -> Shown:
        gone = repository is None or ref not in hosts.heads(repository)
        # A head whose branch is deleted keeps only its own ref.
        shown = f"refs/pull/{number}/head" if gone else ref
        return {
            "label": ref, "ref": shown, "sha": sha, "repo_id": repository.id if repository else 0,
            "repo": self.repository(repository) if repository else None,
        }  # fmt: skip

    def pull(self, one: model.FakeGiteaPull, *, asks: bool = True) -> Shown:
        """Return a pull request. `asks`: the request makes Gitea compute whether it can be merged."""
        at, base = f"{self.web}/{one.repository.full_name}/pulls/{one.number}", self._base(one)
        merge_base = hosts.opened(one.repository).merge_base(base, one.head_sha)
        # False means a conflict as well as `not computed yet`: Gitea's answer has no third value.
        can = one.state == "open" and not one.draft and model.mergeable(self.world, one, asks=asks) is True
        return {
            "id": one.id, "url": at, "number": one.number, "user": self.user(one.user), "title": one.title,
            "body": one.body, "labels": [self.label(label) for label in one.labels], "milestone": None,
            "assignee": None, "assignees": None, "requested_reviewers": None, "state": one.state, "draft": one.draft,
            "is_locked": False, "comments": len(one.comments), "html_url": at, "diff_url": f"{at}.diff",
            "patch_url": f"{at}.patch", "mergeable": can, "merged": one.merged,
            "merged_at": stamp(one.closed_s) if one.merged else None,
            **({"merge_commit_sha": one.merge_commit_sha} if one.merged else {}),
            "merged_by": self.user(one.merged_by) if one.merged_by else None, "allow_maintainer_edit": False,
            "base": {**self._side(one.repository, one.number, one.base_ref, base), "ref": one.base_ref},
            "head": self._side(one.head_repository, one.number, one.head_ref, one.head_sha),
            "merge_base": str(merge_base or ""), "due_date": None, "created_at": stamp(one.created_s),
            "updated_at": stamp(one.updated_s), "closed_at": stamp(one.closed_s), "pin_order": 0,
        }  # fmt: skip

    def _base(self, one: model.FakeGiteaPull) -> str:
        return one.base_at_merge or hosts.heads(one.repository).get(one.base_ref) or one.head_sha

    def review(self, pull: model.FakeGiteaPull, one: model.FakeGiteaReview) -> Shown:
        """Return a review."""
        at = f"{self.web}/{pull.repository.full_name}/pulls/{pull.number}"
        return {
            "id": one.id, "user": self.user(one.user), "team": None, "state": one.state, "body": one.body,
            "commit_id": one.commit_id, "stale": model.stale(pull, one), "official": one.official,
            "dismissed": one.dismissed, "comments_count": len(one.notes), "submitted_at": stamp(one.at_s),
            "updated_at": stamp(one.at_s), "html_url": f"{at}#issuecomment-{one.id}", "pull_request_url": at,
        }  # fmt: skip

    def comment(self, pull: model.FakeGiteaPull, one: FakeGitHubComment) -> Shown:
        """Return a comment."""
        at = f"{self.web}/{pull.repository.full_name}/pulls/{pull.number}"
        return {
            "id": one.id, "html_url": f"{at}#issuecomment-{one.id}", "pull_request_url": at, "issue_url": "",
            "user": self.user(one.user), "original_author": "", "original_author_id": 0, "body": one.body,
            "assets": [], "created_at": stamp(one.created_s), "updated_at": stamp(one.updated_s),
        }  # fmt: skip

    def status(self, repository: model.FakeGiteaRepository, sha: str, one: FakeGitHubStatus) -> Shown:
        """Return a status."""
        return {
            "id": one.id, "status": one.state, "target_url": one.target_url or "", "context": one.context,
            "description": one.description or "", "url": f"{self.api}/repos/{repository.full_name}/statuses/{sha}",
            "creator": self.user(one.creator), "created_at": stamp(one.at_s), "updated_at": stamp(one.at_s),
        }  # fmt: skip

    def branch(self, repository: model.FakeGiteaRepository, name: str, asker: FakeGitHubAccount) -> Shown:
        """Return a branch, with what everybody may see of its protection."""
        commit, rule = hosts.heads(repository)[name], model.protection_of(repository, name)
        contexts = rule.contexts if rule is not None else None
        return {
            "name": name, "commit": {"id": commit, "message": "", "url": f"{self.web}/{repository.full_name}"},
            "protected": rule is not None, "required_approvals": rule.approvals if rule else 0,
            "enable_status_check": contexts is not None, "status_check_contexts": list(contexts or ()),
            "user_can_push": rule is None, "user_can_merge": model.may_merge(repository, name, asker),
            "effective_branch_protection_name": rule.name if rule else "",
        }  # fmt: skip

    def protection(self, one: model.FakeGiteaProtection) -> Shown:
        """Return a protection, as administrators of the repository see it."""
        return {
            "branch_name": one.name, "rule_name": one.name, "enable_push": False,
            "enable_merge_whitelist": one.mergers is not None, "merge_whitelist_usernames": sorted(one.mergers or ()),
            "enable_approvals_whitelist": one.approvers is not None,
            "approvals_whitelist_username": sorted(one.approvers or ()), "required_approvals": one.approvals,
            "enable_status_check": one.contexts is not None, "status_check_contexts": list(one.contexts or ()),
            "block_on_rejected_reviews": one.block_on_rejected_reviews,
            "block_on_official_review_requests": one.block_on_official_review_requests,
            "block_on_outdated_branch": one.block_on_outdated_branch, "dismiss_stale_approvals": False,
            "ignore_stale_approvals": one.ignore_stale_approvals, "require_signed_commits": False,
            "protected_file_patterns": one.protected_files, "unprotected_file_patterns": "",
        }  # fmt: skip


@dataclass(slots=True)
class FakeGiteaHookDelivery(Delivery):
    """Represent one delivery of Gitea."""

    forgejo: bool = False

    def headers(self) -> dict[str, str]:
        """Return the headers of one delivery as Gitea sends them; see `Delivery`."""
        coarse = COARSE.get(self.event, self.event)
        found = {"Content-Type": "application/json", "User-Agent": "Go-http-client/1.1"}
        # Gitea repeats its headers under the names of Gogs and GitHub, for receivers that were written for those.
        for name in ("Gitea", "Gogs", *(("Forgejo",) if self.forgejo else ())):
            found |= {f"X-{name}-Delivery": self.guid, f"X-{name}-Event": coarse, f"X-{name}-Event-Type": self.event}
            if self.secret:
                found[f"X-{name}-Signature"] = self._mac(hashlib.sha256)
        if self.secret:
            found["X-Hub-Signature"] = f"sha1={self._mac(hashlib.sha1)}"
            found["X-Hub-Signature-256"] = f"sha256={self._mac(hashlib.sha256)}"
        return {**found, "X-GitHub-Delivery": self.guid, "X-GitHub-Event": coarse, "X-GitHub-Event-Type": self.event}

    def _mac(self, digest: Any) -> str:
        return hmac.new(self.secret.encode(), self.body, digest).hexdigest()


@dataclass(frozen=True, slots=True)
class FakeGiteaPost:
    """Send events to the hooks."""

    world: model.FakeGiteaWorld
    shows: FakeGiteaShows
    mail: Mail

    def tell(self, at: model.FakeGiteaRepository, sender: FakeGitHubAccount, event: str, /, **fields: Any) -> None:
        """Deliver an event of a repository to every hook."""
        payload = {**fields, "repository": self.shows.repository(at), "sender": self.shows.user(sender)}
        for hook in self.world.hooks:
            self.mail.post(self.delivery(hook, event, payload, at))

    def delivery(
        self, hook: model.FakeGiteaHook, event: str, payload: dict[str, Any], at: model.FakeGiteaRepository
    ) -> FakeGiteaHookDelivery:
        """Return a delivery."""
        body, now_s = msgspec.json.encode(payload), self.world.clock.now_s()
        return FakeGiteaHookDelivery(
            next(self.world.ids), str(uuid.uuid4()), event, payload.get("action"), body, hook.url, hook.secret, 0, None,
            at.id, now_s, forgejo=hook.forgejo,
        )  # fmt: skip

    def of_pull(
        self, pull: model.FakeGiteaPull, sender: FakeGitHubAccount, event: str, action: str, /, **more: Any
    ) -> None:
        """Deliver an event of a pull request."""
        pull.updated_s = self.world.clock.now_s()
        shown = self.shows.pull(pull, asks=False)
        self.tell(pull.repository, sender, event, action=action, number=pull.number, pull_request=shown, **more)
