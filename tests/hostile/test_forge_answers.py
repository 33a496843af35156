"""Test forges, and other servers that Headgate calls, that answer with anything: bombs, nonsense, lists without end."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headgate.adapters.forges.gerrit.api import GerritAway, GerritRest, gerrit_client
from headgate.adapters.forges.gerrit.entities import ChangeInfo, GerritAccount, GerritComment, GerritMessage, Revision
from headgate.adapters.forges.gerrit.poll import events
from headgate.adapters.forges.gerrit.server import Server
from headgate.adapters.forges.gerrit.translation import Stack, change, change_state
from headgate.adapters.forges.gerrit.watchlist import HINTS_MAX, Ear, GerritPace, GerritWatchList
from headgate.adapters.forges.gitea.pull import _listed
from headgate.adapters.forges.github.client import GitHubClient, account
from headgate.adapters.forges.gitlab.client import GitLabClient
from headgate.adapters.forges.gitlab.client import account as gitlab_account
from headgate.adapters.forges.gitlab.request import look
from headgate.adapters.forges.rest import ForgeKey, Heard, Rejected, forge_http
from headgate.adapters.nodes.clouds.http import Http
from headgate.adapters.reporters.elastic import Elastic, ElasticReporter, elastic_client
from headgate.adapters.reporters.webhook import webhook_client
from headgate.base.tasks import end
from headgate.map.outbox import OutboxMessage, QueueReport
from headgate.ports.clouds import CloudUnavailable
from headgate.ports.reporter import ReporterAway, ReportPutOff, ReportRefused
from headgate.services.scheduler.connection import PART_MAX_BYTES
from headgate.testing.clock import DEADLINE_S
from headgate.testing.forges.gitea.people import gitea
from headgate.testing.forges.github.people import github
from headgate.testing.forges.gitlab.people import gitlab
from tests.integration.gitea.ground import ground as gitea_ground
from tests.integration.github.ground import PROJECT, Ground, ground, opened, watched
from tests.integration.gitlab.ground import ground as gitlab_ground
from tests.waiting import until

PULL = ("data", "repository", "pullRequest")
DEEP, COUNTLESS = b'{"x": ' + b"[" * 100_000, b'{"x": [' + b"[]," * 1_500_000 + b"[]]}"
REPORT = QueueReport(
    v=1, kind="report", id="r", at_ms=1, tenant="t", pipeline="gate", project="h/p", branch="b", commit="c",
    change="1,c", item="i", buildset="s", result="FAILURE", report="failure", message="",
)  # fmt: skip


@asynccontextmanager
async def answering(
    body: bytes, encoding: str = "identity", status: bytes = b"200 OK\r\nSet-Cookie: a=b"
) -> AsyncIterator[tuple[str, list[bytes]]]:
    """Answer every request on this machine with the body; provide the address, and the requests."""
    requests = list[bytes]()

    async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(await reader.readuntil(b"\r\n\r\n"))
        head = f"\r\nContent-Encoding: {encoding}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        writer.write(b"HTTP/1.1 " + status + head.encode() + body)
        writer.close()

    server = await asyncio.start_server(answers, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", requests


def reviewed(url: str) -> Server:
    return Server.of("review", {"server": "127.0.0.1", "baseurl": url, "user": "headgate", "password": "x"})


async def ask_github(url: str) -> Any:
    client = GitHubClient(account("hub", {"server": url, "api_token": "x"}), forge_http)
    try:
        return await client.get(ForgeKey("us", "x"), "/user")
    finally:
        await client.close()


async def ask_gerrit(url: str) -> Any:
    async with gerrit_client(reviewed(url)) as client:
        return await GerritRest(client, reviewed(url)).may()


async def ask_elastic(url: str) -> None:
    elastic = Elastic.of({"uri": url}, Path())
    async with elastic_client(elastic) as client:
        await ElasticReporter(client, elastic).tell(OutboxMessage("", REPORT, key="k"))


async def ask_a_cloud(url: str) -> Any:
    http = Http()
    try:
        return await http.ask("GET", url, {})
    finally:
        await http.close()


AWAY = (ReporterAway, GerritAway, CloudUnavailable)
CALLS = [ask_github, ask_gerrit, ask_elastic]


@pytest.mark.parametrize("call", [*CALLS, ask_a_cloud])
async def test_an_answer_that_is_compressed_twice_is_not_unpacked(call: Callable[[str], Any]) -> None:
    """What is a few kilobytes here could be gigabytes: each piece would be unpacked completely, and twice."""
    bomb = gzip.compress(gzip.compress(b"\0" * 1_000_000))
    async with answering(bomb, "gzip, gzip") as (url, requests):
        with pytest.raises(AWAY, match=r"'gzip, gzip' was not requested"):
            await call(url)
    assert b"\r\naccept-encoding: gzip\r\n" in requests[0].lower()
    # An answer that is compressed once is read, even from a server that is not asked to compress.
    async with answering(gzip.compress(b'{"errors": false}'), "gzip") as (url, _):
        await call(url)


@pytest.mark.parametrize("body", [DEEP, COUNTLESS])
@pytest.mark.parametrize("call", CALLS)
async def test_json_of_endless_depth_or_countless_values_is_like_no_answer(
    call: Callable[[str], Any], body: bytes
) -> None:
    async with answering(body) as (url, _):
        with pytest.raises((*AWAY, ReportRefused)) as refused:
            await call(url)
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize("kind", ["forge", "gerrit", "elasticsearch", "webhook", "cloud"])
async def test_a_client_stores_and_sends_no_cookies_of_a_server(kind: str) -> None:
    """It could send thousands, which would be searched for each request."""
    async with answering(b"{}") as (url, requests):
        clients = {
            "forge": forge_http,
            "gerrit": lambda: gerrit_client(reviewed(url)),
            "elasticsearch": lambda: elastic_client(Elastic.of({"uri": url}, Path())),
            "webhook": webhook_client,
            "cloud": Http().made,
        }
        async with clients[kind]() as client:
            for _ in range(2):
                assert (await client.get(url)).status_code == 200
            assert not client.cookies
    assert len(requests) == 2 and b"\r\ncookie:" not in requests[1].lower()


@pytest.mark.parametrize("depth", [100, 450, 900])
async def test_an_error_message_of_any_depth_is_only_an_error(depth: int) -> None:
    body = b'{"message": ' + b"[" * depth + b"]" * depth + b"}"
    async with answering(body, status=b"400 Bad Request") as (url, _):
        client = GitLabClient(gitlab_account("lab", {"server": url, "api_token": "x"}), forge_http)
        with pytest.raises(Rejected):
            await client.get(client.key, "/user")
        await client.close()


# --- one odd change


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Ground]:
    async with github(tmp_path / "github") as hub, ground(hub, tmp_path) as found:
        hub.world.mergeability_asks = 0
        yield found


ODD: dict[str, tuple[tuple[str | int, ...], Any]] = {
    "no commit": ((*PULL, "headRefOid"), None),
    "a number as a branch": ((*PULL, "baseRefName"), 5),
    "a time that is none": ((*PULL, "updatedAt"), "soon"),
    "a number as the commit of the branch": ((*PULL, "baseRefOid"), 7),
    "labels without text": ((*PULL, "labels", "nodes"), [{"name": None}]),
    "a list as its state": ((*PULL, "state"), ["OPEN"]),
    "a huge name": ((*PULL, "author"), {"__typename": "User", "login": "x" * 500_000}),
    "no pages": ((*PULL, "reviewThreads", "pageInfo"), None),
    "nobody's repository": (("data", "repository"), "none"),
}


def odd(body: bytes, path: tuple[str | int, ...], value: Any) -> bytes:
    document = json.loads(body)
    inner = document
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = value
    return json.dumps(document).encode()


def turned(here: Ground, monkeypatch: pytest.MonkeyPatch, turn: Callable[[bytes], bytes]) -> None:
    """Have the forge answer like this about its first change."""
    real = here.client.sent

    async def sent(method: str, url: str, key: ForgeKey, headers: Any, body: bytes | None) -> Heard:
        heard = await real(method, url, key, headers, body)
        asks = url == here.account.graphql and json.loads(body or b"{}")["variables"].get("number") == 1
        return heard._replace(body=turn(heard.body)) if asks else heard

    monkeypatch.setattr(here.client, "sent", sent)


TURNS: dict[str, Callable[[bytes], bytes]] = {
    **{name: lambda body, what=what: odd(body, *what) for name, what in ODD.items()},  # type: ignore[misc]
    "endless depth": lambda _: DEEP,
}


@pytest.mark.parametrize("name", TURNS)
async def test_whatever_a_forge_answers_about_one_change_is_that_changes_problem(
    here: Ground, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    turned(here, monkeypatch, TURNS[name])
    opened(here)
    here.ada.propose(here.repository, "second", {"b": "1\n"}, "Second")
    async with watched(here) as gate:
        await gate.until(lambda: f"{PROJECT}#2" in gate.known and gate.problems.get(PROJECT))
    assert "pull request 1 cannot be read" in gate.problems[PROJECT] and f"{PROJECT}#1" not in gate.known


@pytest.mark.parametrize("name", TURNS)
async def test_a_failed_lookup_of_a_change_that_others_need_is_repeated_later(
    here: Ground, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Another connection looks it up; every other error would end that connection's work."""
    opened(here)
    turned(here, monkeypatch, TURNS[name])
    with pytest.raises((ReportPutOff, ReporterAway)):
        await here.forge.look_up(f"{PROJECT}#1")


# --- Gerrit


async def test_a_search_that_always_has_another_page_ends() -> None:
    one = {"_number": 1, "project": "p", "branch": "b", "change_id": "I", "status": "NEW", "_more_changes": True}
    async with (
        answering(b")]}'\n" + json.dumps([one]).encode()) as (url, requests),
        gerrit_client(reviewed(url)) as client,
        asyncio.timeout(DEADLINE_S),
    ):
        assert [found.number for found in await GerritRest(client, reviewed(url)).changes("status:open")] == [1]
    assert len(requests) == 2


@pytest.mark.parametrize("challenge", [b"realm=x, nonce=n, algorithm=NONE", b"realm=\xff, nonce=\xff", b"realm"])
async def test_a_challenge_that_makes_no_sense_is_like_no_answer(challenge: bytes) -> None:
    status = b"401 Unauthorized\r\nWWW-Authenticate: Digest " + challenge
    async with answering(b"", status=status) as (url, _):
        settings = {"server": "x", "baseurl": url, "user": "headgate", "password": "x", "auth_type": "digest"}
        server = Server.of("review", settings)
        async with gerrit_client(server) as client:
            with pytest.raises(GerritAway):
                await GerritRest(client, server).may()


def test_a_review_with_countless_comments_makes_an_event_that_the_store_takes() -> None:
    eve = GerritAccount(id=3, username="eve")
    message = GerritMessage(id="m", author=eve, message="Patch Set 1:\n\n(180 comments)", date="2026-01-02", revision=1)
    revision = Revision(number=1, ref="refs/changes/07/7/1", uploader=eve)
    info = ChangeInfo(
        number=7, project="p", branch="master", change_id="I1", status="NEW", current_revision="a" * 40,
        revisions={"a" * 40: revision}, messages=(message,), mark="m1",
    )  # fmt: skip
    server = reviewed("http://127.0.0.1")
    now = change_state(server, info, change(server, info, Stack()))
    comments = tuple(GerritComment(message="x" * 17_000, of_message="m") for _ in range(180))
    before = change_state(server, msgspec.structs.replace(info, messages=()), now.change)
    (event,) = events(before, now, info, comments, 1)
    assert len(msgspec.json.encode(event)) < PART_MAX_BYTES


async def test_a_stream_that_names_countless_changes_takes_bounded_memory(tmp_path: Path) -> None:
    """Each would also be requested; all of them together are found by listing what is open."""
    program, wanted = tmp_path / "ssh", GerritWatchList()
    changes = ({"type": "comment-added", "change": {"number": n, "project": "p"}} for n in range(1, 5_000))
    last = {"type": "ref-updated", "refUpdate": {"project": "p", "refName": "main"}}
    (tmp_path / "events").write_text("".join(f"{json.dumps(one)}\n" for one in (*changes, last)))
    program.write_text(f"#!/bin/sh\ncat {tmp_path}/events\n")
    program.chmod(0o755)
    ear = Ear(reviewed("http://127.0.0.1"), wanted, ["127.0.0.1/p"], GerritPace(), str(program))
    listening = asyncio.ensure_future(ear.listen())
    await until("the last event", lambda: wanted.refs)
    await end(listening)
    assert len(wanted.numbers) == HINTS_MAX and wanted.everywhere


async def test_long_texts_of_strangers_take_little_memory(tmp_path: Path) -> None:
    async with gitlab(tmp_path / "gitlab") as lab, gitlab_ground(lab, tmp_path) as at_gitlab:
        request = at_gitlab.ada.propose(at_gitlab.project, "topic", {"a.txt": "2\n"}, "A title", "A text")
        at_gitlab.eve.comment(request, "x" * 200_000)
        found = await look(at_gitlab.client, at_gitlab.account.canonical(at_gitlab.usual), request.iid)
        assert [len(one.text) < 17_000 for one in found.remarks] == [True]
    async with gitea(tmp_path / "gitea") as tea, gitea_ground(tea, tmp_path) as at_gitea:
        pull = at_gitea.ada.propose(at_gitea.repository, "topic", {"a.txt": "2\n"}, "A title", "A body")
        at_gitea.eve.review(pull, "COMMENT", "x" * 200_000)
        reviews = await _listed(at_gitea.client, f"/repos/acme/rocket/pulls/{pull.number}/reviews", True)
        assert [(one["user"]["login"], one["body"]) for one in reviews] == [("eve", "")]
