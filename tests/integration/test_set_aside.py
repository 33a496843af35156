"""Test that a change that cannot be handled leaves alone, and no other change leaves with it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from headgate.gate.items import trial
from headgate.gate.state.model import Item
from headgate.store.memory import MemoryBackend
from headgate.testing.gate import gate
from headgate.testing.repositories import Repositories

from .conftest import TENANTS


async def test_an_item_that_is_set_aside_leaves_the_others_where_they_are(
    tmp_path: Path, repositories: Repositories, monkeypatch: pytest.MonkeyPatch
) -> None:
    freeze = trial.freeze

    def faulty(item: Item, *rest: Any) -> Item:
        if item.change.topic == "bad":
            raise RuntimeError("nobody thought of this")
        return freeze(item, *rest)

    monkeypatch.setattr(trial, "freeze", faulty)
    async with gate(tmp_path, repositories.hub, MemoryBackend(), TENANTS) as running:
        running.runner.hold = asyncio.Event()
        repositories.propose("code/api", "good", {"good": "x\n"})
        await running.runner.begun(1)
        repositories.propose("code/lib", "bad", {"bad": "x\n"})
        bad = await running.history.result_of("bad", "check")
        assert "Headgate cannot handle it" in bad.message
        running.runner.hold.set()
        good = await running.history.result_of("good", "check")
    assert good.result == "SUCCESS", good.message
