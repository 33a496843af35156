"""Test deliveries from the network: unsigned ones are refused, and signed ones are only hints."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from headgate.services.context import Context
from headgate.testing.clock import DEADLINE_S
from headgate.web.routes.hooks import BODY_MAX_BYTES, LARGE_MAX, SMALL_BYTES
from tests.integration.forge.board import Pull
from tests.integration.forge.served import web
from tests.integration.forge.test_board import Town, town
from tests.waiting import until

PAYLOAD = "/api/connection/board/payload"


async def deliver(client: httpx.AsyncClient, here: Town, pull: Pull) -> httpx.Response:
    headers, body = here.board.delivery(pull)
    return await client.post(PAYLOAD, content=body, headers=headers)


def waiting(context: Context) -> int:
    return context.map.events.connection("board").events.hints.stream.length(context.mirror)


@pytest.mark.long
async def test_a_forged_delivery_does_nothing_and_a_genuine_one_only_causes_a_poll(tmp_path: Path) -> None:
    async with town(tmp_path) as here, web(here, tmp_path) as client:
        pull = here.board.propose("code/api", "Add a thing", {"thing": "1\n"})
        headers, body = here.board.delivery(pull)
        looks = here.board.looks
        wrong = {"X-Board-Signature": "0" * 64}
        assert (await client.post(PAYLOAD, content=body)).status_code == 401
        assert (await client.post(PAYLOAD, content=body, headers=wrong)).status_code == 401
        assert (await client.post(PAYLOAD, content=body + b" ", headers=headers)).status_code == 401
        huge = await client.post(PAYLOAD, content=b"x" * (BODY_MAX_BYTES + 1), headers=headers)
        assert huge.status_code == 413
        assert (await client.post("/api/connection/local/payload", content=body)).status_code == 404
        assert (await client.post("/api/connection/%2e%2e%2fboard/payload", content=body)).status_code == 404
        assert here.board.looks == looks and waiting(here.gate.context) == 0
        for verb in ("GET", "HEAD", "PUT", "DELETE"):
            assert (await client.request(verb, PAYLOAD, headers=headers)).status_code == 405
        for kind in ("application/json", "application/x-www-form-urlencoded", "text/plain"):  # the same one again
            answer = await client.post(PAYLOAD, content=body, headers=headers | {"Content-Type": kind})
            assert answer.status_code == 200
        await here.checked(pull)
        await until("what was answered goes", lambda: waiting(here.gate.context) == 0)
        assert here.results("check") == ["SUCCESS"] and len(pull.messages) == 1


async def test_odd_deliveries_with_a_valid_signature_are_refused_or_have_no_effect(tmp_path: Path) -> None:
    async with town(tmp_path) as here, web(here, tmp_path) as client:
        pull = here.board.propose("code/api", "Add a thing", {"thing": "1\n"})
        for body, status in (
            (b"", 400),
            (b"[" * 100_000, 400),
            (b'{"project": 5}', 400),
            (json.dumps({"project": "code/api", "number": 0, "id": "x"}).encode(), 200),
            (json.dumps({"project": "../../etc", "number": 9, "id": "y"}).encode(), 200),
            (json.dumps({"project": "code/api", "number": 4711, "id": "z"}).encode(), 200),
        ):
            answer = await client.post(PAYLOAD, content=body, headers=here.board.signed(body))
            assert answer.status_code == status, body[:50]
        assert (await deliver(client, here, pull)).status_code == 200
        await here.checked(pull)
        await until("what was answered goes", lambda: waiting(here.gate.context) == 0)


async def test_large_deliveries_that_never_end_take_little_memory_and_keep_no_genuine_one_out(tmp_path: Path) -> None:
    """The sender of a delivery is verified only after all of it has arrived."""
    async with town(tmp_path) as here, web(here, tmp_path) as client:
        large, goes_on, begun = b"x" * (SMALL_BYTES + 1), asyncio.Event(), asyncio.Semaphore(0)

        async def slow() -> AsyncIterator[bytes]:
            yield large
            begun.release()  # the sent data was read, and more is expected
            await goes_on.wait()
            yield b"x"

        async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as group:
            held = [group.create_task(client.post(PAYLOAD, content=slow())) for _ in range(LARGE_MAX)]
            for _ in held:
                await begun.acquire()
            refused = await client.post(PAYLOAD, content=large)
            assert refused.status_code == 503 and "deliver it again" in refused.text
            pull = here.board.propose("code/api", "Add a thing", {"thing": "1\n"})
            assert (await deliver(client, here, pull)).status_code == 200
            goes_on.set()
        assert [one.result().status_code for one in held] == [401] * LARGE_MAX
        assert (await client.post(PAYLOAD, content=large)).status_code == 401, "there is room again"
