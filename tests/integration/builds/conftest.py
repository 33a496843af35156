"""End everything that benches started."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from .bench import Bench


@pytest.fixture(autouse=True)
async def benches() -> AsyncIterator[None]:
    yield
    while Bench.opened:
        await Bench.opened.pop().runner.close()
