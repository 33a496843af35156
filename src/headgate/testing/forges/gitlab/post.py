"""Webhooks of the stand-in: with the token, and signed where the hook has a signing token."""

from __future__ import annotations

import base64
import hashlib
import hmac
import uuid
from dataclasses import dataclass
from typing import Any

import msgspec

from headgate.testing.forges.github.mail import Delivery, Mail
from headgate.testing.forges.gitlab.state import (
    FakeGitLabHook,
    FakeGitLabMergeRequest,
    FakeGitLabProject,
    FakeGitLabUser,
    FakeGitLabWorld,
    Note,
)
from headgate.testing.forges.gitlab.views import FakeGitLabShows, Shown

KINDS = {
    "merge_request": "Merge Request Hook",
    "note": "Note Hook",
    "push": "Push Hook",
    "tag_push": "Tag Push Hook",
    "pipeline": "Pipeline Hook",
}
"""Kind of object -> its name in the header."""


@dataclass(slots=True)
class FakeGitLabHookDelivery(Delivery):
    """Represent what GitLab sends."""

    signing: str = ""

    def headers(self) -> dict[str, str]:
        """Return the headers it is sent with."""
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

    world: FakeGitLabWorld
    shows: FakeGitLabShows
    mail: Mail

    def tell(self, project: FakeGitLabProject, kind: str, payload: Shown) -> None:
        """Deliver it to every hook of the project."""
        for hook in project.hooks:
            self.mail.post(self._made(hook, kind, payload))

    def _made(self, hook: FakeGitLabHook, kind: str, payload: Shown) -> FakeGitLabHookDelivery:
        body, now_s = msgspec.json.encode({"object_kind": kind, **payload}), self.world.clock.now_s()
        id, guid = next(self.world.ids), str(uuid.uuid4())
        return FakeGitLabHookDelivery(
            id, guid, kind, None, body, hook.url, hook.token, hook.id, None, None, now_s, signing=hook.signing
        )

    def of_request(self, one: FakeGitLabMergeRequest, who: FakeGitLabUser, action: str, **more: Any) -> None:
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

    def of_note(self, one: FakeGitLabMergeRequest, note: Note) -> None:
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

    def of_push(self, project: FakeGitLabProject, who: FakeGitLabUser, ref: str, old: str, new: str) -> None:
        """Deliver a push."""
        payload = {
            "ref": ref,
            "before": old,
            "after": new,
            "checkout_sha": new if new.strip("0") else None,
            "user_id": who.id,
            "user_username": who.username,
            "project": self.shows.hook_project(project),
        }
        self.tell(project, "tag_push" if ref.startswith("refs/tags/") else "push", payload)

    def of_pipeline(self, project: FakeGitLabProject, who: FakeGitLabUser, ref: str, sha: str, state: str) -> None:
        """Deliver that a pipeline has another state; one of statuses is `external`, and of who posted the first."""
        payload = {
            "object_attributes": {"ref": ref, "sha": sha, "status": state, "source": "external", "tag": False},
            "user": self.shows.hook_user(who),
            "project": self.shows.hook_project(project),
            "merge_request": None,
        }
        self.tell(project, "pipeline", payload)
