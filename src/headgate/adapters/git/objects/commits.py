"""Commits as git stores them: what is copied from one stays as it was, byte by byte."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

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
"""Encodings that are decoded; Python's others are no text encodings, fail in unusual ways, or are slow."""


def identity(name: str, address: str) -> bytes:
    """Format an identity as commits have it, without characters that git rejects; if nothing is left, return
    Headgate's."""
    clean = [re.sub(r"[<>\x00-\x1f]", "", text).strip() for text in (name, address)]
    return f"{clean[0]} <{clean[1]}>".encode(errors="replace") if all(clean) else IDENTITY


class Original(NamedTuple):
    """Hold the parts of a commit that its copies keep."""

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
    """Why git would not have written the commit, for people; empty if it would."""


def parts(raw: bytes) -> Parts:
    """Parse any commit of which tree and parents can be read. Raise ValueError."""
    lines = raw.partition(b"\n\n")[0].split(b"\n")
    if not _TREE.fullmatch(lines[0]):
        raise ValueError("it does not begin with its tree")
    last = next((n for n, line in enumerate(lines) if n and not _PARENT.fullmatch(line)), len(lines))
    rest = lines[last:]
    flaw = next((why for why in (_flaw(rest, 0, b"author "), _flaw(rest, 1, b"committer ")) if why), "")
    # C programs, git among them, see the message end at the NUL, so people would review another text than is stored.
    if b"\0" in raw:
        flaw = "there is a NUL in it"
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


def text(original: Original, raw: bytes) -> str:
    """Decode an author or message with the commit's encoding, if it is a common one; mark what cannot be decoded."""
    name = original.encoding.decode("ascii", errors="replace").strip().lower()
    try:
        found = raw.decode(name if _ENCODINGS.fullmatch(name) else "utf-8", errors="replace")
    except (LookupError, ValueError):
        found = raw.decode(errors="replace")
    # A codec may yield lone surrogates, which cannot be encoded as JSON.
    return found.encode(errors="replace").decode()


def retold(original: Original, message: str) -> Original:
    """Return the same author, with another message."""
    known = _ENCODINGS.fullmatch(original.encoding.decode(errors="replace").lower() or "utf-8")
    # An unknown encoding is left as it is: decoding with the wrong one would damage the name.
    author = text(original, original.author).encode() if known else original.author
    return Original(author, b"", message.encode(errors="replace"))


def signature(at_s: int, who: bytes = IDENTITY) -> bytes:
    return who + b" %d +0000" % at_s


def commit(tree: str, parents: Sequence[str], original: Original, at_s: int, who: bytes = IDENTITY) -> bytes:
    """Return the commit object, with Headgate or the given identity as committer, at a given time: the same input gives
    the same id."""
    lines = [b"tree " + tree.encode(), *(b"parent " + parent.encode() for parent in parents)]
    lines += [b"author " + original.author, b"committer " + signature(at_s, who)]
    lines += [b"encoding " + original.encoding] if original.encoding else []
    return b"\n".join(lines) + b"\n\n" + original.message
