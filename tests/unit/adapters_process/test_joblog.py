"""Test the log of a build with any output."""

from __future__ import annotations

import itertools
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.adapters.process.joblog import LINE_SIZE_MAX_BYTES, JobLog
from tests.tiers import share

COLOURS = re.compile(r"\x1b\[((?:[0-9]{1,3}(?:;[0-9]{1,3})*)?)m")
"""Find all sequences in a log that control a terminal."""
STAMP = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} \| ")


def written(pieces: Sequence[bytes], size_max_bytes: int = 1_000_000) -> str:
    with tempfile.TemporaryDirectory() as name:
        log = JobLog(Path(name, "log"), size_max_bytes=size_max_bytes)
        for piece in pieces:
            log.write(piece)
        log.close()
        return Path(name, "log").read_text()


def texts(pieces: Sequence[bytes], size_max_bytes: int = 1_000_000) -> list[str]:
    return [STAMP.sub("", line, count=1) for line in written(pieces, size_max_bytes).split("\n")[:-1]]


@settings(max_examples=share(60))
@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=6))
def test_how_output_is_cut_into_pieces_does_not_matter(output: bytes, cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(output)]
    pieces = [output[a:b] for a, b in itertools.pairwise(edges)]
    assert texts(pieces) == texts([output])


@settings(max_examples=share(60))
@given(
    st.binary(max_size=300)
    | st.lists(
        st.sampled_from([b"\x1b", b"[", b"3", b"1", b"8", b";", b"m", b"J", b"x", b"\r", b"\n", b"]", b"\x07"])
    ).map(b"".join)
)
def test_no_output_can_control_a_terminal_or_forge_a_line(output: bytes) -> None:
    lines = written([output]).split("\n")[:-1]
    assert len(lines) == len(output.removesuffix(b"\n").split(b"\n")) * bool(output)
    assert all(STAMP.match(line) for line in lines)
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f\x80-\x9f\u202a-\u202e]", COLOURS.sub("", "".join(lines)))
    assert all(len(parts) < 3 or parts[-2] == "" for parts in map(COLOURS.split, lines)), "colours end with their line"


@pytest.mark.parametrize(
    ("output", "text"),
    [
        (b"plain \xc3\xbc\n", "plain ü"),
        (b"\x1b[31mred\x1b[0m \x1b]0;title\x07done\n", "\x1b[31mred\x1b[m done"),
        (b"\x1b[1;38;5;200;48;2;1;2;3mlong\n", "\x1b[1;38;5;200;48;2;1;2;3mlong\x1b[m"),
        (b"\x1b[8mhidden\x1b[5;32;6m \x1b[38;5mleft\x1b[38;2;1;2;999;31m\x1b[99999m\n", "hidden\x1b[32m left\x1b[m"),
        (b"\x1b[31m10%\r\x1b[32m100%\n", "\x1b[32m100%\x1b[m"),
        (b"\x1b\x1b[2J[31mnot\x1b[?25l one\x9b31m\xc2\x9b31m\n", "[31mnot one\\x9b31m\\x9b31m"),
        (b"10%\r50%\r100%\n", "100%"),
        (b"dos\r\n", "dos"),
        (b"\xff\x00tab\there\n", "\\xff\\x00tab\there"),
        ("right \u202eto left\n".encode(), "right \\u202eto left"),
        (b"no end", "no end"),
    ],
)
def test_a_line_is_what_a_terminal_would_show(output: bytes, text: str) -> None:
    assert texts([output]) == [text]


def test_beyond_its_limit_only_our_own_lines_are_written(tmp_path: Path) -> None:
    log = JobLog(tmp_path / "log", size_max_bytes=500)
    for number in range(100):
        log.write(f"line {number}\n".encode())
    log.say("the end")
    log.close()
    lines = (tmp_path / "log").read_text().splitlines()
    assert "line 0" in lines[0] and lines[-1].endswith("| the end") and "has reached 0.0005 MB" in lines[-2]
    assert sum(len(line) + 1 for line in lines[:-2]) <= 500


def test_a_line_is_broken_that_nobody_could_read() -> None:
    found = texts([b"x" * (2 * LINE_SIZE_MAX_BYTES + 10)])
    assert [len(line) for line in found] == [LINE_SIZE_MAX_BYTES, LINE_SIZE_MAX_BYTES, 10]


def test_a_full_disk_is_raised() -> None:
    with pytest.raises(OSError, match="No space"):
        JobLog(Path("/dev/full"), size_max_bytes=100).say("x")


@pytest.mark.parametrize("before", range(-40, 40, 7))
def test_a_secret_is_found_where_a_long_line_is_broken(tmp_path: Path, before: int) -> None:
    log = JobLog(tmp_path / "log", size_max_bytes=10_000_000)
    log.censor.learn(["correct horse battery"])
    text = b"x" * (LINE_SIZE_MAX_BYTES + before) + b"correct horse battery" + b"y" * 2 * LINE_SIZE_MAX_BYTES
    for start in range(0, len(text), 1_000):
        log.write(text[start : start + 1_000])
    log.close()
    written = b"".join(line.partition(b" | ")[2] for line in (tmp_path / "log").read_bytes().splitlines())
    assert b"horse" not in written and log.censor.found and written.count(b"y") == 2 * LINE_SIZE_MAX_BYTES


def test_the_reason_of_a_failure_is_reported_even_if_the_log_is_full(tmp_path: Path) -> None:
    log = JobLog(tmp_path / "log", size_max_bytes=500)
    for one in (log.censor, log.excerpt.censor):
        one.learn(["correct horse battery"])
    for number in range(100):
        log.write(f"line {number}\n".encode())
    log.write(b"error: correct horse battery is wrong\n")
    log.excerpt.settle()
    log.close()
    assert log.excerpt.text().startswith("error: ") and "horse" not in log.excerpt.text()
    assert "is wrong" not in (tmp_path / "log").read_text() and not log.censor.found
