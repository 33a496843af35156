"""Test `headgate run` on Gitea, with the pipelines of the how-to page: a change is proposed, checked, approved, and
gated with two others; one of them fails, the others land."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest

from headgate.testing.forges.gitea.model import FakeGiteaRepository
from headgate.testing.forges.gitea.people import gitea
from headgate.testing.forges.github import hosts
from headgate.testing.repositories import Repositories
from tests.e2e.headgate import Headgate
from tests.e2e.test_github import CONFIG, JOBS, SECRET, TENANTS, WORKS, gated
from tests.integration.gitea.description import judge
from tests.waiting import until

SETTINGS = """
[scheduler]
tenant_config = tenants.yaml
state_dir = state
[connection hub]
driver = gitea
baseurl = {url}
api_token = {token}
webhook_token = {secret}
[web]
port = 0
[executor]
builds = 8
"""
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "use-gitea.md"


def statuses(rocket: FakeGiteaRepository, number: int) -> dict[str, str]:
    return {one.context: one.state for one in rocket.statuses.get(rocket.pulls[number].head_sha, ())}


@pytest.mark.long
async def test_a_change_lands_at_gitea(tmp_path: Path) -> None:
    async with gitea(tmp_path / "gitea") as hub:
        hub.server.judge = judge
        hub.world.mergeability_asks = 0  # deferred requests are retried after some seconds
        pipelines = next(part for part in PAGE.read_text().split("```") if part.startswith("yaml\n- pipeline"))
        config = pipelines.removeprefix("yaml\n") + CONFIG
        hub.repository("acme/config", {"zuul.yaml": config, "jobs/base": "#!/bin/sh\n"})
        rocket = hub.repository("acme/rocket", {"zuul.yaml": JOBS, "jobs/works": WORKS, "a.txt": "1\n"})
        hub.protect(rocket, approvals=1, contexts=("example/gate",), mergers=frozenset({"headgate"}))
        hub.person("headgate", acme__rocket="admin", acme__config="admin")
        ada, bob = hub.person("ada", acme__rocket="write"), hub.person("bob", acme__rocket="write")
        settings = SETTINGS.format(url=hub.url, token=hub.token("headgate"), secret=SECRET)
        headgate = Headgate(Repositories(tmp_path), TENANTS, settings=settings)
        await asyncio.to_thread(headgate.start)
        try:
            hub.hook(f"{headgate.url}/api/connection/hub/payload", SECRET)
            await until("the gate is there", partial(asyncio.to_thread, gated, headgate))
            texts = {"good": "good\n", "bad": "broken\n", "late": "late\n"}
            pulls = {
                name: ada.propose(rocket, name, {f"{name}.txt": text}, f"A {name} one") for name, text in texts.items()
            }
            numbers = {name: pull.number for name, pull in pulls.items()}
            wanted = {"good": "success", "bad": "failure", "late": "success"}
            for name, state in wanted.items():
                await until(
                    f"{name} is checked", lambda n=numbers[name], s=state: statuses(rocket, n).get("example/check") == s
                )  # fmt: skip
            for pull in pulls.values():
                bob.review(pull)
            await until("the good ones land", lambda: pulls["good"].merged and pulls["late"].merged)
            await until("the other is told", lambda: statuses(rocket, numbers["bad"]).get("example/gate") == "failure")
            await until("the comment comes, too", lambda: len(pulls["bad"].comments) == 2)
            assert not pulls["bad"].merged
            comments = [one.body.split("**")[1] for one in pulls["bad"].comments]
            assert comments == ["check: failed", "gate: failed"] and pulls["good"].comments == []
            assert "no effect" not in headgate.log.read_text()
            tree = {entry.name for entry in hosts.opened(rocket)[hosts.heads(rocket)["main"]].tree}
            assert {"good.txt", "late.txt"} <= tree and "bad.txt" not in tree
            await hub.mail.delivered()
            assert {one.status_code for one in hub.mail.log} == {200}
            assert {one.merged_by.login for one in pulls.values() if one.merged_by} == {"headgate"}
        finally:
            await asyncio.to_thread(headgate.stop)
        assert hub.server.wrong == []
