"""Provide a GitHub for each test, checked against GitHub's own description."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from headgate.testing.forges.github.people import GitHub, github
from tests.integration.github.description import judge, judge_hook


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[GitHub]:
    """Provide it; at the end, every request, answer and delivery must be one of GitHub's."""
    async with github(tmp_path / "github") as found:
        found.server.judge, found.mail.judge = judge, judge_hook
        yield found
    assert found.server.wrong == [] == found.mail.wrong
