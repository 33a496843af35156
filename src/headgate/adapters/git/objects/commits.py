"""Commits as git stores them: what is copied from one stays as it was, byte by byte."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

IDENTITY = b"Headgate <headgate@localhost>"


def identity(name: str, address: str) -> bytes:
    """As commits have it, without what git would not take; Headgate's where nothing is left."""
    clean = [re.sub(r"[<>\x00-\x1f]", "", text).strip() for text in (name, address)]
    return f"{clean[0]} <{clean[1]}>".encode(errors="replace") if all(clean) else IDENTITY


class Original(NamedTuple):
    """What a commit made from another one keeps of it."""

    author: bytes
    """Name, address and time."""
    encoding: bytes
    """Of the message and the author's name; empty is UTF-8."""
    message: bytes


def original(raw: bytes) -> Original:
    head, _, message = raw.partition(b"\n\n")
    fields = dict(line.split(b" ", 1) for line in head.split(b"\n") if line.startswith((b"author ", b"encoding ")))
    return Original(fields.get(b"author", signature(0)), fields.get(b"encoding", b""), message)


def retold(kept: Original, message: str) -> Original:
    """The same author, with another message."""
    try:
        author = kept.author.decode(kept.encoding.decode(errors="replace") or "utf-8", errors="replace").encode()
    except LookupError:  # an encoding nobody knows
        author = kept.author
    return Original(author, b"", message.encode(errors="replace"))


def signature(at_s: int, who: bytes = IDENTITY) -> bytes:
    return who + b" %d +0000" % at_s


def commit(tree: str, parents: Sequence[str], kept: Original, at_s: int, who: bytes = IDENTITY) -> bytes:
    """The commit object; its committer is Headgate, or who it is to be, at a given time: same input, same id."""
    lines = [b"tree " + tree.encode(), *(b"parent " + parent.encode() for parent in parents)]
    lines += [b"author " + kept.author, b"committer " + signature(at_s, who)]
    lines += [b"encoding " + kept.encoding] if kept.encoding else []
    return b"\n".join(lines) + b"\n\n" + kept.message
