"""Read and write git objects: open packs, raw commits, trees, and the texts in them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pygit2
from pygit2.enums import FileMode

from headgate.adapters.git.command import GitImpossible
from headgate.config.budgets import BRANCH_MAX_BYTES, FILE_MAX_BYTES, FILES_MAX, sized
from headgate.config.files.source import unread

RENEWED_EVERY = 10
"""After this many changes of its packs, the repository is opened again."""
PACKS_OPEN_MAX = 200
"""Packs that this process keeps open, in all repositories together."""
IDENTITY = b"Headgate <headgate@localhost>"
DATE_MAX_S = 2**63 - 1
_TREE = re.compile(rb"tree [0-9a-f]{40}(?:[0-9a-f]{24})?")
_PARENT = re.compile(rb"parent [0-9a-f]{40}(?:[0-9a-f]{24})?")
_SIGNATURE = re.compile(rb"(?!<)[^<>\n]*(?<= )<[^<>\n]*> (0|[1-9][0-9]{0,18}) [+-][0-9]{4}")
"""Signature of a person, as git fsck checks it."""
_ENCODINGS = re.compile(
    r"utf-?8|us-ascii|ascii|latin-?\d+|iso-?8859-\d+|(cp|windows-)\d+|koi8-[rtu]|shift[-_]?jis|sjis|euc[-_](jp|kr)"
    r"|iso-2022-(jp|kr)|gb2312|gbk|gb18030|big5(-?hkscs)?|tis-620"
)
"""Encodings that are decoded; Python's other codecs do not decode text, fail in unusual ways, or are slow."""
TREE_MAX_BYTES = 128 * 2**20
"""Size above which a directory is not read. It has millions of entries, which need ten times that in memory, but only a
few megabytes in a push."""
WIDTH_MAX = 200_000
"""Limit on the entries of a directory that is compared."""
DIRECTORIES_MAX = 20_000
"""Maximum number of directories of two trees that are compared."""
ENTRIES_MAX = 100_000
"""Maximum number of entries of trees that are read for one branch."""
SHOWN_MAX = 50
"""Maximum number of files that a summary names; it counts further ones."""
_KIND = re.compile(r"CONFLICT \((.+)\)")


def bound_packs() -> None:
    """Make the library close the least recently used packs if there are more than `PACKS_OPEN_MAX` in this process."""
    if pygit2.settings.mwindow_file_limit != PACKS_OPEN_MAX:
        pygit2.settings.mwindow_file_limit = PACKS_OPEN_MAX


class Opened:
    """Open the library's view of one repository.

    The view keeps every pack open that it ever saw, even those that a repack has removed, and every fetch adds a
    pack. So the view is renewed now and then; the old one is closed with its last object.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._repository: pygit2.Repository | None = None
        self._packed_ns = self._changes = 0

    @property
    def repository(self) -> pygit2.Repository:
        """Return the open repository. Raise pygit2.GitError."""
        if self._repository is None:
            self._repository = pygit2.Repository(str(self._path))
        return self._repository

    def close(self) -> None:
        """Close the view; current readers continue with theirs."""
        old, self._repository, self._changes = self._repository, None, 0
        for name in ("branches", "references", "remotes", "submodules") if old is not None else ():
            delattr(old, name)  # reference cycles would keep the view open until the next garbage collection

    def renew(self) -> None:
        """Renew the view if that is due. Raise OSError."""
        packed_ns = (self._path / "objects/pack").stat().st_mtime_ns
        if packed_ns != self._packed_ns:
            self._packed_ns = packed_ns
            # Renewing the view at each change would reopen all packs for every fetch; never renewing it would keep
            # removed ones open.
            self._changes += 1
        if self._changes >= RENEWED_EVERY:
            self.close()


def identity(name: str, address: str) -> bytes:
    """Format an identity as in commits, without characters that git rejects; if nothing is left, return Headgate's."""
    clean = [re.sub(r"[<>\x00-\x1f]", "", text).strip() for text in (name, address)]
    return f"{clean[0]} <{clean[1]}>".encode(errors="replace") if all(clean) else IDENTITY


class Original(NamedTuple):
    """Hold the parts of a commit that its copies preserve."""

    author: bytes
    """Name, address and time of the author."""
    encoding: bytes
    """Encoding of the message and the author's name; empty means UTF-8."""
    message: bytes


class Parts(NamedTuple):
    """Hold the parts of a commit."""

    tree: str
    parents: tuple[str, ...]
    original: Original
    flaw: str
    """Why git itself would not have written the commit, as a message; empty if it would."""


def parts(raw: bytes) -> Parts:
    """Parse any commit whose tree and parents can be read. Raise ValueError."""
    lines = raw.partition(b"\n\n")[0].split(b"\n")
    if not _TREE.fullmatch(lines[0]):
        raise ValueError("it does not begin with its tree")
    last = next((n for n, line in enumerate(lines) if n and not _PARENT.fullmatch(line)), len(lines))
    rest = lines[last:]
    flaw = next((why for why in (_flaw(rest, 0, b"author "), _flaw(rest, 1, b"committer ")) if why), "")
    # For C programs such as git, the message ends at the NUL, so people would not review the stored text.
    if b"\0" in raw:
        flaw = "it contains a NUL"
    parents = tuple(line[7:].decode() for line in lines[1:last])
    return Parts(lines[0][5:].decode(), parents, original(raw), flaw)


def _flaw(lines: Sequence[bytes], at: int, word: bytes) -> str:
    line = lines[at] if at < len(lines) else b""
    if not line.startswith(word):
        return f"its {word.decode().strip()} is missing"
    found = _SIGNATURE.fullmatch(line[len(word) :])
    if found is None or int(found[1]) > DATE_MAX_S:
        return f"its {word.decode().strip()} is not a name, an address and a date: {line[len(word) :][:200]!r}"
    return ""


def original(raw: bytes) -> Original:
    head, _, message = raw.partition(b"\n\n")
    fields = dict(line.split(b" ", 1) for line in head.split(b"\n") if line.startswith((b"author ", b"encoding ")))
    return Original(fields.get(b"author", signature(0)), fields.get(b"encoding", b""), message)


def decoded(original: Original, raw: bytes) -> str:
    """Decode an author or message with the commit's encoding, if it is a common one; mark what cannot be decoded."""
    name = original.encoding.decode("ascii", errors="replace").strip().lower()
    try:
        found = raw.decode(name if _ENCODINGS.fullmatch(name) else "utf-8", errors="replace")
    except (LookupError, ValueError):
        found = raw.decode(errors="replace")
    # A codec may yield lone surrogates, which cannot be encoded as JSON.
    return found.encode(errors="replace").decode()


def with_message(original: Original, message: str) -> Original:
    """Return the same author with another message."""
    known = _ENCODINGS.fullmatch(original.encoding.decode(errors="replace").lower() or "utf-8")
    # Do not decode an unknown encoding: decoding with the wrong one would damage the name.
    author = decoded(original, original.author).encode() if known else original.author
    return Original(author, b"", message.encode(errors="replace"))


def signature(at_s: int, who: bytes = IDENTITY) -> bytes:
    return who + b" %d +0000" % at_s


def commit(tree: str, parents: Sequence[str], original: Original, at_s: int, who: bytes = IDENTITY) -> bytes:
    """Return the commit object, with Headgate or another identity as committer. The time is a parameter, so that the
    same input gives the same id."""
    lines = [b"tree " + tree.encode(), *(b"parent " + parent.encode() for parent in parents)]
    lines += [b"author " + original.author, b"committer " + signature(at_s, who)]
    lines += [b"encoding " + original.encoding] if original.encoding else []
    return b"\n".join(lines) + b"\n\n" + original.message


def too_wide(odb: pygit2.Odb, tree: pygit2.Oid | str) -> str:
    """Return why a directory is too large to be read; empty if it is not. Raise KeyError, pygit2.GitError."""
    # The header contains the size, so that nothing of the directory is read.
    _, size_bytes = odb.read_header(tree)
    if size_bytes <= TREE_MAX_BYTES:
        return ""
    return f"a directory takes {sized(size_bytes)}; at most {sized(TREE_MAX_BYTES)} are read"


def between(odb: pygit2.Odb, before: pygit2.Tree, after: pygit2.Tree) -> Iterator[str]:
    """Yield the paths of files, links and submodules that exist in only one tree or differ.

    If a directory occurs in several places, its files are yielded for each place.  Raise GitImpossible if more than
    `DIRECTORIES_MAX` directories differ, or if one of them has more than `WIDTH_MAX` entries.
    """
    waiting: list[tuple[bytes, pygit2.Tree | None, pygit2.Tree | None]] = [(b"", before, after)]
    looked = 0
    while waiting:
        looked += 1
        # A tree of a few kilobytes can name the same subtree a billion times (a `git bomb`).
        if looked > DIRECTORIES_MAX:
            raise GitImpossible(("diff-tree",), 1, f"more than {DIRECTORIES_MAX} directories differ")
        path, *both = waiting.pop()
        old, new = (_entries(odb, tree) for tree in both)
        for name in old.keys() | new.keys():
            old_entry, new_entry = old.get(name), new.get(name)
            if (
                old_entry is not None
                and new_entry is not None
                and (old_entry.id, old_entry.filemode) == (new_entry.id, new_entry.filemode)
            ):
                continue
            below_was, below_now = _directory(old_entry), _directory(new_entry)
            if below_was is not None or below_now is not None:
                waiting.append((path + name + b"/", below_was, below_now))
            if (old_entry is not None and below_was is None) or (new_entry is not None and below_now is None):
                yield (path + name).decode(errors="replace")


def _entries(odb: pygit2.Odb, tree: pygit2.Tree | None) -> dict[bytes, pygit2.Object]:
    """Return the entries of a directory by name. Raise GitImpossible if there are too many."""
    if tree is None:
        return {}
    if why := too_wide(odb, tree.id):
        raise GitImpossible(("diff-tree",), 1, why)
    if len(tree) > WIDTH_MAX:
        raise GitImpossible(("diff-tree",), 1, f"a directory has more than {WIDTH_MAX} entries")
    return {entry.raw_name: entry for entry in tree if entry.raw_name is not None}


def _directory(entry: pygit2.Object | None) -> pygit2.Tree | None:
    return entry if isinstance(entry, pygit2.Tree) and entry.filemode == FileMode.TREE else None


def texts(repository: pygit2.Repository, tree: pygit2.Tree, paths: Iterable[str]) -> dict[str, str]:
    """Map paths to texts: the named files, and the `*.yaml` files (and `.zuul.ignore`) below the named directories. For
    a file that is too large, the text is the reason why it was not read (`config.files.source.unread`)."""
    found: dict[str, str] = {}
    reading = _BranchReader(repository.odb)
    for path in paths:
        try:
            entry = tree[path.rstrip("/")]
        except KeyError:
            continue
        for at, text in reading.of(entry, path.rstrip("/")):
            found[at] = text
            if reading.over:
                # Drop what was read so far: half of a branch's configuration would be a different configuration.
                return {at: unread(reading.over)}
    return found


class _BranchReader:
    """Read one branch; once it is `over`, read nothing more."""

    def __init__(self, odb: pygit2.Odb) -> None:
        self._odb = odb
        self._files = self._entries = self._length_bytes = 0
        self.over = ""
        """Description of the limit that was exceeded; empty if none was."""

    def of(self, named: pygit2.Object, path: str) -> Iterator[tuple[str, str]]:
        if isinstance(named, pygit2.Blob):
            yield path, self._text(named)
        waiting = [(named, path)] if isinstance(named, pygit2.Tree) else []
        while waiting:
            tree, path = waiting.pop()
            if why := too_wide(self._odb, tree.id):
                self.over = why
                yield f"{path}/….yaml", ""
                return
            for entry in tree:
                below = f"{path}/{entry.name}"
                self._entries += 1
                if self._entries > ENTRIES_MAX:
                    self.over = f"there are more than {ENTRIES_MAX} files below the directories of configuration"
                    yield f"{path}/….yaml", ""
                if isinstance(entry, pygit2.Tree):
                    waiting.append((entry, below))
                elif isinstance(entry, pygit2.Blob) and below.endswith((".yaml", "/.zuul.ignore")):
                    yield below, self._text(entry)

    def _text(self, blob: pygit2.Blob) -> str:
        self._files += 1
        if self._files > FILES_MAX:
            self.over = f"there are more than {FILES_MAX} files of configuration on this branch"
            return ""
        # The header contains the size, which saves inflating a blob that may be huge.
        _, length_bytes = self._odb.read_header(blob.id)
        if length_bytes > FILE_MAX_BYTES:
            return unread(f"this file has {sized(length_bytes)}; at most {sized(FILE_MAX_BYTES)} are read")
        self._length_bytes += length_bytes
        if self._length_bytes > BRANCH_MAX_BYTES:
            self.over = f"the configuration on this branch has more than {sized(BRANCH_MAX_BYTES)}"
            return ""
        return blob.data.decode(errors="replace")


def conflicts(fields: Sequence[str], commits: Sequence[str]) -> str:
    """Return the files in conflict, each once, with the kind of conflict unless both sides changed the content.

    `fields` are the output of `git merge-tree` after the tree: names up to an empty field, then messages, each a count,
    that many names, a kind and a description. `commits` are the two sides: git lists a file that it renames as
    `<name>~<commit>`.
    """
    aside = re.compile(rf"~({'|'.join(map(re.escape, commits))})(_\d+)?$")
    names, messages = _halves(fields)
    found: dict[str, str] = {}
    for kind, paths in _messages(messages):
        if (kind_match := _KIND.match(kind)) is not None:
            for path in paths:
                found.setdefault(aside.sub("", path), "" if kind_match[1] == "contents" else f" ({kind_match[1]})")
    for name in names:
        found.setdefault(aside.sub("", name), "")
    shown = [shown_name(name) + kind for name, kind in sorted(found.items())]
    more = len(shown) - SHOWN_MAX
    return ", ".join(shown[:SHOWN_MAX]) + (f" and {more} more" if more > 0 else "")


def shown_name(path: str) -> str:
    """Return a path unchanged if that is unambiguous, otherwise quoted."""
    plain = path.isprintable() and path == path.strip() and not set(path) & set('",')
    return path if plain else json.dumps(path, ensure_ascii=not path.isprintable())


def _halves(fields: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    end = fields.index("") if "" in fields else len(fields)
    return fields[:end], fields[end + 1 :]


def _messages(fields: Sequence[str]) -> Iterator[tuple[str, Sequence[str]]]:
    at = 0
    while at < len(fields) and fields[at].isdigit():
        count = int(fields[at])
        yield fields[at + 1 + count], fields[at + 1 : at + 1 + count]
        # A message consists of the count, that many names, the kind and the text.
        at += count + 3
