"""Commits byte by byte, and what git says of conflicts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headgate.adapters.git.objects.commits import IDENTITY, commit, identity, original, retold
from headgate.adapters.git.objects.conflicts import SHOWN_MAX, conflicts

OURS, THEIRS = "1" * 40, "2" * 40
AUTHOR = b"Zo\xeb <zoe@example.org> 1700000000 +0200"


def conflict(kind: str, *paths: str) -> list[str]:
    return [str(len(paths)), *paths, f"CONFLICT ({kind})", f"CONFLICT ({kind}): in words\n"]


@given(st.binary(min_size=1).filter(lambda m: b"\0" not in m), st.sampled_from([b"", b"latin-1"]))
def test_what_is_kept_of_a_commit_is_the_same_byte_by_byte(message: bytes, encoding: bytes) -> None:
    extra = b"encoding " + encoding + b"\n" if encoding else b""
    signed = b"gpgsig -----BEGIN-----\n author nobody\n -----END-----\n"
    raw = b"tree x\nparent y\nauthor " + AUTHOR + b"\ncommitter z\n" + signed + extra + b"\n" + message
    kept = original(raw)
    assert (kept.author, kept.encoding, kept.message) == (AUTHOR, encoding, message)
    assert original(commit("t", ("p",), kept, 7)) == kept


def test_a_message_of_ours_is_utf_8_and_so_is_the_author_then() -> None:
    told = retold(original(b"author " + AUTHOR + b"\nencoding latin-1\n\nold"), "grün")
    assert told.author.decode() == "Zoë <zoe@example.org> 1700000000 +0200"
    assert (told.encoding, told.message.decode()) == (b"", "grün")
    assert retold(original(b"author " + AUTHOR + b"\nencoding klingon\n\nold"), "x").author == AUTHOR


def test_files_in_conflict_are_named_once_with_the_kind() -> None:
    fields = ["b", "a", "", "1", "a", "Auto-merging", "Auto-merging a\n", *conflict("contents", "a")]
    fields += conflict("modify/delete", "b")
    assert conflicts(fields, (OURS, THEIRS)) == "a, b (modify/delete)"


def test_a_file_that_had_to_make_way_goes_by_its_own_name() -> None:
    fields = ["d", f"d~{THEIRS}", f"e~{OURS}_0", "", *conflict("file/directory", f"d~{THEIRS}", "d")]
    assert conflicts(fields, (OURS, THEIRS)) == "d (file/directory), e"


def test_of_very_many_files_the_number_is_said() -> None:
    fields = [f"f{n:03}" for n in range(SHOWN_MAX + 7)]
    assert conflicts(fields, (OURS, THEIRS)).endswith(f"f{SHOWN_MAX - 1:03} and 7 more")


def test_who_makes_the_commits_is_as_git_takes_it() -> None:
    assert identity("Grün Gate", "gate@example.org") == "Grün Gate <gate@example.org>".encode()
    assert identity("A <b>\nauthor evil", "x@y>") == b"A bauthor evil <x@y>"
    assert identity("", "x@y") == identity("\n", "") == IDENTITY
    made = commit("t", (), original(b"author " + AUTHOR + b"\n\nold"), 7, b"Gate <g@e>")
    assert b"\ncommitter Gate <g@e> 7 +0000\n" in made and b"\nauthor " + AUTHOR in made
