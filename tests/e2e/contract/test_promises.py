"""Test that the table of promises names the tests that check them, and every test that uses a machine."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs/how-to/write-jobs.md"
KINDS_OF = {"stage": {0, 1, 2}, "far": {1}, "contained": {2}}
"""Fixture -> the columns that it covers: the executor, ssh, a container."""


def rows() -> Iterator[tuple[list[str], list[str]]]:
    """Return the cells of each row, and its tests."""
    table = PAGE.read_text().split("### What works on which machine")[1].split("###")[0]
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and "::" in cells[-1]:
            yield cells[1:-1], [name.strip(" `") for name in cells[-1].split(",")]


def tried() -> dict[str, tuple[set[int], bool]]:
    """Return test -> the kinds of machines that it runs on, and whether it distinguishes them."""
    found = {}
    for file in Path(__file__).parent.glob("test_*.py"):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.AsyncFunctionDef) and node.name.startswith("test_"):
                kinds = {kind for one in node.args.args for kind in KINDS_OF.get(one.arg, ())}
                attributes = {one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute)}
                if kinds:
                    found[f"{file.name}::{node.name}"] = kinds, bool(attributes & {"is_here", "is_far", "images"})
    return found


def test_every_promise_is_tested_where_it_applies_and_nowhere_else() -> None:
    known, named = tried(), list(rows())
    assert {test for _, those in named for test in those} == known.keys()
    for cells, those in named:
        assert len(cells) == 3 and all(cell == "holds" or cell.startswith("differs: ") for cell in cells), cells
        for kind, cell in enumerate(cells):
            there = [test for test in those if kind in known[test][0]]
            if cell == "holds":
                assert there, f"nothing tries it on kind {kind}: {those}"
            else:
                assert all(known[test][1] or kind not in known[test][0] or len(those) > 1 for test in those), those
