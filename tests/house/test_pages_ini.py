"""Test that settings in the documentation can be copied unchanged."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```ini\n(.*?)^```", re.MULTILINE | re.DOTALL)


def test_no_value_in_the_documentation_ends_in_a_comment() -> None:
    """The rest of a line is the value: `port = 9000 # ours` is not a number. Files of workers allow comments after
    `;`."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    blocks = [
        (page.name, text) for page in pages for text in BLOCK.findall(page.read_text()) if "[qdo-worker]" not in text
    ]
    assert len(blocks) > 20
    assert not [(page, line) for page, text in blocks for line in re.findall(r"^\w.*=.*[ ][#;].*", text, re.MULTILINE)]
