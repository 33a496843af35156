"""Provide a Pagure for each test, which accepts only forms that Pagure reads."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from headgate.testing.forges.pagure.people import Pagure, pagure
from tests.integration.pagure.ground import Ground, ground


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[Pagure]:
    """Provide it."""
    async with pagure(tmp_path / "pagure") as found:
        yield found
    assert found.server.wrong == []


@pytest.fixture
async def here(hub: Pagure, tmp_path: Path) -> AsyncIterator[Ground]:
    """Provide a project there with a driver that polls it."""
    async with ground(hub, tmp_path) as found:
        yield found
