"""Test `headgate run` on Pagure, with the pipelines of the how-to page: a change is proposed, checked, approved, and
gated with two others; one of them fails, the others land."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest

from headgate.testing.forges.github import hosts
from headgate.testing.forges.pagure.model import FakePagureRequest
from headgate.testing.forges.pagure.people import pagure
from headgate.testing.repositories import Repositories
from tests.e2e.headgate import Headgate
from tests.e2e.test_github import CONFIG, JOBS, TENANTS, WORKS, gated
from tests.waiting import until

SETTINGS = """
[scheduler]
tenant_config = tenants.yaml
state_dir = state
[connection hub]
driver = pagure
baseurl = {url}
api_token = {token}
[web]
port = 0
[executor]
builds = 8
"""
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "use-pagure.md"


def flags(pull: FakePagureRequest) -> dict[str, str]:
    return {one.username.removeprefix("Zuul: "): one.status for one in pull.flags}


@pytest.mark.long
async def test_a_change_lands_at_pagure(tmp_path: Path) -> None:
    async with pagure(tmp_path / "pagure") as hub:
        pipelines = next(part for part in PAGE.read_text().split("```") if part.startswith("yaml\n- pipeline"))
        config = pipelines.removeprefix("yaml\n") + CONFIG
        hub.project("acme/config", {"zuul.yaml": config, "jobs/base": "#!/bin/sh\n"})
        rocket = hub.project("acme/rocket", {"zuul.yaml": JOBS, "jobs/works": WORKS, "a.txt": "1\n"})
        rocket.options["Minimum_score_to_merge_pull-request"] = 1
        hub.person("headgate", acme__rocket="admin", acme__config="admin")
        ada, bob = hub.person("ada", acme__rocket="commit"), hub.person("bob", acme__rocket="commit")
        settings = SETTINGS.format(url=hub.url, token=hub.token("headgate"))
        headgate = Headgate(Repositories(tmp_path), TENANTS, settings=settings)
        await asyncio.to_thread(headgate.start)
        try:
            rocket.options["Web-hooks"] = f"{headgate.url}/api/connection/hub/payload"
            await until("the gate is there", partial(asyncio.to_thread, gated, headgate))
            texts = {"good": "good\n", "bad": "broken\n", "late": "late\n"}
            pulls = {
                name: ada.propose(rocket, name, {f"{name}.txt": text}, f"A {name} one") for name, text in texts.items()
            }
            for name, state in {"good": "success", "bad": "failure", "late": "success"}.items():
                await until(
                    f"{name} is checked", lambda n=name, s=state: flags(pulls[n]).get("example/check") == s
                )  # fmt: skip
            for pull in pulls.values():
                bob.thumb(pull)
            await until("the good ones land", lambda: {pulls[n].status for n in ("good", "late")} == {"Merged"})
            await until("the other is told", lambda: flags(pulls["bad"]).get("example/gate") == "failure")
            await until("the comment comes, too", lambda: "gate: failed" in pulls["bad"].comments[-1].text)
            assert pulls["bad"].status == "Open"
            messages = [one.text.split("**")[1] for one in pulls["bad"].comments if one.user.login == "headgate"]
            assert messages == ["check: failed", "gate: failed"]
            assert not [one for one in pulls["good"].comments if one.text.startswith("**gate")]
            assert "no effect" not in headgate.log.read_text()
            tree = {entry.name for entry in hosts.opened(rocket)[hosts.heads(rocket)["main"]].tree}
            assert {"good.txt", "late.txt"} <= tree and "bad.txt" not in tree
            await hub.mail.delivered()
            assert {one.status_code for one in hub.mail.log} == {200}
            assert {one.closed_by.login for one in pulls.values() if one.closed_by} == {"headgate"}
        finally:
            await asyncio.to_thread(headgate.stop)
        assert hub.server.wrong == []
