"""Provide a GitLab for each test, with a driver that polls it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from headgate.testing.forges.gitlab.people import gitlab
from tests.integration.gitlab.ground import Ground, ground


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Ground]:
    """Provide it; at the end, the stand-in must have understood every request."""
    async with gitlab(tmp_path / "gitlab") as hub, ground(hub, tmp_path) as found:
        yield found
    assert found.hub.server.wrong == []
