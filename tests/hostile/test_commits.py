"""Test commits and trees that git would not write, as proposals: each is answered, and prevents no other landing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .arena import ATTACKER, Arena
from .objects import AUTHOR, based_on, commit_of, point, put, tree_of

HUGE_BYTES = 10 * 2**20


def flawed(bare: Path, head: str, tree: str) -> Iterator[tuple[str, str]]:
    """Topic and commit of changes that must be refused with a reason."""

    def by(author: bytes, **more: bytes) -> str:
        return put(bare, "commit", commit_of(tree, (head,), b"author " + author, **more))

    yield "nameless", by(b"<eve@example.org> 1700000000 +0000")
    yield "empty", by(b"")
    yield "angles", by(b"E<v>e <eve@example.org> 1700000000 +0000")
    yield "no-address", by(b"Eve 1700000000 +0000")
    yield "no-date", by(b"Eve <eve@example.org>")
    yield "words-for-a-date", by(b"Eve <eve@example.org> yesterday +0000")
    yield "negative", by(b"Eve <eve@example.org> -1 +0000")
    yield "huge-date", by(b"Eve <eve@example.org> 99999999999999999999999999 +0000")
    yield "beyond-64-bit", by(b"Eve <eve@example.org> 9223372036854775808 +0000")
    yield "far-zone", by(b"Eve <eve@example.org> 1700000000 +99999999")
    yield "no-zone", by(b"Eve <eve@example.org> 1700000000 ")
    yield "no-author", put(bare, "commit", commit_of(tree, (head,), b""))
    yield "no-committer", put(bare, "commit", commit_of(tree, (head,), committer=b""))
    yield "two-authors", put(bare, "commit", commit_of(tree, (head,), b"author " + AUTHOR + b"\nauthor " + AUTHOR))
    yield "nul", put(bare, "commit", commit_of(tree, (head,), message=b"Evil\0more\n"))
    yield "many-parents", put(bare, "commit", commit_of(tree, (head,) * 100_000))
    yield "a-blob", put(bare, "blob", b"I am no commit\n")
    yield "a-tree", tree
    tag = f"object {head}\ntype commit\ntag x\ntagger {AUTHOR.decode()}\n\nA tag\n"
    yield "a-tag", put(bare, "tag", tag.encode())
    inner = put(bare, "commit", commit_of(tree, (head,), b"author <>"))
    yield "beneath", put(bare, "commit", commit_of(tree, (inner,)))


def evil_trees(bare: Path, head: str) -> Iterator[tuple[str, str]]:
    """The same, for changes with invalid files."""
    blob, link = put(bare, "blob", b"x\n"), put(bare, "blob", b"/etc/passwd")
    below = put(bare, "tree", tree_of((b"100644", b"config", blob)))

    def having(*entries: tuple[bytes, bytes, str]) -> str:
        return put(bare, "commit", commit_of(put(bare, "tree", tree_of(*entries)), (head,)))

    for name in (b".git", b".GIT", b".gIt", b"git~1", b".git ", b".git.", b".git::$INDEX_ALLOCATION", b"..", b"."):
        yield f"tree-{name.hex()}", having((b"40000", name, below))
    yield "hfs", having((b"40000", ".g\u200cit".encode(), below))
    yield "slash", having((b"100644", b"../../escaped", blob))
    yield "twice", having((b"100644", b"x", blob), (b"120000", b"x", link))
    yield "link-and-directory", having((b"120000", b"x", link), (b"40000", b"x", below))
    yield "mode", having((b"10777777", b"x", blob))
    yield "device", having((b"060644", b"x", blob))
    yield "long", having((b"100644", b"n" * 300, blob))
    yield "linked-modules", having((b"120000", b".gitmodules", link))
    yield "directory-as-file", having((b"100644", b"x", below))
    bomb = below
    for _ in range(12):  # 10^12 files in a few hundred bytes
        bomb = put(bare, "tree", tree_of(*((b"40000", b"d%d" % n, bomb) for n in range(10))))
    yield "bomb", put(bare, "commit", commit_of(bomb, (head,)))
    deep = below
    for _ in range(3_000):
        deep = put(bare, "tree", tree_of((b"40000", b"d", deep)))
    yield "deep", put(bare, "commit", commit_of(deep, (head,)))


def buried(bare: Path, head: str, tree: str) -> Iterator[tuple[str, str]]:
    """Yield changes whose last commit is sound, and has invalid ones below it."""

    def above(commit: str) -> str:
        return put(bare, "commit", commit_of(tree, (commit,)))

    blob, link = put(bare, "blob", b"x\n"), put(bare, "blob", b"/etc/passwd")
    below = put(bare, "tree", tree_of((b"100644", b"config", blob)))
    for topic, entry in {
        "git": (b"40000", b".git", below),
        "git-of-windows": (b"40000", b"git~1", below),
        "up": (b"40000", b"..", below),
        "path": (b"100644", b"../../escaped", blob),
        "device": (b"060644", b"x", link),
    }.items():
        yield f"below-{topic}", above(put(bare, "commit", commit_of(put(bare, "tree", tree_of(entry)), (head,))))
        inside = put(bare, "tree", tree_of((b"40000", b"d", put(bare, "tree", tree_of(entry)))))
        yield f"inside-{topic}", above(put(bare, "commit", commit_of(inside, (head,))))
    commit = put(bare, "commit", commit_of(tree, (head,), b"author Eve <eve@example.org> yesterday +0000"))
    for _ in range(2_100):
        commit = above(commit)
    yield "deep-below", commit


def strange(bare: Path, head: str, tree: str) -> Iterator[tuple[str, str]]:
    """The same, for changes that are strange and may pass."""

    def saying(more: bytes = b"", message: bytes = b"Strange\n", author: bytes = AUTHOR) -> str:
        return put(bare, "commit", commit_of(tree, (head,), b"author " + author, more=more, message=message))

    for name in (b"utf-7", b"undefined", b"idna", b"zlib", b"unicode_escape", b"utf-16", b"klingon", b"x" * 10_000):
        yield f"as-{name[:20].decode()}", saying(b"encoding " + name, b"+2AA- \\ud800 gr\xfc\xdf \xff\xfe\n")
    yield (
        "not-utf-8",
        saying(message=b"\xff\xfe\xed\xa0\x80 \x1b]0;owned\x07\n", author=b"\xff <\xfe> 1700000000 +0000"),
    )
    yield "long-message", saying(message=b"word " * (HUGE_BYTES // 5))
    yield "junk", saying(b"gpgsig junk\n more\nmergetag object x\n y\nHG:extra z\n")
    yield "silent", saying(message=b"")
    yield "last-second", saying(author=b"Eve <eve@example.org> 9223372036854775807 +9999")
    modules = b'[submodule "x"]\n\tpath = x\n\turl = ext::sh -c touch% /tmp/owned\n\tupdate = !touch /tmp/owned\n'
    attributes = b"* filter=evil diff=evil merge=evil text eol=crlf working-tree-encoding=UTF-99 ident export-subst\n"
    entries = [
        (b"100644", b".gitattributes", put(bare, "blob", attributes)),
        (b"100644", b".gitmodules", put(bare, "blob", modules)),
        (b"100644", b"lfs", put(bare, "blob", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")),
        (b"160000", b"x", "1" * 40),
        (b"120000", b"y", put(bare, "blob", b"/etc/passwd")),
    ]
    yield "modules", put(bare, "commit", commit_of(put(bare, "tree", tree_of(*entries)), (head,)))


@pytest.fixture(scope="module")
def arena(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    with Arena(tmp_path_factory.mktemp("arena")) as made:
        yield made


@pytest.mark.long
def test_commits_that_git_would_not_write_are_refused_with_a_reason_and_block_nobody(arena: Arena) -> None:
    bare = arena.repositories.hub / ATTACKER
    head, tree = based_on(arena.repositories, ATTACKER)
    refused = dict([*flawed(bare, head, tree), *evil_trees(bare, head), *buried(bare, head, tree)])
    for topic, commit in refused.items():
        point(bare, f"refs/for/master/{topic}", commit)
    arena.neighbours_land()
    good = arena.propose(ATTACKER, "good", {"good": "x\n"})
    assert "Build succeeded" in arena.note_section(ATTACKER, good, "check")
    notes = {topic: arena.note_section(ATTACKER, commit, "check") for topic, commit in refused.items()}
    assert not [topic for topic, text in notes.items() if "cannot be merged into master" not in text], notes
    assert arena.repositories.head(ATTACKER) == head
    arena.neighbours_land()


@pytest.mark.long
def test_strange_but_valid_commits_are_tested(arena: Arena) -> None:
    bare = arena.repositories.hub / ATTACKER
    changes = dict(strange(bare, *based_on(arena.repositories, ATTACKER)))
    for topic, commit in changes.items():
        point(bare, f"refs/for/master/{topic}", commit)
    arena.neighbours_land()
    notes = {topic: arena.note_section(ATTACKER, commit, "check") for topic, commit in changes.items()}
    assert not [topic for topic, text in notes.items() if "Build succeeded" not in text], notes
    assert not Path("/tmp/owned").exists()
