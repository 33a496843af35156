"""Test the parsing of commits, and of git's messages about conflicts."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.adapters.git.command import EMPTY_TREE, MESSAGE_MAX_CHARS, printable
from headgate.adapters.git.objects import (
    IDENTITY,
    SHOWN_MAX,
    Original,
    commit,
    conflicts,
    decoded,
    identity,
    original,
    parts,
    with_message,
)
from headgate.testing.repositories import run_git
from tests.hostile.objects import put

OURS, THEIRS = "1" * 40, "2" * 40
AUTHOR = b"Zo\xeb <zoe@example.org> 1700000000 +0200"


def conflict(kind: str, *paths: str) -> list[str]:
    return [str(len(paths)), *paths, f"CONFLICT ({kind})", f"CONFLICT ({kind}): in words\n"]


@given(st.binary(min_size=1).filter(lambda m: b"\0" not in m), st.sampled_from([b"", b"latin-1"]))
def test_the_stored_part_of_a_commit_is_identical_byte_by_byte(message: bytes, encoding: bytes) -> None:
    extra = b"encoding " + encoding + b"\n" if encoding else b""
    signed = b"gpgsig -----BEGIN-----\n author nobody\n -----END-----\n"
    raw = b"tree x\nparent y\nauthor " + AUTHOR + b"\ncommitter z\n" + signed + extra + b"\n" + message
    stored = original(raw)
    assert (stored.author, stored.encoding, stored.message) == (AUTHOR, encoding, message)
    assert original(commit("t", ("p",), stored, 7)) == stored


def test_a_message_of_ours_is_utf_8_and_so_is_the_author_then() -> None:
    changed = with_message(original(b"author " + AUTHOR + b"\nencoding latin-1\n\nold"), "grün")
    assert changed.author.decode() == "Zoë <zoe@example.org> 1700000000 +0200"
    assert (changed.encoding, changed.message.decode()) == (b"", "grün")
    assert with_message(original(b"author " + AUTHOR + b"\nencoding klingon\n\nold"), "x").author == AUTHOR


def test_files_in_conflict_are_named_once_with_the_kind() -> None:
    fields = ["b", "a", "", "1", "a", "Auto-merging", "Auto-merging a\n", *conflict("contents", "a")]
    fields += conflict("modify/delete", "b")
    assert conflicts(fields, (OURS, THEIRS)) == "a, b (modify/delete)"


def test_a_file_that_had_to_make_way_goes_by_its_own_name() -> None:
    fields = ["d", f"d~{THEIRS}", f"e~{OURS}_0", "", *conflict("file/directory", f"d~{THEIRS}", "d")]
    assert conflicts(fields, (OURS, THEIRS)) == "d (file/directory), e"


def test_very_many_files_are_reported_as_a_number() -> None:
    fields = [f"f{n:03}" for n in range(SHOWN_MAX + 7)]
    assert conflicts(fields, (OURS, THEIRS)).endswith(f"f{SHOWN_MAX - 1:03} and 7 more")


def test_names_of_committers_are_written_as_git_accepts_them() -> None:
    assert identity("Grün Gate", "gate@example.org") == "Grün Gate <gate@example.org>".encode()
    assert identity("A <b>\nauthor evil", "x@y>") == b"A bauthor evil <x@y>"
    assert identity("", "x@y") == identity("\n", "") == IDENTITY
    made = commit("t", (), original(b"author " + AUTHOR + b"\n\nold"), 7, b"Gate <g@e>")
    assert b"\ncommitter Gate <g@e> 7 +0000\n" in made and b"\nauthor " + AUTHOR in made


@pytest.mark.parametrize(
    "encoding", ["utf-7", "undefined", "idna", "punycode", "zlib", "unicode_escape", "a\0b", "utf-16"]
)
def test_a_text_in_no_encoding_that_people_write_in_is_read_as_utf_8(encoding: str) -> None:
    stored = Original(b"", encoding.encode(), b"")
    assert decoded(stored, b"+2AA- gr\xfcn \\ud800") == "+2AA- gr�n \\ud800"


def test_a_text_in_an_encoding_that_people_write_in_is_read_so() -> None:
    for encoding in ("latin-1", "ISO-8859-15", "cp1252", "windows-1252"):
        assert decoded(Original(b"", encoding.encode(), b""), b"gr\xfcn") == "grün"
    assert decoded(Original(b"", b"koi8-r", b""), b"\xd1") == "я"


@pytest.mark.parametrize(
    ("who", "is_flawed"),
    [
        (b"Ada <ada@example.org> 1 +0000", False),
        (b" <> 0 -1200", False),
        (b"Ada Lovelace (she) <> 9223372036854775807 +9999", False),
        (b"<ada@example.org> 1 +0000", True),
        (b"Ada<ada@example.org> 1 +0000", True),
        (b"Ada <ada@example.org>1 +0000", True),
        (b"Ada <ada@example.org> 01 +0000", True),
        (b"Ada <ada@example.org> 9223372036854775808 +0000", True),
        (b"Ada <ada@example.org> 1 0000", True),
    ],
)
def test_an_author_is_valid_exactly_if_git_fsck_accepts_it(tmp_path: Path, who: bytes, is_flawed: bool) -> None:
    raw = b"tree " + EMPTY_TREE.encode() + b"\nauthor " + who + b"\ncommitter " + AUTHOR + b"\n\nx\n"
    assert bool(parts(raw).flaw) is is_flawed
    run_git("init", "-q", "--bare", at=tmp_path)
    put(tmp_path, "tree", b"")
    put(tmp_path, "commit", raw)
    assert is_flawed is bool(
        subprocess.run(["git", "-C", tmp_path, "fsck"], capture_output=True, check=False).returncode
    )


@pytest.mark.parametrize("raw", [b"", b"\0", b"author x\n\ny", b"tree x\n\ny", b"tree " + b"1" * 39])
def test_an_object_without_a_tree_is_not_a_commit(raw: bytes) -> None:
    with pytest.raises(ValueError, match="does not begin with its tree"):
        parts(raw)


def test_messages_of_git_are_short_and_printable() -> None:
    text = "remote: 10%\rremote: 100%\n\x1b]0;owned\x07\x9b31m \u202e\nfatal: no\r\n\0"
    assert printable(text) == "remote: 100%\n\ufffd]0;owned\ufffd\ufffd31m \ufffd\nfatal: no"
    assert len(printable("x" * 1_000_000)) < MESSAGE_MAX_CHARS + 10
    advice = "fatal: Could not read from remote repository.\n\nPlease make sure you have the correct access rights\n"
    assert (
        printable(f"Permission denied (publickey).\r\n{advice}and the repository exists.\n")
        == "Permission denied (publickey)."
    )
    assert "Could not read" in printable(f"{advice}and the repository exists.\n"), "when there is nothing else"
