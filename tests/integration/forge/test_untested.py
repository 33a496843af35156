"""Test that unusable dependencies, and reasons that keep a change out, are shown to its author, on each forge."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from headgate.adapters.forges.gitea import forge as gitea_connecting
from headgate.adapters.forges.github import forge as github_connecting
from headgate.adapters.forges.gitlab import forge as gitlab_connecting
from headgate.adapters.forges.pagure import forge as pagure_connecting
from headgate.adapters.forges.registry import DriverOptions
from headgate.adapters.git import engine
from headgate.adapters.git.engine import GitEngine
from headgate.services import courier
from headgate.store.memory import MemoryBackend
from headgate.testing.forges.gitea.people import gitea
from headgate.testing.forges.github.people import github
from headgate.testing.forges.gitlab.people import gitlab
from headgate.testing.forges.pagure.people import pagure
from headgate.testing.gate import gate
from headgate.testing.repositories import Repositories
from tests.integration.gitea import ground as at_gitea
from tests.integration.github import ground as at_github
from tests.integration.gitlab import ground as at_gitlab
from tests.integration.pagure import ground as at_pagure
from tests.waiting import until

CONFIG = """
- pipeline:
    name: check
    manager: independent
    trigger: {{hub: [{{event: {event}, action: comment, comment: ^test it$}}]}}
    success: {{hub: {{status: success, comment: false}}}}
    failure: {{hub: {{status: {failure}}}}}
- pipeline:
    name: gate
    manager: dependent
    trigger: {{hub: [{{event: {event}, action: comment, comment: ^gate it$}}]}}
    success: {{hub: {{status: success, merge: true, comment: false}}}}
    failure: {{hub: {{status: {failure}}}}}
- pipeline:
    name: ship
    manager: dependent
    trigger: {{hub: [{{event: {event}, action: comment, comment: ^ship it$}}]}}
    require: {{hub: {{{label}: ready}}}}
    success: {{hub: {{status: success, merge: true, comment: false}}}}
    failure: {{hub: {{status: {failure}}}}}
- job: {{name: unit, parent: null, run: jobs/unit}}
- project: {{name: ^127.0.0.1/.*, queue: integrated, check: &jobs {{jobs: [unit]}}, gate: *jobs, ship: *jobs}}
- queue: {{name: integrated}}
"""
TENANTS = """
- tenant:
    name: example
    source:
      local: {{config-projects: [ops]}}
      hub: {{untrusted-projects: [{project}]}}
"""


class Kind(NamedTuple):
    """Describe one kind of forge."""

    serve: Any
    ground: Any
    connecting: Any
    section: Callable[[Any], dict[str, str]]
    event: str
    failure: str
    change: str
    """Form of addresses of changes."""
    label: str = "label"
    """Form of a requirement in pipelines."""
    edits: bool = True


KINDS = {
    "github": Kind(
        github, at_github, github_connecting,
        lambda here: {
            "server": here.hub.url, "api_token": here.hub.token("gatebot"), "webhook_token": at_github.SECRET
        },
        "pull_request", "failure", "pull",
    ),
    "gitlab": Kind(
        gitlab, at_gitlab, gitlab_connecting,
        lambda here: {"server": here.hub.url, "api_token": here.token, "webhook_token": at_gitlab.SECRET},
        "gl_merge_request", "failed", "-/merge_requests", "labels",
    ),
    "gitea": Kind(
        gitea, at_gitea, gitea_connecting,
        lambda here: {
            "baseurl": f"{here.hub.url}/", "api_token": here.hub.token("headgate"), "webhook_token": at_gitea.SECRET
        },
        "pull_request", "failure", "pulls",
    ),
    "pagure": Kind(
        pagure, at_pagure, pagure_connecting,
        lambda here: {"baseurl": f"{here.hub.url}/", "api_token": here.hub.token("headgate")},
        "pg_pull_request", "failure", "pull-request", "tags", False,
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(courier, "PAUSE_FIRST_S", 0.02)
    monkeypatch.setattr(engine, "REST_MAX_S", 0.0)


@dataclass
class Place:
    """Run a gate with one forge."""

    here: Any
    kind: Kind

    @property
    def project(self) -> Any:
        return getattr(self.here, "repository", None) or self.here.project

    def url(self, number: int, project: str = "") -> str:
        return (
            f"{self.here.hub.url}/{project or getattr(self.here, 'usual', 'acme/rocket')}/{self.kind.change}/{number}"
        )

    def proposed(self, name: str, needs: str) -> Any:
        return self.here.ada.propose(self.project, name, {f"{name}.txt": "1\n"}, name, f"Depends-On: {needs}")

    def comments_of(self, change: Any) -> list[str]:
        """Return Headgate's comments."""
        notes = change.notes if hasattr(change, "notes") else change.comments
        texts = [str(getattr(one, "text", None) or getattr(one, "body", "")) for one in notes]
        return [text for text in texts if "<!-- headgate" in text]

    def label(self, change: Any, name: str) -> None:
        """Add a label or tag."""
        (self.here.bob.tag if hasattr(self.here.bob, "tag") else self.here.bob.label)(change, name)

    @property
    def comments(self) -> int:
        """Return how often Headgate wrote or edited a comment."""
        calls = [call for call in self.here.hub.server.log if call.method in ("POST", "PATCH", "PUT")]
        return sum("comment" in call.template or "notes" in call.template for call in calls)

    async def merged(self, change: Any) -> None:
        """Wait until it is merged."""
        names = ("merged", "state", "status")
        await until(
            "it is merged", lambda: {str(getattr(change, name, "")).lower() for name in names} & {"true", "merged"}
        )

    async def wait_for_comment(self, change: Any, *words: str) -> None:
        """Wait until one comment contains all of these words."""
        comments: list[str] = []

        def found() -> bool:
            comments[:] = self.comments_of(change)
            return any(all(word in text for word in words) for text in comments)

        try:
            await until(f"one comment has {words}", found)
        except AssertionError as error:
            raise AssertionError(f"{error}; there are {comments}") from None


@pytest.fixture(params=list(KINDS))
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    async with placed(KINDS[request.param], tmp_path) as found:
        yield found


@asynccontextmanager
async def placed(kind: Kind, root: Path, config: str = CONFIG) -> AsyncIterator[Place]:
    """Provide a gate whose jobs pass."""
    repositories = Repositories(root / "plain")
    config = config.format(event=kind.event, failure=kind.failure, label=kind.label)
    repositories.create("ops", {"zuul.yaml": config, "jobs/unit": "#!/bin/sh\n"})
    async with kind.serve(root / "there") as hub, kind.ground.ground(hub, root) as here:
        if kind.serve is github:
            hub.person("gatebot", acme__rocket="admin")
        engines: list[GitEngine] = []
        given = DriverOptions("hub", kind.section(here), root, lambda: engines[0], lambda: int(time.time() * 1000))
        connected = kind.connecting.connect(given)
        engines.append(GitEngine(root / "engine", {"hub": connected.git}))
        await here.forge.close()
        here.forge = connected.forge  # which deliveries go to
        tenants = TENANTS.format(project=getattr(here, "usual", "acme/rocket"))
        name = kind.connecting.__name__.split(".")[-2]
        forges = {"hub": (name, connected)}
        async with gate(root, repositories.hub, MemoryBackend(), tenants, forges=forges):
            yield Place(here, kind)


@pytest.mark.long
@pytest.mark.sampled(2)
async def test_an_unmet_need_of_a_change_is_reported_on_it(place: Place) -> None:
    """Even if a result alone causes no comment."""
    unknown, nowhere = "https://elsewhere.example/x/pull/1", place.url(1, "acme/nowhere")
    first = place.proposed("one", unknown)
    second = place.proposed("two", nowhere)
    for change, needed in ((first, unknown), (second, "acme/nowhere")):
        place.here.bob.comment(change, "test it")
        await place.wait_for_comment(change, "check: passed", needed, "it is ignored")
        assert len(place.comments_of(change)) == 1
    third = place.proposed("three", place.url(1))
    place.here.ada.close(first)
    await place.here.hub.mail.delivered()
    place.here.bob.comment(third, "gate it")
    await place.wait_for_comment(third, "was not enqueued in gate", "abandoned")
    await _is_refused(place)


async def _is_refused(place: Place) -> None:
    """The person who tries to enqueue a change learns of an unmet requirement once, until it is met."""
    change = place.proposed("four", "https://elsewhere.example/x/pull/1")
    before = place.comments
    place.here.bob.comment(change, "ship it")
    await place.wait_for_comment(change, "ship: was not enqueued", "was not enqueued in ship", "ready")
    place.here.bob.comment(change, "ship it")
    place.here.bob.comment(change, "test it")
    await place.wait_for_comment(change, "check: passed")
    assert place.comments == before + 2, "each pipeline once, whoever asks again"
    place.label(change, "ready")
    place.here.bob.comment(change, "ship it")
    await place.merged(change)
    if place.kind.edits:
        await place.wait_for_comment(change, "ship: is no longer refused", "is in ship now")
    else:
        await place.wait_for_comment(change, "ship: was not enqueued")
    assert len(place.comments_of(change)) == 2 and place.comments == before + 2 + place.kind.edits
