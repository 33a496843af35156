"""Test files that only resemble an export: each is refused in words, before anything is written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from headgate.base.errors import UserError
from headgate.cli.store.store import command
from headgate.store.archive import LINE_MAX_BYTES

DEEP = 20_000


def entry(path: str, at: int = 1, **value: str) -> str:
    return json.dumps({"path": path, "at": at, **value})


FIRST = entry("/zuul/a", text="1")
FILES = {
    "a row that is nested too deeply": ['{"history":"builds","row":{"x":' + "[" * DEEP + "]" * DEEP + "}}"],
    "a log record that is nested too deeply": ['{"log":"a","record":' + "[" * DEEP + "]" * DEEP + "}"],
    "an unknown key that is nested too deeply": [FIRST[:-1] + ',"x":' + "[" * DEEP + "]" * DEEP + "}"],
    "a value that is not base64": [FIRST, entry("/zuul/b", 2, base64="!!!x")],
    "a value of half a character": [FIRST, entry("/zuul/b", 2, base64="A")],
    "an entry without a value": [FIRST, entry("/zuul/b", 2)],
    "an entry with two values": [FIRST, entry("/zuul/b", 2, text="1", base64="MQ==")],
    "a path that occurs twice": [FIRST, entry("/zuul/a", text="2")],
    "a path that occurs again later": [FIRST, entry("/zuul/a", 2, text="2")],
    "a value that no store accepts": [FIRST, entry("/zuul/b", 2, text="x" * 2_000_000)],
    "a path that no store accepts": [FIRST, entry("/zuul/" + "b" * 1_000_000, 2, text="x")],
    "a path that leads up": [FIRST, entry("/zuul/../b", 2, text="x")],
    "a path that moves the cursor": [FIRST, entry("/zuul/\x1b[2J", 2, text="x")],
}


def refused(directory: Path, content: bytes) -> str:
    """Import the content into an empty store, and return why that is refused. Nothing may have been written."""
    (directory / "file").write_bytes(content)
    store = ["--store", str(directory / "store.sqlite")]
    result = CliRunner().invoke(command, ["import", *store, str(directory / "file")])
    assert isinstance(result.exception, UserError), result.exception
    assert not (directory / "store.sqlite").exists()
    return str(result.exception)


@pytest.mark.parametrize("name", FILES)
def test_every_line_is_checked_before_the_first_is_written(name: str, tmp_path: Path) -> None:
    lines = FILES[name]
    kinds = [next(iter(json.loads(line[:20].partition(":")[0] + ":0}"))) for line in lines]
    tail = {"entries": kinds.count("path"), "rows": kinds.count("history"), "logs": kinds.count("log")}
    text = "\n".join(['{"headgate_export":3,"source":"x"}', *lines, json.dumps(tail, separators=(",", ":"))]) + "\n"
    why = refused(tmp_path, text.encode())
    assert f"file:{len(lines) + 1}: not a line of a Headgate export" in why and "\x1b" not in why


@pytest.mark.parametrize("version", [-1, 0, 4, 10**30])
def test_only_formats_that_exist_are_read(version: int, tmp_path: Path) -> None:
    refused(tmp_path, b'{"headgate_export":%d}\n{"entries":0}\n' % version)


def test_a_line_without_end_takes_bounded_memory(tmp_path: Path) -> None:
    with open(tmp_path / "endless", "wb") as file:
        file.write(b'{"headgate_export":3}\n{"path":"/a","at":1,"text":"')
        # The rest is a hole, which takes no disk.
        file.truncate(100 * LINE_MAX_BYTES)
    store = ["--store", str(tmp_path / "store.sqlite")]
    result = CliRunner().invoke(command, ["import", *store, str(tmp_path / "endless")])
    assert isinstance(result.exception, UserError) and "endless:2: not a line" in str(result.exception)
