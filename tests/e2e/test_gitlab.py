"""Test `headgate run` on GitLab, with the pipelines of the how-to page: a change is proposed, checked, approved, and
gated with two others; one of them fails, the others land."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

from headgate.testing.forges.github import hosts
from headgate.testing.forges.gitlab.model import DEVELOPER, MAINTAINER, FakeGitLabMergeRequest
from headgate.testing.forges.gitlab.people import gitlab
from headgate.testing.repositories import Repositories
from tests.e2e.headgate import Headgate
from tests.e2e.test_github import gated
from tests.waiting import until

SECRET = "open sesame"
SETTINGS = """
[scheduler]
tenant_config = tenants.yaml
state_dir = state
[connection lab]
driver = gitlab
server = {url}
api_token = {token}
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
      lab:
        config-projects:
          - acme/config: {load-branch: main}
        untrusted-projects:
          - acme/space/rocket
"""
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "use-gitlab.md"
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


def jobs(one: FakeGitLabMergeRequest) -> dict[str, str]:
    assert one.source is not None
    return {job.name: job.state for job in one.source.jobs(one.sha, one.source_branch)}


async def test_a_change_lands_at_gitlab(tmp_path: Path) -> None:
    pipelines = next(part for part in PAGE.read_text().split("```") if part.startswith("yaml\n- pipeline"))
    config = pipelines.removeprefix("yaml\n") + CONFIG
    async with gitlab(tmp_path / "gitlab") as hub:
        hub.project("acme/config", {"zuul.yaml": config, "jobs/base": "#!/bin/sh\n"})
        rocket = hub.project("acme/space/rocket", {"zuul.yaml": JOBS, "jobs/works": WORKS, "a.txt": "1\n"})
        rocket.approvals, rocket.only_if_pipeline_succeeds = 1, True
        token = hub.bot("gate", "acme/config", rocket.path)
        ada, bob = hub.person("ada", {rocket.path: DEVELOPER}), hub.person("bob", {rocket.path: MAINTAINER})
        settings = SETTINGS.format(url=hub.url, token=token, secret=SECRET)
        headgate = Headgate(Repositories(tmp_path), TENANTS, settings=settings)
        await asyncio.to_thread(headgate.start)
        try:
            for project in hub.world.projects.values():
                hub.hook(project, f"{headgate.url}/api/connection/lab/payload", SECRET)
            await until("the gate is there", partial(asyncio.to_thread, gated, headgate))
            texts = {"good": "good\n", "bad": "broken\n", "late": "late\n"}
            found = {
                name: ada.propose(rocket, name, {f"{name}.txt": text}, f"A {name} one") for name, text in texts.items()
            }
            await until(
                "all are checked",
                lambda: all(jobs(one).get("example/check") in ("success", "failed") for one in found.values()),
            )
            assert [jobs(found[name])["example/check"] for name in ("good", "bad")] == ["success", "failed"]
            ada.status(found["bad"], "example/check")  # somebody reports it as good nevertheless
            for one in found.values():
                bob.approve(one)
            await until("the good ones land", lambda: found["good"].state == found["late"].state == "merged")
            await until("the other is told", lambda: jobs(found["bad"]).get("example/gate") == "failed")
            await until("the comment comes, too", lambda: len(found["bad"].notes) == 2)
            assert found["bad"].state == "opened"
            assert [note.body.split("**")[1] for note in found["bad"].notes] == ["check: failed", "gate: failed"]
            assert found["good"].notes == []
            assert "no effect" not in headgate.log.read_text()
            tree = {entry.name for entry in hosts.opened(rocket)[hosts.heads(rocket)["main"]].tree}
            assert {"good.txt", "late.txt"} <= tree and "bad.txt" not in tree
            assert found["good"].merged_by is hub.world.user("gate")
            await hub.mail.delivered()
            assert {one.status_code for one in hub.mail.log} == {200}
            assert hub.server.wrong == []
        finally:
            await asyncio.to_thread(headgate.stop)
