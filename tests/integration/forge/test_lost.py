"""Test lost deliveries: polling finds every event, on each forge with pull requests.

GitHub is used with a token: without an app there is no log of deliveries, either. All events happen within one second
of the forge, after polls in that second.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headgate.testing.forges.gitea.people import gitea
from headgate.testing.forges.github.model import Clock
from headgate.testing.forges.github.people import github
from headgate.testing.forges.gitlab.people import gitlab
from headgate.testing.forges.pagure.people import pagure
from tests.integration.gitea import ground as at_gitea
from tests.integration.github import ground as at_github
from tests.integration.github.ground import Gate
from tests.integration.gitlab import ground as at_gitlab
from tests.integration.pagure import ground as at_pagure

OFTEN_S = 0.2


@dataclass
class Place:
    """Describe a forge without deliveries, and its names of trigger events."""

    here: Any
    ground: Any
    prefix: str
    words: dict[str, str]
    """Action of a person -> reported event."""

    @property
    def repository(self) -> Any:
        return getattr(self.here, "repository", None) or self.here.project

    def act(self, what: str, pull: Any) -> None:
        """Perform the action without a delivery."""
        ada, bob = self.here.ada, self.here.bob
        self.here.hub.mail.lose(100)
        acts: dict[str, Callable[[], Any]] = {
            "push": lambda: ada.push(self.repository, "topic", {"a.txt": "3\n"}),
            "review": lambda: getattr(bob, self.words["by"])(pull),
            "label": lambda: getattr(bob, "tag" if hasattr(bob, "tag") else "label")(pull, "ready"),
            "comment": lambda: bob.comment(pull, "recheck"),
            "close": lambda: ada.close(pull),
            "reopen": lambda: ada.reopen(pull),
        }
        acts[what]()

    def reported(self, what: str, gate: Gate) -> int:
        """Return how often the event was reported."""
        return gate.reported.count(self.words[what])


def words(pull: str, review: str, by: str, **more: str) -> dict[str, str]:
    usual = {"opened": "opened", "comment": "comment", "push": "changed", "label": "labeled"}
    usual |= {"close": "closed", "reopen": "reopened"}
    return {what: f"{pull}.{word}" for what, word in usual.items()} | {"review": review, "by": by, **more}


PR = "pull_request"
WORDS = {
    "github": words(PR, f"{PR}_review.submitted", "review"),
    "gitlab": words("gl_merge_request", "gl_merge_request.approved", "approve"),
    "gitea": words(PR, f"{PR}_review.submitted", "review"),
    "pagure": words(f"pg_{PR}", f"pg_{PR}_review.thumbsup", "thumb", label=f"pg_{PR}.tagged", reopen=f"pg_{PR}.opened"),
}


@pytest.fixture(params=list(WORDS))
async def place(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Place]:
    name, ticks = str(request.param), itertools.count()
    begun_s = int(time.time()) + 0.1
    monkeypatch.setattr(Clock, "now_s", lambda clock: begun_s + min(next(ticks), 800) / 1000)
    server: Any = {"github": github, "gitlab": gitlab, "gitea": gitea, "pagure": pagure}[name]
    module: Any = {"github": at_github, "gitlab": at_gitlab, "gitea": at_gitea, "pagure": at_pagure}[name]
    async with AsyncExitStack() as stack:
        hub = await stack.enter_async_context(server(tmp_path / "there"))
        here = await stack.enter_async_context(module.ground(hub, tmp_path))
        alone = {"app_id": "", "app_key": "", "api_token": hub.token("bob")} if name == "github" else {}
        await here.forge.close()
        _, here.forge = here.driver("often", OFTEN_S, **alone)
        here.gate.forge = here.forge
        yield Place(here, module, name, WORDS[name])


@pytest.mark.long
@pytest.mark.sampled(2)
async def test_events_whose_deliveries_are_lost_are_found_before_the_start_in_a_gap_and_later(place: Place) -> None:
    here = place.here
    if place.prefix == "github":
        here.bob, here.boss = here.hub.person("carl", acme__rocket="admin"), here.bob
    here.hub.mail.lose(1_000)
    pull = place.ground.opened(here)
    place.act("comment", pull)
    place.act("review", pull)
    place.act("label", pull)
    async with place.ground.watched(here) as gate:  # which checks that nothing is reported twice
        for what in ("opened", "comment", "review", "label"):
            await gate.until(lambda what=what: place.reported(what, gate))
    for what in ("comment", "push"):
        place.act(what, pull)
    async with place.ground.watched(here):
        await gate.until(lambda: place.reported("comment", gate) == 2 and place.reported("push", gate))
        for what in ("comment", "push", "review", "comment", "close", "reopen", "close", "reopen"):
            before = place.reported(what, gate)
            place.act(what, pull)
            await gate.until(lambda what=what, before=before: place.reported(what, gate) > before)
    assert not here.hinted, "nothing was delivered"
