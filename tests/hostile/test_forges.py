"""Test people who may only propose or comment on a forge, and a forge that answers nonsense."""

from __future__ import annotations

import asyncio
import base64
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from aiohttp import web

from headgate.adapters.forges import rest as calls
from headgate.adapters.forges import watch
from headgate.adapters.forges.gerrit.api import GerritRest
from headgate.adapters.forges.gerrit.driver import git_connection
from headgate.adapters.forges.gerrit.poll import Looker
from headgate.adapters.forges.gerrit.server import Server
from headgate.adapters.forges.github.client import GitHubClient
from headgate.adapters.forges.github.forge import connect
from headgate.adapters.forges.registry import DriverOptions
from headgate.adapters.forges.rest import ForgeKey, Rejected
from headgate.adapters.forges.watch import _PolledProject
from headgate.adapters.git.command import GitError
from headgate.adapters.git.engine import GitEngine
from headgate.config.forges.footers import footers, named
from headgate.gate.state.change import Change, ChangeState
from headgate.ports.forge import Abilities, Hint, NotLanded, ReporterAway
from headgate.services.context import Context
from headgate.services.scheduler.changestates import LOOKED_UP_MAX, Needed
from headgate.testing.clock import DEADLINE_S
from headgate.testing.forges.github.people import github
from headgate.testing.servers.program import free_ports
from tests.integration.forge.pushed import pushed
from tests.integration.github.ground import PROJECT, Ground, ground, opened, watched
from tests.integration.github.test_landing import as_tested
from tests.waiting import slow

ODD = (
    "https://[x/acme/rocket/pull/1",
    "https://[::1/acme/rocket/pull/1",
    "https://127.0.0.1／x/acme/rocket/pull/1",
    "https://127.0.0.1/../app/pull/1",
    "https://127.0.0.1/acme/../pull/1",
    "https://127.0.0.1/./acme/pull/1",
    "https://127.0.0.1@elsewhere.example/acme/rocket/pull/1",
    "https://elsewhere.example/acme/rocket/pull/1?127.0.0.1",
    "https://127.0.0.1/acme/rocket/pull/" + "9" * 900,
    "://",
    "file:///etc/passwd",
)


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Ground]:
    async with github(tmp_path / "github") as hub, ground(hub, tmp_path) as found:
        hub.world.mergeability_asks = 0
        yield found


async def test_odd_addresses_in_footers_are_unknown_changes_and_raise_no_error(here: Ground) -> None:
    section = {"server": "127.0.0.1", "user": "gate", "password": "secret"}
    server = Server.of("gerrit", section)
    looker = Looker(GerritRest(httpx.AsyncClient(), server), server, lambda: 0)
    message = "Title\n\n" + "\n".join(f"Depends-On: {text}" for text in ODD)
    for of_url in (here.forge.named, looker.named):
        found = named([*footers(message)], of_url, ())
        assert found.needs == () and len(found.unknown) == len(ODD)
    good = f"{here.hub.url}/acme/rocket/pull/7/files"
    assert named([*footers(f"{message}\nDepends-On: {good}")], here.forge.named, ()).needs == (f"{PROJECT}#7",)


async def test_names_of_missing_changes_prevent_no_lookup_of_other_needed_changes(tmp_path: Path) -> None:
    class Counted:
        name, can = "far", Abilities()

        def __init__(self) -> None:
            self.requested: list[str] = []
            self.away = False

        def named(self, url: str) -> str:
            return url.removeprefix("https://")

        async def look_up(self, key: str) -> ChangeState | None:
            self.requested.append(key)
            if self.away:
                raise ReporterAway("it is down")
            return None

    far = Counted()
    needed = object.__new__(Needed)  # everything except reads of the store
    needed._context = cast(Context, type("Only", (), {"forges": {"far": far}}))
    needed._connection, needed._projects = "far", frozenset()
    needed._owners, needed._turns = {}, {}
    needed._all = cast(Any, type("None_", (), {"now": staticmethod(dict)}))
    many = "T\n\n" + "\n".join(f"Depends-On: https://x/{n}#1" for n in range(90))
    evil = ChangeState(Change("far", "x/p", "main", commit="1" * 40, message=many, number="1"))
    good = ChangeState(
        Change("far", "x/p", "main", commit="2" * 40, message="T\n\nDepends-On: https://x/good#1", number="2")
    )
    both = [needed.completed(evil), needed.completed(good)]
    await needed.looked_up(both)
    assert len(far.requested) == LOOKED_UP_MAX and "x/good#1" not in far.requested
    await needed.looked_up(both)
    assert "x/good#1" in far.requested
    far.requested.clear()
    far.away = True
    await needed.looked_up(both)
    assert len(far.requested) == 1, "who does not answer is not asked fifty times"


async def test_a_pull_request_moved_to_another_branch_after_its_test_does_not_land(here: Ground) -> None:
    here.bob.push(here.repository, "release", {"a.txt": "1\n"})
    pull = opened(here)
    landing = as_tested(here, pull)
    here.ada.edit(pull, base="release")
    done = await here.forge.land(*landing)
    assert isinstance(done, NotLanded) and "now targets release" in done.why
    assert not pull.merged
    here.bob.push(here.repository, "release", {"a.txt": "2\n"}, merges=pull.head_sha)
    assert pull.merged
    done = await here.forge.land(*landing)
    assert isinstance(done, NotLanded), "merged by hand into another branch it has not landed on this one"


@pytest.mark.long
async def test_no_number_of_remarks_hides_a_request_for_changes(here: Ground) -> None:
    pull = opened(here)
    here.bob.review(pull, "CHANGES_REQUESTED", "Not like that")
    for _ in range(101):
        here.ada.review(pull, "COMMENTED", "spam")
        here.eve.review(pull, "APPROVED")
    async with watched(here) as gate:
        await gate.until(lambda: gate.known)
    details = gate.change_state(1).details
    assert details is not None and details.votes is not None
    assert {(one.who.name, one.value, one.who.permission) for one in details.votes} >= {
        ("bob", "changes_requested", "admin"),
        ("eve", "approved", "read"),
    }


@pytest.mark.long
async def test_a_pull_request_that_cannot_be_read_delays_no_other(
    here: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = here.client.query
    away, broken = [ReporterAway("answers 502", 1.0)], {1}

    async def query(key: ForgeKey, text: str, *, urgent: bool = True, **variables: Any) -> dict[str, Any]:
        found = await real(key, text, urgent=urgent, **variables)
        if variables["number"] not in broken:
            return found
        for error in away:
            raise error
        return {"repository": {"nameWithOwner": "acme/rocket", "pullRequest": {"number": "x", "head": {"nodes": []}}}}

    monkeypatch.setattr(here.client, "query", query)
    opened(here)
    here.ada.propose(here.repository, "second", {"b": "1\n"}, "Second")
    async with watched(here) as gate:
        await gate.until(lambda: f"{PROJECT}#2" in gate.known and gate.problems.get(PROJECT))
        assert "pull request 1 cannot be read" in gate.problems[PROJECT] and f"{PROJECT}#1" not in gate.known
        away.clear()
        here.ada.propose(here.repository, "third", {"c": "1\n"}, "Third")
        await gate.until(lambda: f"{PROJECT}#3" in gate.known)
        assert "an unexpected form" in gate.problems[PROJECT]
        broken.clear()
        here.forge.stir(Hint("again", PROJECT, "1"))
        await gate.until(lambda: f"{PROJECT}#1" in gate.known and not gate.problems[PROJECT])


@pytest.mark.long
async def test_an_unreadable_pull_request_is_requested_ever_more_rarely(
    here: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, lookups, broken = here.client.query, Counter[int](), [True]
    monkeypatch.setattr(watch, "ODD_S", 3600.0)

    async def query(key: ForgeKey, text: str, *, urgent: bool = True, **variables: Any) -> dict[str, Any]:
        lookups[variables["number"]] += 1
        if broken and variables["number"] == 1:
            raise Rejected(200, "Something went wrong")
        return await real(key, text, urgent=urgent, **variables)

    monkeypatch.setattr(here.client, "query", query)
    opened(here)
    async with watched(here) as gate:
        await gate.until(lambda: gate.problems.get(PROJECT))
        await here.settled()
        before = lookups[1]
        for n in range(6):  # all of it is polled, again and again
            here.ada.propose(here.repository, f"more{n}", {f"b{n}": "1\n"}, "More")
            here.forge.stir(Hint(f"rules{n}", PROJECT))
            here.forge.stir(Hint(f"all{n}", ""))
            await gate.until(lambda: f"{PROJECT}#{n + 2}" in gate.known)  # noqa: B023
        assert lookups[1] == before, "it rests"
        assert "pull request 1 cannot be read" in gate.problems[PROJECT]
        broken.clear()
        here.forge.stir(Hint("itself", PROJECT, "1"))
        await gate.until(lambda: f"{PROJECT}#1" in gate.known and not gate.problems[PROJECT])
        assert lookups[1] == before + 1


def test_unreadable_changes_are_retried_ever_more_rarely_and_few_at_a_time() -> None:
    one, now_s, pauses = _PolledProject("p"), 0.0, list[float]()
    look = cast(Any, type("Look", (), {"odd": {n: "odd" for n in range(1, 26)}, "attempted": set(range(1, 26))}))
    for _ in range(12):
        one.learn(look, now_s)
        due_s = max(odd.due_s for odd in one.odd.values())
        pauses.append(due_s - now_s)
        now_s = due_s
    assert all(30 * 2**n * 0.75 <= pause <= 30 * 2**n for n, pause in enumerate(pauses[:6])), pauses
    one.learn(look, now_s, completed=False)
    assert {odd.due_s for odd in one.odd.values()} == {now_s}, "it may be the forge that is odd"
    assert max(pauses) <= 3600 and len(one.due(now_s)) == 10 and one.due(0) == frozenset()


async def test_an_answer_that_trickles_is_not_waited_for(here: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    async def trickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100000\r\n\r\n")
            while True:
                writer.write(b" ")
                await writer.drain()
                await slow(0.02)
        except OSError:
            writer.close()

    monkeypatch.setattr(calls, "ANSWER_MAX_S", 0.3)
    server = await asyncio.start_server(trickle, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    client = GitHubClient(replace(here.account, web=f"http://127.0.0.1:{port}"), calls.forge_http)
    try:
        async with asyncio.timeout(DEADLINE_S):
            with pytest.raises(ReporterAway, match="has not answered within"):
                await client.get(ForgeKey("us", ""), "/user")
    finally:
        await client.close()
        server.close()


async def test_a_gerrit_that_sends_git_elsewhere_sends_no_password_there(tmp_path: Path) -> None:
    """Git omits the password in the redirected request, and sends it with the next request to the same place."""
    at_gerrit, elsewhere = list[web.Request](), list[web.Request]()

    async def other(request: web.Request) -> web.Response:
        elsewhere.append(request)
        lines = [b"1" * 40 + b" HEAD\0agent=x\n", b"1" * 40 + b" refs/heads/main\n"]
        advertisement = b"001e# service=git-upload-pack\n0000" + b"".join(
            b"%04x" % (len(one) + 4) + one for one in lines
        )
        return web.Response(body=advertisement + b"0000", content_type="application/x-git-upload-pack-advertisement")

    async def sends_on(request: web.Request) -> web.Response:
        at_gerrit.append(request)
        raise web.HTTPFound(f"http://localhost:{there}{request.path_qs}")

    here, there = free_ports(2)
    runners = []
    for port, handler in ((here, sends_on), (there, other)):
        application = web.Application()
        application.router.add_route("*", "/{rest:.*}", handler)
        runners.append(web.AppRunner(application))
        await runners[-1].setup()
        await web.TCPSite(runners[-1], "127.0.0.1", port).start()
    settings = {"server": "127.0.0.1", "baseurl": f"http://127.0.0.1:{here}", "user": "gate", "password": "secret"}
    engine = GitEngine(tmp_path, {"gerrit": git_connection(Server.of("gerrit", settings))})
    try:
        with pytest.raises(GitError):
            await engine.mirror("127.0.0.1/code", "gerrit").bring({"refs/heads/main": "1" * 40})
    finally:
        for runner in runners:
            await runner.cleanup()
    assert at_gerrit and at_gerrit[0].headers["Authorization"].startswith("Basic ")
    assert elsewhere == []


async def test_the_error_of_a_refused_push_contains_no_token(here: Ground, tmp_path: Path) -> None:
    """Its message appears on the change; here it comes from the git server, with everything that git knows of the
    address."""
    section = {"server": here.hub.url, "app_id": str(here.app.id), "app_key": "app.pem", "land": "push"}
    (tmp_path / "app.pem").write_text(here.hub.keys[here.app.id])
    connected = connect(DriverOptions("hub", section, tmp_path, lambda: engine, lambda: int(time.time() * 1000)))
    engine = GitEngine(tmp_path / "pushing", {"hub": connected.git})
    here.app.permissions["contents"] = "read"
    pull = opened(here)
    answer = await pushed(engine, as_tested(here, pull)[1].change)
    await connected.close()
    assert not answer.ok and "the account may not push" in answer.error and not pull.merged
    tokens = [one.text for one in here.hub.world.tokens.values()]
    encoded = [base64.b64encode(f"x-access-token:{one}".encode()).decode() for one in tokens]
    assert tokens and not any(one in answer.error for one in (*tokens, *encoded))
