"""Test that the pages about extensions count the files to touch, name real ones, and a toy that works."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "headgate"
ADD = ROOT / "docs" / "how-to" / "add"
PAGES = sorted(page for page in ADD.glob("*.md") if page.name != "README.md")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_counts_the_files_to_touch_and_they_exist(page: Path) -> None:
    text = page.read_text()
    files = re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE)
    (count,) = re.findall(r"^\*\*(\d+) files?\.\*\*", text, re.MULTILINE)
    assert int(count) == len(files), files
    existing = [ROOT / file if "NAME" not in file else (ROOT / file.partition("NAME")[0]).parent for file in files]
    assert not [file for file in existing if not file.exists()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_module_that_a_page_names_exists(page: Path) -> None:
    """A path that does not begin at the root of the repository is below `src/headgate`, as the index says."""
    named = re.findall(r"`([a-z_]+/[\w/]+\.(?:py|yaml))`", page.read_text())
    places = [file for file in named if "NAME" not in file]
    assert places and not [file for file in places if not any((top / file).exists() for top in (ROOT, SOURCE))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_names_a_toy_that_is_tested(page: Path) -> None:
    toy = page.read_text().partition("## A toy that works")[2]
    files = re.findall(r"`(tests/[^`]+\.py)`", toy)
    assert any("/test_" in file for file in files) and not [file for file in files if not (ROOT / file).exists()]


def test_the_index_has_every_page_with_its_count() -> None:
    rows = re.findall(r"^\| \[[^]]+\]\(([^)]+)\) \| (\d+) \|", (ADD / "README.md").read_text(), re.MULTILINE)
    counts = [(page.name, re.findall(r"^\*\*(\d+) files?\.\*\*", page.read_text(), re.MULTILINE)[0]) for page in PAGES]
    assert sorted(rows) == counts
