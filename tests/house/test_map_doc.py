"""The reference page of the map is what the declarations say."""

from pathlib import Path

from headgate.map.page import page

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "map.md"


def test_the_page_is_not_stale():
    assert PAGE.read_text() == page(), "write it anew: python -m headgate.map > docs/reference/map.md"
