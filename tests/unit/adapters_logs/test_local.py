"""Test the logs on an executor's own disk: how long their files stay open."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from headgate.adapters.logs.local import LocalLogs
from tests.unit.adapters_logs.threads import Slow


async def test_a_log_is_open_until_no_thread_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs, slow = LocalLogs(tmp_path), Slow()
    assert logs.hold("b", new=True)
    (tmp_path / "b/log").write_text("1")
    monkeypatch.setattr("headgate.adapters.logs.local._full", slow.use)
    await slow.cancelled(asyncio.ensure_future(anext(logs.pieces("b", "log"))))
    logs.release("b")
