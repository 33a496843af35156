"""A GitHub for each test, held to GitHub's own description."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from headgate.testing.forges.github.people import GitHub, github
from tests.integration.github.description import judge, judge_hook


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[GitHub]:
    """Provide it; at the end nothing was asked, answered or delivered that GitHub would not."""
    async with github(tmp_path / "github") as found:
        found.server.judge, found.mail.judge = judge, judge_hook
        yield found
    assert found.server.wrong == [] == found.mail.wrong
