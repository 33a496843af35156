"""Provide Chromium with the timeouts of other tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

from playwright import async_api, sync_api

from headgate.testing.clock import DEADLINE_S

DEADLINE_MS = DEADLINE_S * 1000
CHROMIUM: dict[str, Any] = {
    "executable_path": str(Path(__file__).with_name("chromium.py")),
    "args": ["--no-sandbox"],
    "timeout": DEADLINE_MS,
}
"""Its command-line options."""
P = TypeVar("P", sync_api.Page, async_api.Page)

sync_api.expect.set_options(timeout=DEADLINE_MS)
async_api.expect.set_options(timeout=DEADLINE_MS)


def patient(page: P) -> P:
    """Return the page; elements that do not exist yet are awaited."""
    page.set_default_timeout(DEADLINE_MS)
    return page
