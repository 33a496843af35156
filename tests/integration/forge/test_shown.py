"""Test that the pages of a tenant show an unreachable forge and what waits for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.services import courier
from headgate.store.types import Delete
from tests.waiting import until

from .served import web
from .test_board import town


async def test_the_tenant_s_reports_say_why_a_forge_gets_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(courier, "PAUSE_FIRST_S", 0.02)
    async with town(tmp_path) as here, web(here, tmp_path) as client:
        here.board.away = "it is being upgraded"
        await here.proposed("Add a thing", {"thing": "1\n"})
        await until("it is asked", lambda: here.board.calls.count("report") > 1)
        (board,) = (await client.get("/api/tenant/example/reports")).json()["outboxes"]
        assert (board["connection"], board["problem"]) == ("board", "it is being upgraded") and board["waiting"] >= 1


@pytest.mark.long
@pytest.mark.parametrize("known", ["still", "no more"])
async def test_that_another_tree_landed_is_dealt_with_though_the_change_is_forgotten(
    tmp_path: Path, known: str
) -> None:
    async with town(tmp_path) as here, web(here, tmp_path) as client:
        pull = await here.proposed("Add a thing", {"thing": "1\n"})
        await here.checked(pull)
        here.board.meanwhile = {"code/api": "sneaked"}
        here.approved(pull)
        await here.landed(pull)
        await until("it is told", lambda: "ALARM" in pull.messages[-1])
        if known == "no more":
            del here.board.pulls[pull.key]
            context, place = here.gate.context, here.gate.context.map.cache.connection("board").cache
            gone = [Delete(entry.path) for entry in context.mirror.under(place.path)]
            await context.store.commit([], gone)
            await context.mirror.gone(gone[-1].path)
        body = {"pipeline": "gate", "change": f"{pull.number},{pull.head[:8]}"}
        headers = {"Authorization": "Bearer secret"}
        answer = await client.post("/api/tenant/example/project/code/api/dequeue", json=body, headers=headers)
        assert answer.status_code == 200, answer.text
        assert (await client.get("/api/tenant/example/status")).json()["problems"] == []
