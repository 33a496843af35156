"""Generated code runs with the oldest protobuf we say we run with."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_messages_need_no_newer_protobuf_than_is_asked_for() -> None:
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    (oldest,) = [_numbers(one) for one in needed if one.startswith("protobuf")]
    made = [path.read_text() for path in ROOT.glob("src/**/*_pb2.py")]
    assert len(made) >= 3
    for text in made:
        found = re.search(r"# Protobuf Python Version: (\S+)", text)
        assert found is not None and _numbers(found[1]) <= oldest


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text))
