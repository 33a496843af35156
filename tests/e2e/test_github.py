"""Test `headgate run` on GitHub, with the pipelines of the how-to page: a change is proposed, checked, approved, and
gated with two others; one of them fails, the others land."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from headgate.testing.forges.github import hosts
from headgate.testing.forges.github.model import FakeGitHubRepository
from headgate.testing.forges.github.people import GitHub, github
from headgate.testing.repositories import Repositories
from tests.e2e.headgate import Headgate
from tests.integration.github.description import judge, judge_hook
from tests.waiting import until

SECRET = "open sesame"
SETTINGS = """
[scheduler]
tenant_config = tenants.yaml
state_dir = state
[connection hub]
driver = github
server = {url}
app_id = {app}
app_key = app.pem
webhook_token = {secret}
[web]
port = 0
[executor]
builds = 8
"""
TENANTS = """
- tenant:
    name: example
    source:
      hub:
        config-projects:
          - acme/config: {load-branch: main}
        untrusted-projects:
          - acme/rocket
"""
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "use-github.md"
CONFIG = """
- job:
    name: base
    parent: null
    run: jobs/base

- project:
    name: ^.*$
    check: {jobs: [works]}
    gate: {jobs: [works]}
"""
JOBS = """
- job:
    name: works
    run: jobs/works
"""
WORKS = """#!/bin/sh
! grep -r broken . --include='*.txt'
"""


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[GitHub]:
    async with github(tmp_path / "github") as found:
        found.server.judge, found.mail.judge = judge, judge_hook
        yield found
    assert found.server.wrong == [] == found.mail.wrong


def gated(headgate: Headgate) -> bool:
    """Return whether the pipelines of the tenant are known."""
    return "gate" in str(headgate.get("/api/tenant/example/pipelines"))


def checks(rocket: FakeGitHubRepository, number: int) -> dict[str, str | None]:
    sha = rocket.pulls[number].head_sha
    return {one.name: one.conclusion for one in rocket.check_runs.values() if one.head_sha == sha}


async def test_a_change_lands_at_github(hub: GitHub, tmp_path: Path) -> None:
    hub.world.mergeability_asks = 0  # deferred requests are retried after some seconds
    app = hub.app(hook_secret=SECRET)
    pipelines = next(part for part in PAGE.read_text().split("```") if part.startswith("yaml\n- pipeline"))
    config = pipelines.removeprefix("yaml\n") + CONFIG
    hub.repository("acme/config", {"zuul.yaml": config, "jobs/base": "#!/bin/sh\n"})
    rocket = hub.repository("acme/rocket", {"zuul.yaml": JOBS, "jobs/works": WORKS, "a.txt": "1\n"})
    hub.install(app, "acme")
    hub.protect(rocket, approvals=1, contexts=("example/gate",))
    ada, bob = hub.person("ada", acme__rocket="write"), hub.person("bob", acme__rocket="write")
    (tmp_path / "app.pem").write_text(hub.keys[app.id])
    settings = SETTINGS.format(url=hub.url, app=app.id, secret=SECRET)
    headgate = Headgate(Repositories(tmp_path), TENANTS, settings=settings)
    await asyncio.to_thread(headgate.start)
    try:
        app.hook_url = f"{headgate.url}/api/connection/hub/payload"
        await until("the gate is there", partial(asyncio.to_thread, gated, headgate))
        texts = {"good": "good\n", "bad": "broken\n", "late": "late\n"}
        pulls = {
            name: ada.propose(rocket, name, {f"{name}.txt": text}, f"A {name} one") for name, text in texts.items()
        }
        numbers = {name: pull.number for name, pull in pulls.items()}
        await until("all are checked", lambda: all("example/check" in checks(rocket, n) for n in numbers.values()))
        await until("checks end", lambda: None not in [checks(rocket, n)["example/check"] for n in numbers.values()])
        assert checks(rocket, numbers["good"]) == {"example/check": "success"}
        assert checks(rocket, numbers["bad"]) == {"example/check": "failure"}
        for pull in pulls.values():
            bob.review(pull)
        await until("the good ones land", lambda: pulls["good"].merged and pulls["late"].merged)
        await until("the other is told", lambda: checks(rocket, numbers["bad"]).get("example/gate") == "failure")
        await until("the comment comes, too", lambda: len(pulls["bad"].comments) == 2)
        assert not pulls["bad"].merged
        assert [one.body.split("**")[1] for one in pulls["bad"].comments] == ["check: failed", "gate: failed"]
        assert pulls["good"].comments == []
        assert "no effect" not in headgate.log.read_text()
        tree = {entry.name for entry in hosts.opened(rocket)[hosts.heads(rocket)["main"]].tree}
        assert {"good.txt", "late.txt"} <= tree and "bad.txt" not in tree
        await hub.mail.delivered()
        assert {one.status_code for one in hub.mail.log} == {200}
    finally:
        await asyncio.to_thread(headgate.stop)
