"""Provide a Gitea for each test, checked against Gitea's own description."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from headgate.testing.forges.gitea.people import Gitea, gitea
from tests.integration.gitea.description import judge
from tests.integration.gitea.ground import Ground, ground


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[Gitea]:
    """Provide it; at the end, every request and answer must be one of Gitea's."""
    async with gitea(tmp_path / "gitea") as found:
        found.server.judge = judge
        yield found
    assert found.server.wrong == []


@pytest.fixture
async def here(hub: Gitea, tmp_path: Path) -> AsyncIterator[Ground]:
    """Provide a project there with a driver that polls it."""
    async with ground(hub, tmp_path) as found:
        yield found
