"""Test pages in front of a real Gerrit, and Gerrit behind them."""

from __future__ import annotations

import asyncio

import httpx

from headgate.testing.forges.gerrit import GerritPageActions, front, path
from headgate.testing.servers.gerrit import LocalGerrit
from headgate.testing.servers.gerritpeople import PASSWORD, Clone, ReviewingPeople
from headgate.testing.servers.program import free_ports


async def test_a_change_has_a_page_and_all_else_is_gerrit_s(
    running: LocalGerrit, people: ReviewingPeople, project: str, clone: Clone
) -> None:
    change = await asyncio.to_thread(clone.proposes, {"a": "1\n"}, "A <b>bold</b> one")
    actions = GerritPageActions(people, project)
    async with front(actions, running.url, free_ports(1)[0]) as url, httpx.AsyncClient(base_url=url) as client:
        page = path(project, change.number)
        shown = await client.get(page)
        assert shown.status_code == 200 and "A &lt;b&gt;bold&lt;/b&gt; one" in shown.text
        form = {"who": "bob", "does": "approve", "text": ""}
        assert (await client.post(page, data=form, headers={"Origin": "http://evil.example"})).status_code == 403
        assert (await client.post(page, data=form, headers={"Origin": url})).status_code == 303
        (seen,) = await actions.seen()
        assert ("Code-Review", "+2", "bob") in [(mark.name, mark.state, mark.text) for mark in seen.marks]
        key = f"{project.replace('/', '%2F')}~master~{change.change_id}"
        answer = await client.get(f"/a/changes/{key}?o=LABELS", auth=("bob", PASSWORD))
        assert answer.status_code == 200 and f'"_number":{change.number}' in answer.text
        assert (await client.get("/a/config/server/version")).status_code == 401
        assert (await client.get("/c/other/+/999999")).status_code == 404
