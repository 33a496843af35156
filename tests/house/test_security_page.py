"""Test that the table of attacks and the hostile tests name each other."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
HOSTILE = ROOT / "tests" / "hostile"


@cache
def played() -> frozenset[str]:
    """Find the tests, as the page names them."""
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    return frozenset(
        f"{file.relative_to(HOSTILE)}::{node.name}"
        for file in HOSTILE.rglob("test_*.py")
        for node in ast.parse(file.read_text()).body
        if isinstance(node, kinds) and node.name.startswith("test_")
    )


def rows() -> list[list[str]]:
    """Find the rows of the tables of attacks."""
    page = (ROOT / "docs" / "security.md").read_text().partition("\n## The attacks\n")[2].partition("\n## ")[0]
    lines = [line for line in page.splitlines() if line.startswith("|") and not line.startswith("|---")]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return [row for row in cells if row[0] != "who"]


def test_every_row_has_five_cells_and_names_tests_that_exist() -> None:
    assert rows()
    for row in rows():
        assert len(row) == 5, row
        named = re.findall(r"`(test_\S+?::test_\w+)`", row[4])
        assert named and set(named) <= played(), row


def test_every_hostile_test_has_a_row() -> None:
    named = {name for row in rows() for name in re.findall(r"`(test_\S+?::test_\w+)`", row[-1])}
    assert not sorted(played() - named)
