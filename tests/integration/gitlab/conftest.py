"""A GitLab for each test, with a driver that looks at it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from headgate.testing.forges.gitlab.people import gitlab
from tests.integration.gitlab.ground import Ground, ground


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Ground]:
    """Provide it; at the end nothing was asked that the stand-in could not make sense of."""
    async with gitlab(tmp_path / "gitlab") as hub, ground(hub, tmp_path) as found:
        yield found
    assert found.hub.server.wrong == []
