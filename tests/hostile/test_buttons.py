"""Test the button of a check run: people with write access remove exactly the item of the run, and nobody removes
another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from headgate.adapters.forges.registry import Connected
from headgate.adapters.git.connection import GitConnection
from headgate.map.state import load
from headgate.ports.forge import Hint
from headgate.services import courier
from headgate.services.forgework import store_hint
from headgate.store.memory import MemoryBackend
from headgate.testing.forges.github.model import CheckRun
from headgate.testing.forges.github.people import FakeGitHubPerson, GitHub
from headgate.testing.gate import Gate, gate
from headgate.testing.repositories import Repositories
from tests.integration.github.conftest import hub
from tests.integration.github.ground import Ground, ground, opened
from tests.waiting import until

__all__ = ["hub"]

CONFIG = """
- pipeline:
    name: check
    manager: independent
    trigger: {hub: [{event: pull_request, action: [opened, labeled]}]}
    start: {hub: {check: in_progress, comment: false}}
    success: {hub: {check: success, comment: false}}
    failure: {hub: {check: failure, comment: false}}
- job: {name: unit, parent: null, run: jobs/unit}
- project: {name: ^.*$, check: {jobs: [unit]}}
"""
TENANTS = """
- tenant:
    name: example
    source:
      local: {config-projects: [ops]}
      hub: {untrusted-projects: [acme/rocket]}
"""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(courier, "PAUSE_FIRST_S", 0.02)


@pytest.fixture
async def here(hub: GitHub, tmp_path: Path) -> AsyncIterator[Ground]:
    async with ground(hub, tmp_path) as found:
        yield found


@asynccontextmanager
async def gated(here: Ground, root: Path) -> AsyncIterator[Gate]:
    """Run a gate whose builds do not end, and which receives deliveries as the web passes them on."""
    Repositories(root).create("ops", {"zuul.yaml": CONFIG, "jobs/unit": "#!/bin/sh\n"})
    account, tokens = here.account, here.forge._tokens

    async def access(project: str) -> dict[str, str]:
        return dict(await tokens.git(account.short(project)))

    connected = Connected(GitConnection("hub", account.git, account.canonical_hostname, access=access), here.forge)
    async with gate(
        root / "gate", Repositories(root).hub, MemoryBackend(), TENANTS, forges={"hub": ("github", connected)}
    ) as made:
        made.runner.hold = asyncio.Event()

        async def keep(hint: Hint) -> None:
            assert await store_hint(made.context, "hub", hint)

        here.keep = keep  # type: ignore[method-assign]
        yield made


def queued(made: Gate) -> list[str]:
    """Return the events of the items in the pipeline."""
    place, mirror = made.context.map.tenant("example").pipeline("check"), made.context.mirror
    return [item.event for _, item in load(place, mirror.under(place.path)).state.items()]


@pytest.mark.long
async def test_only_people_with_write_access_remove_an_item_by_the_button_of_its_run(
    here: Ground, tmp_path: Path
) -> None:
    async with gated(here, tmp_path) as made:
        hints = made.context.map.events.connection("hub").events.hints.stream

        async def clicked(who: FakeGitHubPerson, run: CheckRun) -> None:
            here.hub.server.log.clear()
            who.click(here.repository, run, "abort")
            await here.hub.mail.delivered()
            await until("the click is answered", lambda: not hints.length(made.context.mirror))

        pull = opened(here)
        await here.hub.mail.delivered()
        await until("it is begun", lambda: here.repository.check_runs)
        (run,) = here.repository.check_runs.values()
        assert run.actions == [{"label": "Abort", "description": "Remove it from check", "identifier": "abort"}]
        (event,) = queued(made)

        await until("it is seen", lambda: not hints.length(made.context.mirror))

        await clicked(here.eve, run)
        assert [one.template.rpartition("/")[2] for one in here.hub.server.log] == ["permission"], (
            "a stranger, one call"
        )
        await clicked(here.eve, run)
        assert here.hub.server.log == [] and queued(made) == [event]

        await clicked(here.bob, run)
        click = here.hub.mail.log[-1]
        await until("it is taken out", lambda: run.conclusion)
        assert (run.conclusion, run.actions) == ("cancelled", []) and queued(made) == []
        assert "Dequeued at the forge by bob." in (run.summary or "")

        here.ada.label(pull, "once more")
        await until("it is begun anew", lambda: len(here.repository.check_runs) == 2)
        (fresh,) = queued(made)
        assert fresh != event
        here.hub.mail.again(click)
        await here.hub.mail.delivered()
        await until("the old click is answered", lambda: not hints.length(made.context.mirror))
        await clicked(here.bob, run)
        assert queued(made) == [fresh], "what was clicked on is over"
        made.runner.hold.set() if made.runner.hold else None
        await until("it ends by itself", lambda: [one.conclusion for one in here.repository.check_runs.values()][-1])
        assert [one.conclusion for one in here.repository.check_runs.values()] == ["cancelled", "success"]


async def test_buttons_of_other_apps_and_malformed_runs_cause_no_call(here: Ground) -> None:
    text = '{"tenant":"acme","pipeline":"gate","change":"1","event":"e"}'
    opened(here)
    await here.hub.mail.delivered()
    other = here.hub.app("other")
    for app, external_id, identifier in (
        (other, text, "abort"),
        (here.app, text, "deploy"),
        (here.app, "", "abort"),
        (here.app, "[1]", "abort"),
        (here.app, text.replace('"1"', '"1/../2"'), "abort"),
        (here.app, text.replace('"e"', '""'), "abort"),
        (here.app, text.replace('"acme"', "7"), "abort"),
    ):
        run = CheckRun(next(here.hub.world.ids), "acme/gate", here.repository.pulls[1].head_sha, app)
        run.external_id, run.details_url, run.started_s = external_id, "https://gate.example.org", 1.0
        here.repository.check_runs[run.id] = run
        here.hinted.clear()
        here.hub.server.log.clear()
        here.bob.click(here.repository, run, identifier)
        await here.hub.mail.delivered()
        assert here.hinted == [] and here.hub.server.log == []
