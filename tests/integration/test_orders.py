"""Test temporary states that people set: over the API, with real pushes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from headgate.adapters.git.engine import GitEngine
from headgate.gate.state.works import LandRequest, MergerAnswer, MergerWork
from headgate.services.merger import Merger
from headgate.services.orders import state_of
from headgate.store.memory import MemoryBackend
from headgate.store.types import Put
from headgate.testing.clock import DEADLINE_S
from headgate.testing.gate import Gate, gate
from headgate.testing.repositories import Repositories
from headgate.web.access import Access
from tests.site import client_of, site_beside
from tests.waiting import wait_for

from .conftest import TENANTS

TENANT = "/api/tenant/example"
TOKEN = {"Authorization": "Bearer secret"}
GATE = {"pipeline": "gate", "reason": "the release is cut"}


@pytest.fixture
async def running(tmp_path: Path, repositories: Repositories) -> AsyncIterator[Gate]:
    async with gate(tmp_path, repositories.hub, MemoryBackend(), TENANTS) as found:
        yield found


class Client:
    """Call the API with the operator's token."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http

    async def asks(self, verb: str, body: dict[str, Any], status: int = 200) -> Any:
        answer = await self.http.post(f"{TENANT}/{verb}", json=body, headers=TOKEN)
        assert answer.status_code == status, answer.text
        return answer.json() if answer.content else None

    async def status(self) -> dict[str, Any]:
        found: dict[str, Any] = (await self.http.get(f"{TENANT}/status")).json()
        return found

    async def pipeline(self, name: str) -> dict[str, Any]:
        return next(p for p in (await self.status())["pipelines"] if p["name"] == name)

    async def item(self, running: Gate, phase: str) -> dict[str, Any]:
        """Return the head of the gate, once it is in this phase."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                seen = running.context.mirror.moves
                queues = (await self.pipeline("gate"))["change_queues"]
                found = [item for q in queues for head in q["heads"] for item in head]
                if found and found[0]["phase"] == phase:
                    return dict(found[0])
                await running.context.mirror.moved(seen)


@pytest.fixture
async def client(tmp_path: Path, running: Gate) -> AsyncIterator[Client]:
    async with site_beside(running, tmp_path, Access("secret")) as site, client_of(site) as found:
        yield Client(found)


async def approved(repositories: Repositories, topic: str) -> str:
    commit = await asyncio.to_thread(repositories.propose, "code/api", topic, {topic: "x\n"})
    await asyncio.to_thread(repositories.approve, "code/api", topic)
    return commit


async def noted(repositories: Repositories, commit: str, words: str) -> str:
    def note_with_words() -> str:
        note = repositories.note("code/api", commit)
        return note if words in note else ""

    found: str = await asyncio.to_thread(wait_for, words, note_with_words, 10)
    return found


async def shown(running: Gate, asks: Callable[[], Awaitable[Any]], holds: Callable[[Any], object]) -> None:
    """Repeat the request whenever anything changed, also during the answer, until it `holds`."""
    moves = running.context.mirror.moves
    while not holds(await asks()):
        await running.context.mirror.moved(moves)
        moves = running.context.mirror.moves


async def test_a_closed_gate_tests_and_reports_and_lands_once_it_is_opened(
    client: Client, running: Gate, repositories: Repositories
) -> None:
    head = repositories.head("code/api")
    assert await client.asks("close", GATE) == {"landing": []}
    commit = await approved(repositories, "one")
    await client.item(running, "passed; lands once its queue is opened again")
    note = await noted(repositories, commit, "All jobs passed. The change lands once the closing ends")
    assert "the pipeline gate was closed by token: the release is cut" in note
    shown = await client.pipeline("gate")
    assert shown["closed"] == "the pipeline gate was closed by token: the release is cut"
    (closing,) = (await client.status())["state"]["closings"]
    assert (closing["pipeline"], closing["reason"], closing["who"]) == ("gate", "the release is cut", "token")
    assert repositories.head("code/api") == head
    assert await client.asks("open", {"pipeline": "gate"}) is True
    assert (await running.history.result_of("one", "gate")).result == "SUCCESS"
    assert repositories.head("code/api") != head and (await client.pipeline("gate"))["closed"] == ""
    recorded = {(one.verb, one.subject, one.reason, one.who) for one in running.history.by_hand.values()}
    assert ("close", "the pipeline gate", "the release is cut", "token") in recorded


async def test_one_queue_is_closed(client: Client, running: Gate, repositories: Repositories) -> None:
    answer = await client.asks("close", {**GATE, "queue": "nowhere"}, 404)
    assert "gate has no queue 'nowhere'; it has" in answer["description"] and "integrated" in answer["description"]
    await client.asks("close", {**GATE, "queue": "integrated"})
    await approved(repositories, "one")
    await client.item(running, "passed; lands once its queue is opened again")
    answer = await client.asks("open", {"pipeline": "gate", "queue": "git.example/config"}, 409)
    assert answer["description"] == "queue git.example/config of gate is not closed"
    await client.asks("open", {"pipeline": "gate"})
    assert (await running.history.result_of("one", "gate")).result == "SUCCESS"


async def test_pipelines_and_queues_that_cannot_be_closed_or_opened_are_reported(client: Client) -> None:
    assert (
        "the pipeline does not land changes"
        in (await client.asks("close", {**GATE, "pipeline": "check"}, 409))["description"]
    )
    assert "has no pipeline 'nothing'" in (await client.asks("close", {"pipeline": "nothing"}, 404))["description"]
    assert (await client.asks("open", GATE, 409))["description"] == "the pipeline gate is not closed"
    await client.asks("close", GATE)
    answer = await client.asks("open", {"pipeline": "gate", "queue": "integrated"}, 409)
    assert (
        answer["description"]
        == "queue integrated of gate is not closed; the pipeline gate is closed: open that instead"
    )
    for verb in ("close", "open", "state"):
        answer = await client.http.post(f"{TENANT}/{verb}", json={} if verb == "state" else GATE)
        assert answer.status_code == 401


async def test_closing_waits_for_a_push_in_progress_and_nothing_lands_afterwards(
    client: Client, running: Gate, repositories: Repositories, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on, real = asyncio.Event(), asyncio.Event(), GitEngine.do

    async def slowly(engine: GitEngine, work: MergerWork) -> MergerAnswer:
        if isinstance(work, LandRequest):
            begun.set()
            await go_on.wait()
        return await real(engine, work)

    monkeypatch.setattr(GitEngine, "do", slowly)
    await approved(repositories, "one")
    async with asyncio.timeout(DEADLINE_S):
        await begun.wait()
    closing = asyncio.ensure_future(client.asks("close", GATE))
    async with asyncio.timeout(DEADLINE_S):
        while not state_of(running.context, "example").closings:
            await running.context.mirror.moved(running.context.mirror.moves)
    assert not closing.done()
    go_on.set()
    assert await closing == {"landing": []}
    assert repositories.show("code/api", "one") == "x"


async def test_a_landing_requested_while_the_gate_is_closed_is_not_pushed(
    client: Client, running: Gate, repositories: Repositories, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on, real = asyncio.Event(), asyncio.Event(), Merger._up_to_date

    async def slowly(merger: Merger, claim: Any, work: Any, *, again: bool) -> Any:
        if isinstance(work, LandRequest):
            begun.set()
            await go_on.wait()
        return await real(merger, claim, work, again=again)

    monkeypatch.setattr(Merger, "_up_to_date", slowly)
    head = repositories.head("code/api")
    await approved(repositories, "one")
    async with asyncio.timeout(DEADLINE_S):
        await begun.wait()
    closing = asyncio.ensure_future(client.asks("close", GATE))
    async with asyncio.timeout(DEADLINE_S):
        while not state_of(running.context, "example").closings:
            await running.context.mirror.moved(running.context.mirror.moves)
    go_on.set()
    assert await closing == {"landing": []}
    await client.item(running, "passed; lands once its queue is opened again")
    assert repositories.head("code/api") == head
    await client.asks("open", GATE)
    assert (await running.history.result_of("one", "gate")).result == "SUCCESS"


async def test_a_damaged_record_closes_all_queues_until_they_are_opened_again(
    client: Client, running: Gate, repositories: Repositories
) -> None:
    place = running.context.map.events.tenant("example").state
    await running.context.store.commit([], [Put(place.path, b"garbage")])
    await approved(repositories, "one")
    await client.item(running, "passed; lands once its queue is opened again")
    assert "the list of closings is damaged" in (await client.pipeline("gate"))["closed"]
    await client.asks("open", {"pipeline": "gate"})
    assert (await running.history.result_of("one", "gate")).result == "SUCCESS"


async def test_events_wait_while_a_tenant_is_paused(client: Client, running: Gate, repositories: Repositories) -> None:
    assert await client.asks("state", {"trigger_queue_paused": True, "reason": "moving house"}) is None
    state = (await client.status())["state"]
    assert (state["trigger_queue_paused"], state["reason"], state["info"]) == (True, "moving house", None)
    await asyncio.to_thread(repositories.propose, "code/api", "one", {"a": "x\n"})
    async with asyncio.timeout(DEADLINE_S):
        await shown(running, client.status, lambda status: status["trigger_event_queue"]["length"])
    assert running.runner.ran == []
    await client.asks("state", {"result_queue_paused": True, "trigger_queue_paused": False})
    state = (await client.status())["state"]
    assert (state["result_queue_paused"], state["trigger_queue_paused"], state["reason"]) == (True, False, None)
    async with asyncio.timeout(DEADLINE_S):
        await shown(running, partial(client.pipeline, "check"), lambda status: status["result_events"])
    assert running.runner.ran == [], "the answer of the merger is not taken up"
    await client.asks("state", {"result_queue_paused": False})
    assert (await running.history.result_of("one", "check")).result == "SUCCESS"


async def test_events_are_dropped_while_a_tenant_discards_them(
    client: Client, running: Gate, repositories: Repositories
) -> None:
    await client.asks("state", {"trigger_queue_discarding": True})
    await asyncio.to_thread(repositories.propose, "code/api", "one", {"a": "x\n"})
    await asyncio.to_thread(repositories.propose, "code/api", "two", {"b": "x\n"})
    cache = running.context.map.cache.connection("local").data.path
    async with asyncio.timeout(DEADLINE_S):
        while sum(b"refs/for" in e.value for e in running.context.mirror.under(cache)) < 2:
            await running.context.mirror.moved(running.context.mirror.moves)
        await shown(running, client.status, lambda status: not status["trigger_event_queue"]["length"])
    await client.asks("state", {"trigger_queue_discarding": False})
    await asyncio.to_thread(repositories.propose, "code/api", "three", {"c": "x\n"})
    assert (await running.history.result_of("three", "check")).result == "SUCCESS"
    assert [spec.change.topic for spec in running.runner.ran] == ["three"]
