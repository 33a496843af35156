"""Test that each pipeline has one check run, with simultaneous reports and with many runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

from headgate.adapters.forges.github.client import GitHubAccount, GitHubClient, Tokens
from headgate.adapters.forges.github.reporter import GitHubTeller
from headgate.adapters.forges.rest import ForgeKey, ForgeResponse, Rejected
from headgate.gate.state.change import Change
from headgate.map.outbox import QueueReport
from headgate.testing.clock import DEADLINE_S
from tests.waiting import nothing_happens, until

KEY, REPO = ForgeKey("us", ""), "/repos/acme/rocket"
CHANGE = Change("hub", "github.com/acme/rocket", "main", commit="c" * 40, ref="refs/pull/1/head", number="1")
REPORT = QueueReport(
    v=1, kind="report", id="r", at_ms=1, tenant="acme", pipeline="gate", project=CHANGE.project, branch="main",
    change="1,c", commit=CHANGE.commit, item="i", report="start", message="", root="", buildset="b",
)  # fmt: skip


class Client:
    """Accept writes, each of which waits until a test lets it continue."""

    def __init__(self, *pages: list[dict[str, Any]]) -> None:
        self.account = GitHubAccount("hub", "https://github.com", app_id="7")
        self.found = pages
        self.writes: list[str] = []
        self.going = [asyncio.Event() for _ in range(3)]

    async def pages(self, _key: ForgeKey, _path: str, query: dict[str, int]) -> AsyncIterator[Any]:
        assert query == {"app_id": 7}
        for page in self.found:
            yield {"check_runs": page}

    async def write(self, method: str, _key: ForgeKey, path: str, _content: Any) -> ForgeResponse:
        self.writes.append(f"{method} {path.removeprefix(REPO)}")
        number = len(self.writes)
        await self.going[number - 1].wait()
        if number == 1 and not self.found:
            raise Rejected(422, "not now")
        return ForgeResponse(201, {"id": number}, {})

    def teller(self) -> GitHubTeller:
        return GitHubTeller(cast(GitHubClient, self), cast(Tokens, None))


def reported(teller: GitHubTeller) -> asyncio.Future[str]:
    return asyncio.ensure_future(teller._check(KEY, REPO, CHANGE, REPORT, "acme/gate", "in_progress"))


async def test_simultaneous_reports_create_one_check_run() -> None:
    client = Client()
    teller = client.teller()
    async with asyncio.timeout(DEADLINE_S):
        first, second = reported(teller), reported(teller)
        await until("the first writes", lambda: len(client.writes) == 1)
        client.going[0].set()
        assert "not now" in await first
        await until("the second writes", lambda: len(client.writes) == 2)
        third = reported(teller)
        await nothing_happens(lambda: len(client.writes) > 2, 0.1)  # the third waits for the second
        for gate in client.going:
            gate.set()
        assert (await second, await third) == ("", "")
    assert client.writes == ["POST /check-runs", "POST /check-runs", "PATCH /check-runs/2"]


async def test_a_check_run_is_found_behind_a_hundred_others() -> None:
    others = [{"id": n + 10, "name": f"other/{n}", "status": "completed"} for n in range(100)]
    client = Client(others, [{"id": 5, "name": "acme/gate", "status": "in_progress"}])
    for gate in client.going:
        gate.set()
    assert await reported(client.teller()) == ""
    assert client.writes == ["PATCH /check-runs/5"]
