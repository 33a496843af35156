"""Test that generated files are up to date, and that generated code runs with the oldest supported protobuf."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from headgate.cli.main import COMMANDS
from headgate.cli.pages import docs
from headgate.cli.pages.exports import COMPLETIONS

ROOT = Path(__file__).parents[2]


def test_messages_need_no_newer_protobuf_than_required() -> None:
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    (oldest,) = [_numbers(one) for one in needed if one.startswith("protobuf")]
    made = [path.read_text() for path in ROOT.glob("src/**/*_pb2.py")]
    assert len(made) >= 3
    for text in made:
        found = re.search(r"# Protobuf Python Version: (\S+)", text)
        assert found is not None and _numbers(found[1]) <= oldest


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text))


def test_no_manual_page_of_a_removed_command_is_left() -> None:
    there = {str(path.relative_to(ROOT)) for path in (ROOT / docs.SHARED).rglob("*") if path.is_file()}
    assert there == docs.shared().keys() and len(there) > len(COMMANDS)


def test_the_wheel_has_manual_pages_and_completion_where_they_are_looked_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    shared = project["tool"]["hatch"]["build"]["targets"]["wheel"]["shared-data"]
    assert shared == {str(docs.SHARED): "share"}
    assert (ROOT / docs.SHARED / "man/man1/headgate-run.1").exists()
    assert all((ROOT / docs.SHARED / path).exists() for path in COMPLETIONS.values())
