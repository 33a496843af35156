"""People see that a forge is away, and what waits for it, where they look at their tenant."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.services.reporting import courier

from .served import web
from .test_board import town


async def test_the_tenant_s_reports_say_why_a_forge_is_not_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(courier, "PAUSE_FIRST_S", 0.02)
    async with town(tmp_path) as here, web(here, tmp_path) as client:
        here.board.away = "it is being upgraded"
        await here.proposed("Add a thing", {"thing": "1\n"})
        await here.until(lambda: here.board.calls.count("report") > 1, "it is asked")
        (board,) = (await client.get("/api/tenant/example/reports")).json()["outboxes"]
        assert (board["connection"], board["trouble"]) == ("board", "it is being upgraded") and board["waiting"] >= 1
