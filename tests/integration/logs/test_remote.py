"""Test the client with which logs are read from the executors of other processes."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from headgate.cli.launch.retention import remote
from headgate.cli.settings import read
from headgate.services.context import Context


async def test_the_client_is_made_for_the_first_call_and_closed_with_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, real = list[httpx.AsyncClient](), httpx.AsyncClient

    def client(**options: Any) -> httpx.AsyncClient:
        made.append(real(**options))
        return made[-1]

    monkeypatch.setattr(httpx, "AsyncClient", client)
    (tmp_path / "headgate.conf").write_text("")
    async with AsyncExitStack() as stack:
        logs = remote(read(tmp_path / "headgate.conf"), cast(Context, None), stack)
        assert not made, "many processes call no executor"
        assert logs.client() is logs.client() is made[0] and not made[0].is_closed
    assert len(made) == 1 and made[0].is_closed
