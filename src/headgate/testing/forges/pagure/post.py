"""Webhooks of the stand-in: each project signs with its own token."""

from __future__ import annotations

import hashlib
import hmac
import itertools
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from headgate.testing.forges.github.mail import Delivery, Mail
from headgate.testing.forges.github.state import FakeGitHubAccount
from headgate.testing.forges.pagure.state import FakePagureProject, FakePagureRequest, FakePagureWorld
from headgate.testing.forges.pagure.views import FakePagureShows


@dataclass(slots=True)
class FakePagureHookDelivery(Delivery):
    """Represent what Pagure sends."""

    project: str = ""
    instance: str = ""
    sha256: bool = True

    def headers(self) -> dict[str, str]:
        """See `Delivery`."""
        found = {
            "Content-Type": "application/json",
            "X-Pagure": self.instance,
            "X-Pagure-project": self.project,
            "X-Pagure-Signature": self._mac("sha1"),
            "X-Pagure-Topic": self.event,
        }
        return found | ({"X-Pagure-Signature-256": self._mac("sha256")} if self.sha256 else {})

    def _mac(self, digest: str) -> str:
        return hmac.new(self.secret.encode(), self.body, getattr(hashlib, digest)).hexdigest()


@dataclass(frozen=True, slots=True)
class FakePagurePost:
    """Send events to the addresses that a project names."""

    world: FakePagureWorld
    shows: FakePagureShows
    mail: Mail
    counted: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def tell(self, project: FakePagureProject, agent: FakeGitHubAccount, topic: str, /, **fields: Any) -> None:
        """Deliver what happened in a project."""
        now_s = self.world.clock.now_s()
        fields |= {"agent": agent.login, "pagure_instance": self.shows.web, "project_fullname": project.fullname}
        id = f"2026-{uuid.uuid4()}"
        message = {"topic": topic, "msg": fields, "timestamp": int(now_s), "msg_id": id, "i": next(self.counted)}
        body = msgspec.json.encode(message, order="sorted")
        named: dict[str, Any] = {"project": project.fullname, "instance": self.shows.web, "sha256": self.world.sha256}
        for url in (project.options["Web-hooks"] or "").split():
            number, token = next(self.world.ids), project.hook_token
            one = FakePagureHookDelivery(number, id, topic, None, body, url, token, 0, None, project.id, now_s, **named)
            self.mail.post(one)

    def of_request(self, request: FakePagureRequest, agent: FakeGitHubAccount, topic: str, /, **more: Any) -> None:
        """Deliver what happened to a pull request."""
        request.updated_s = self.world.clock.now_s()
        self.tell(request.project, agent, f"pull-request.{topic}", pullrequest=self.shows.request(request), **more)
