"""Test the client: its identity, its permissions, and the meaning of answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from headgate.adapters.forges.github.client import GitHubAccount, GitHubAppNotInstalled, GitHubClient, Tokens, account
from headgate.adapters.forges.rest import ForgeDenied, ForgeKey, NotThere, Rejected, forge_http
from headgate.base.errors import UserError
from headgate.ports.reporter import ReporterAway
from headgate.testing.forges.github.model import FakeGitHubInstallation, FakeGitHubRepository
from headgate.testing.forges.github.people import GitHub

ROCKET = "/repos/acme/rocket"


class Ground:
    """Provide a repository, an app there, and a client that is the app."""

    def __init__(self, hub: GitHub) -> None:
        self.hub = hub
        self.repository: FakeGitHubRepository = hub.repository("acme/rocket", {"a.txt": "1\n"})
        app = hub.app()
        self.installation: FakeGitHubInstallation = hub.install(app, "acme")
        section = {"server": hub.url, "app_id": str(app.id), "app_key": "/key"}
        self.account: GitHubAccount = account("hub", section, hub.keys[app.id])
        self.clients: list[GitHubClient] = []

    def client(self, account: GitHubAccount | None = None) -> tuple[GitHubClient, Tokens]:
        client = GitHubClient(account or self.account, forge_http, self.hub.world.clock.now_s)
        self.clients.append(client)
        return client, Tokens(client, self.hub.world.clock.now_s)

    def key(self) -> str:
        return f"installation {self.installation.id}"


@pytest.fixture
async def ground(hub: GitHub) -> AsyncIterator[Ground]:
    found = Ground(hub)
    yield found
    for client in found.clients:
        await client.close()


async def test_a_token_is_requested_once_and_renewed_before_its_end(ground: Ground) -> None:
    client, tokens = ground.client()
    first = await tokens.of("acme/rocket")
    assert await tokens.of("acme/rocket") == first
    assert client.calls["rest"] == 2  # the installation, and its token
    ground.hub.world.clock.advance(3600 - 299)
    assert (await tokens.of("acme/rocket")).token != first.token
    assert client.calls["rest"] == 3
    assert await tokens.us() == ("headgate", "headgate[bot]")


async def test_many_who_need_a_token_share_one(ground: Ground) -> None:
    client, tokens = ground.client()
    found = await asyncio.gather(*(tokens.of("acme/rocket") for _ in range(20)))
    assert len(set(found)) == 1
    assert client.calls["rest"] == 2


async def test_where_the_app_is_not_installed_says_so(ground: Ground) -> None:
    ground.hub.repository("eve/other", {"a": "1"})
    client, tokens = ground.client()
    for _ in range(3):
        with pytest.raises(GitHubAppNotInstalled, match="is not installed at eve/other"):
            await tokens.of("eve/other")
    assert client.calls["rest"] == 1  # it is not requested again and again


async def test_a_suspended_installation_says_so(ground: Ground) -> None:
    client, tokens = ground.client()
    key = await tokens.of("acme/rocket")
    ground.installation.suspended = True
    with pytest.raises(ForgeDenied, match="suspended"):
        await client.get(key, ROCKET)
    tokens.forget("acme/rocket")
    with pytest.raises(GitHubAppNotInstalled, match="suspended"):
        await tokens.of("acme/rocket")
    ground.installation.suspended = False
    assert (await client.get(await tokens.of("acme/rocket"), ROCKET)).status == 200


async def test_a_key_of_another_app_says_so(ground: Ground) -> None:
    other = ground.hub.keys[ground.hub.app("other").id]
    _, tokens = ground.client(replace(ground.account, app_key=other))
    with pytest.raises(GitHubAppNotInstalled, match="app_key"):
        await tokens.of("acme/rocket")


async def test_a_personal_token_works_without_an_app(ground: Ground) -> None:
    ground.hub.person("ada", acme__rocket="write")
    _, tokens = ground.client(GitHubAccount("hub", ground.hub.url, api_token=ground.hub.token("ada")))
    assert (await tokens.of("acme/rocket")).token.startswith("ghp_")
    assert await tokens.us() == ("ada",)


async def test_an_unchanged_answer_costs_nothing_of_the_budget(ground: Ground) -> None:
    client, tokens = ground.client()
    key = await tokens.of("acme/rocket")
    first = await client.get(key, ROCKET)
    left = client.budget(key).remaining
    again = await client.get(key, ROCKET)
    assert again.content == first.content
    assert (client.calls["unchanged"], client.budget(key).remaining) == (1, left)
    ground.repository.allow_squash_merge = False
    assert (await client.get(key, ROCKET)).content["allow_squash_merge"] is False


@pytest.mark.long
async def test_all_pages_of_a_list_are_read(ground: Ground) -> None:
    ada = ground.hub.person("ada", acme__rocket="write")
    ada.propose(ground.repository, "topic", {f"f{n}": "" for n in range(201)})
    client, tokens = ground.client()
    key = await tokens.of("acme/rocket")
    pages = [len(page) async for page in client.pages(key, f"{ROCKET}/pulls/1/files")]
    assert pages == [100, 100, 1]
    assert [len(page) async for page in client.pages(key, f"{ROCKET}/pulls/1/files")] == [100, 100, 1]
    assert client.calls["unchanged"] == 3


async def test_limits_are_obeyed_without_asking(ground: Ground) -> None:
    """After GitHub asks for a pause, no part of the process sends a request until then."""
    client, tokens = ground.client()
    key = await tokens.of("acme/rocket")
    ground.hub.limits.punish(ground.key(), 30)
    with pytest.raises(ReporterAway, match="secondary rate limit") as away:
        await client.get(key, ROCKET)
    assert away.value.wait_s == 31
    count = len(ground.hub.server.log)
    with pytest.raises(ReporterAway) as away:
        await client.write("POST", key, f"{ROCKET}/issues/1/comments", {"body": "x"})
    assert 0 < away.value.wait_s <= 31
    assert len(ground.hub.server.log) == count
    ground.hub.world.clock.advance(32)
    assert (await client.get(key, ROCKET)).status == 200
    ground.hub.limits.punish(ground.key(), 30, retry_after=False)
    with pytest.raises(ReporterAway) as away:
        await client.get(key, ROCKET)
    assert away.value.wait_s == 60


@pytest.mark.long
async def test_the_primary_limit_is_waited_for_to_its_end(ground: Ground) -> None:
    client, tokens = ground.client()
    key = await tokens.of("acme/rocket")
    ground.hub.limits.exhaust(ground.key())
    with pytest.raises(ReporterAway) as away:
        await client.get(key, ROCKET)
    assert 3500 < away.value.wait_s < 3700
    ground.hub.limits.exhaust(ground.key(), "graphql")
    with pytest.raises(ReporterAway) as away:
        await client.query(key, "{ rateLimit { cost } }")
    assert 3500 < away.value.wait_s < 3700


async def test_calls_without_urgency_leave_a_tenth_of_the_budget(ground: Ground) -> None:
    client, tokens = ground.client()
    key = await tokens.of("acme/rocket")
    ground.hub.limits.of(ground.key(), "core").used = 4600
    await client.get(key, ROCKET, urgent=False)
    with pytest.raises(ReporterAway):
        await client.get(key, ROCKET, urgent=False)
    assert (await client.get(key, ROCKET)).status == 200


async def test_two_processes_learn_of_each_others_calls_from_the_answers_of_github(ground: Ground) -> None:
    one, tokens = ground.client()
    other, others = ground.client()
    mine, theirs = await tokens.of("acme/rocket"), await others.of("acme/rocket")
    for n in range(10):
        await one.get(mine, f"{ROCKET}/pulls", {"page": n + 1})
    await other.get(theirs, ROCKET)
    assert other.budget(theirs).remaining == one.budget(mine).remaining - 1


async def test_renamed_repositories_are_followed_on_the_host_alone(ground: Ground) -> None:
    client, tokens = ground.client()
    key = await tokens.of("acme/rocket")
    ground.hub.rename(ground.repository, "moon")
    assert (await client.get(key, ROCKET)).content["full_name"] == "acme/moon"


async def test_each_kind_of_error_of_github_has_its_own_type(ground: Ground) -> None:
    client, tokens = ground.client()
    key = await tokens.of("acme/rocket")
    ground.hub.fail("GET", status=502)
    with pytest.raises(ReporterAway, match="502"):
        await client.get(key, ROCKET)
    with pytest.raises(NotThere):
        await client.get(key, "/repos/acme/nothing")
    with pytest.raises(Rejected, match="No commit found"):
        await client.write("POST", key, f"{ROCKET}/statuses/{'0' * 40}", {"state": "success"})
    with pytest.raises(ForgeDenied, match="Bad credentials"):
        await client.get(ForgeKey("nobody", "wrong"), ROCKET)
    with pytest.raises(Rejected, match="doesn't exist"):
        await client.query(key, "{ nothing }")
    ground.hub.server.wrong.clear()  # that query does not exist
    closed = GitHubClient(GitHubAccount("hub", "http://127.0.0.1:1"), forge_http)
    ground.clients.append(closed)
    with pytest.raises(ReporterAway):
        await closed.get(key, ROCKET)


def test_settings_that_cannot_be() -> None:
    for settings, why in [
        ({"server": "https://github.example.com/x"}, "not a host name"),
        ({"server": "http://github.example.com"}, "allowed only for this machine"),
        ({"app_id": "1"}, "set both"),
        ({"app_id": "x", "app_key": "/k"}, "not a number"),
        ({"app_id": "1", "app_key": "/k"}, "not a private key"),
    ]:
        with pytest.raises(UserError, match=why):
            account("hub", settings, "")
    public = account("hub", {})
    assert (public.api, public.graphql) == ("https://api.github.com", "https://api.github.com/graphql")
    own = account("hub", {"server": "github.example.com"})
    assert (own.api, own.graphql) == ("https://github.example.com/api/v3", "https://github.example.com/api/graphql")
    assert own.canonical("acme/rocket") == "github.example.com/acme/rocket"
