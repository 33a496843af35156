"""Test that pictures in the documentation exist, and are small."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
BYTES_MAX = 60_000


def test_every_picture_is_shown_and_every_shown_picture_exists() -> None:
    shown = {
        (page.parent / path).resolve()
        for page in DOCS.rglob("*.md")
        for path in re.findall(r"!\[[^\]]+\]\(([^)]+)\)", page.read_text())
    }
    assert shown == set(DOCS.rglob("*.png")) and shown


def test_no_picture_is_large() -> None:
    assert not [path.name for path in DOCS.rglob("*.png") if path.stat().st_size > BYTES_MAX]
