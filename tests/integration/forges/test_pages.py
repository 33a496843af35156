"""Test the pages of the stand-ins: they show foreign text as text, and accept no actions from other origins."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from html import unescape
from pathlib import Path

import httpx
import pytest

from headgate.cli.scenario import files
from headgate.cli.scenario.forges.host import OWNER, REVIEWER, Host, Hosted
from headgate.cli.scenario.venues import STAND_INS
from headgate.cli.settings import read

EVIL = "<img src=x onerror=alert(1)>\u202e & 'quotes' \"double\""
PROJECT = f"{OWNER}core"


@pytest.fixture(params=sorted(STAND_INS))
async def venue(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Hosted]:
    async with STAND_INS[request.param](tmp_path) as host:
        made = Hosted(host, lambda text: None)
        await made.build()
        yield made


@asynccontextmanager
async def browser(host: Host) -> AsyncIterator[httpx.AsyncClient]:
    """Open the page of all changes."""
    parts = host.url.split("/")
    async with httpx.AsyncClient(base_url="/".join(parts[:3]), headers={"Origin": "/".join(parts[:3])}) as client:
        yield client


async def test_text_that_people_write_appears_only_as_text(venue: Hosted) -> None:
    host = venue.host
    path = await host.propose("ada", PROJECT, "evil", {"a": "1\n"}, EVIL, f"{EVIL} javascript:alert(1)")
    await host.actions.comment(path, "cleo", f"<script>alert(1)</script> **bold {EVIL}** http://127.0.0.1/a?b=1&c='x'")
    async with browser(host) as client:
        for at in (path, f"{host.actions.root}/"):
            answer = await client.get(at)
            assert answer.status_code == 200
            assert set(re.findall(r"<(?:img|script|iframe|svg)\b", answer.text)) == set()
            assert EVIL in unescape(re.sub(r"<[^>]+>", "", answer.text)), "it is there all the same"
            policy = answer.headers["Content-Security-Policy"]
            assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
            assert all(to.startswith(("http://127.0.0.1", "/")) for to in re.findall(r"href='([^']*)'", answer.text))
        assert "<a href='http://127.0.0.1/a?b=1&amp;c=' rel" in (await client.get(path)).text


async def test_forms_of_other_origins_are_refused(venue: Hosted) -> None:
    host = venue.host
    path = await host.propose("ada", PROJECT, "topic", {"a": "1\n"}, "A change", "")
    form = {"who": REVIEWER, "does": "approve", "text": ""}
    async with browser(host) as client:
        for headers in ({"Origin": "http://evil.example"}, {"Origin": "null"}, {"Origin": ""}):
            assert (await client.post(path, data=form, headers=headers)).status_code == 403
        rebound = {"Host": "evil.example", "Origin": "http://evil.example"}
        assert (await client.post(path, data=form, headers=rebound)).status_code == 403
        assert (await client.post(f"{host.actions.root}/", data=form, headers=rebound)).status_code == 403
        (seen,) = await host.actions.seen()
        assert seen.remarks == ()
        assert (await client.post(path, data=form)).status_code == 303
    (seen,) = await host.actions.seen()
    assert [(remark.who, remark.did) for remark in seen.remarks if remark.did != "noted"] == [(REVIEWER, "approved")]


async def test_impossible_requests_are_refused_with_a_reason(venue: Hosted) -> None:
    host = venue.host
    path = await host.propose("ada", PROJECT, "topic", {"a": "1\n"}, "A change", "")
    async with browser(host) as client:

        async def refusal_of(at: str, **fields: str) -> str:
            answer = await client.post(at, data=fields)
            assert answer.status_code == 422
            return answer.text

        assert "no person with that name" in await refusal_of(path, who="mallory", does="approve")
        assert "needs some text" in await refusal_of(path, who="ada", does="comment", text="  ")
        if host.actions.forge in ("Gitea", "GitHub"):
            assert "your own pull" in await refusal_of(path, who="ada", does="approve")
        home = f"{host.actions.root}/"
        assert "needs a branch" in await refusal_of(home, who="ada", branch=f"{PROJECT}:main", title="It is the branch")
        assert "needs a branch" in await refusal_of(home, who="ada", branch=f"{PROJECT}:topic", title="It has one")
        assert (await client.get(f"{path}9")).status_code == 404
        assert (await client.post(f"{path}9", data={"who": "ada", "text": "x"})).status_code == 404


async def test_a_branch_that_was_pushed_becomes_a_change(venue: Hosted) -> None:
    host = venue.host
    host.push("ada", PROJECT, "by-hand", {"b": "1\n"}, "By hand")
    async with browser(host) as client:
        home = f"{host.actions.root}/"
        assert f"<option>{PROJECT}:by-hand</option>" in (await client.get(home)).text
        form = {"who": "ada", "branch": f"{PROJECT}:by-hand", "title": "By hand", "text": ""}
        answer = await client.post(home, data=form)
        assert answer.status_code == 303
        assert "By hand" in (await client.get(answer.headers["Location"])).text
        assert "by-hand</option>" not in (await client.get(home)).text


async def test_private_changes_are_not_shown_on_the_pages(venue: Hosted) -> None:
    path = await venue.host.propose("ada", PROJECT, "topic", {"a": "1\n"}, "A secret plan", "")
    world = venue.host.hub.world  # type: ignore[attr-defined]
    for one in (world.projects if hasattr(world, "projects") else world.repositories).values():
        one.private = True
    async with browser(venue.host) as client:
        assert (await client.get(path)).status_code == 404
        assert "secret plan" not in (await client.get(f"{venue.host.actions.root}/")).text


async def test_the_settings_of_each_venue_are_accepted(venue: Hosted, tmp_path: Path) -> None:
    settings = tmp_path / "headgate.conf"
    settings.write_text(files.SETTINGS + venue.settings)
    assert read(settings).connections[venue.host.connection]["driver"] == venue.host.actions.forge.lower()
