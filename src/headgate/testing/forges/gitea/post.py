"""Webhooks of the stand-in: signed, with the fine and the coarse name of what happened."""

from __future__ import annotations

import hashlib
import hmac
import uuid
from dataclasses import dataclass
from typing import Any

import msgspec

from headgate.testing.forges.gitea.state import FakeGiteaHook, FakeGiteaPull, FakeGiteaRepository, FakeGiteaWorld
from headgate.testing.forges.gitea.views import FakeGiteaShows
from headgate.testing.forges.github.mail import Delivery, Mail
from headgate.testing.forges.github.state import FakeGitHubAccount

COARSE = {
    "pull_request_comment": "issue_comment",
    "pull_request_review_approved": "pull_request_approved",
    "pull_request_review_rejected": "pull_request_rejected",
    "pull_request_review_comment": "pull_request_comment",
    "pull_request_sync": "pull_request",
    "pull_request_label": "pull_request",
}
"""Fine-grained name of an event -> its coarse name, where they differ."""


@dataclass(slots=True)
class FakeGiteaHookDelivery(Delivery):
    """Represent what Gitea sends."""

    forgejo: bool = False

    def headers(self) -> dict[str, str]:
        """See `Delivery`."""
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

    world: FakeGiteaWorld
    shows: FakeGiteaShows
    mail: Mail

    def tell(self, at: FakeGiteaRepository, sender: FakeGitHubAccount, event: str, /, **fields: Any) -> None:
        """Deliver an event of a repository to every hook."""
        payload = {**fields, "repository": self.shows.repository(at), "sender": self.shows.user(sender)}
        for hook in self.world.hooks:
            self.mail.post(self.delivery(hook, event, payload, at))

    def delivery(
        self, hook: FakeGiteaHook, event: str, payload: dict[str, Any], at: FakeGiteaRepository
    ) -> FakeGiteaHookDelivery:
        """Return a delivery."""
        body, now_s = msgspec.json.encode(payload), self.world.clock.now_s()
        return FakeGiteaHookDelivery(
            next(self.world.ids), str(uuid.uuid4()), event, payload.get("action"), body, hook.url, hook.secret, 0, None,
            at.id, now_s, forgejo=hook.forgejo,
        )  # fmt: skip

    def of_pull(self, pull: FakeGiteaPull, sender: FakeGitHubAccount, event: str, action: str, /, **more: Any) -> None:
        """Deliver an event of a pull request."""
        pull.updated_s = self.world.clock.now_s()
        shown = self.shows.pull(pull, asks=False)
        self.tell(pull.repository, sender, event, action=action, number=pull.number, pull_request=shown, **more)
