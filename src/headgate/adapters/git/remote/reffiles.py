"""The refs of a repository on this machine, read from its files as gitrepository-layout(5) describes them.

A library that walks the directories of refs may give up at the first one it cannot take (libgit2 does at a hundred
levels) and show no ref at all.  Here each ref stands for itself: one that cannot be read is named, and the others are
there.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pygit2

SYMBOLIC_MAX = 5
"""Longest chain of refs that name another ref."""
LOOSE_MAX_BYTES = 4_096
_ID = re.compile(rb"[0-9a-f]{40}(?:[0-9a-f]{24})?\s*")
_ALL = ("refs/",)


class Listing(NamedTuple):
    """Hold the refs of a repository as its files show them."""

    refs: dict[str, str]
    """Ref -> its commit, or for an annotated tag the tag object."""
    unreadable: dict[str, str]
    """Name of the ref, printable -> why its commit is unknown."""


class NotFiles(Exception):
    """Report that the refs of this repository are not kept in files, or that it is not a repository."""


def listed(url: str, names: Sequence[str]) -> Listing:
    """Return the refs named, and those below a name that ends in a slash; without names, all.  Raises NotFiles,
    OSError."""
    at = _directory(url)
    names = names or _ALL
    below = tuple(name for name in names if name.endswith("/"))
    exact = [name for name in names if not name.endswith("/")]
    # Loose refs first: one that is packed meanwhile is then found among the packed ones.
    loose = dict(_below(at, below))
    loose |= {name: raw for name in exact if (raw := _loose(at / name)) is not None}
    packed = _packed(at)
    wanted = {ref: oid for ref, oid in packed.items() if ref in exact or ref.startswith(below)}
    found = Listing({}, {})
    # A loose ref wins over the packed one, which is its older value.
    for ref, raw in {**wanted, **loose}.items():
        _take(at, packed, ref, raw, found)
    return found


def head(url: str) -> str:
    """Return the ref that HEAD names; empty when it names none.  Raises NotFiles, OSError."""
    raw = _loose(_directory(url) / "HEAD") or b""
    return raw[4:].strip().decode(errors="replace") if raw.startswith(b"ref:") else ""


def _directory(url: str) -> Path:
    path = Path(url)
    at = path / ".git" if (path / ".git" / "HEAD").exists() else path
    # A repository with reftables has a directory `refs` as well, which then holds no refs.
    if not (at / "HEAD").exists() or not (at / "refs").is_dir() or (at / "reftable").exists():
        raise NotFiles(url)
    return at


def _take(at: Path, packed: dict[str, bytes], ref: str, raw: bytes, found: Listing) -> None:
    try:
        ref.encode()
    except UnicodeEncodeError:
        shown = ref.encode(errors="surrogateescape").decode(errors="backslashreplace")
        found.unreadable[shown] = "its name is not UTF-8"
        return
    if not pygit2.reference_is_valid_name(ref):
        found.unreadable[ref] = "git does not take this name"
        return
    for _ in range(SYMBOLIC_MAX):
        if _ID.fullmatch(raw):
            if raw.strip(b"0 \n\r\t"):
                found.refs[ref] = raw.strip().decode()
            else:
                found.unreadable[ref] = "it names no object"
            return
        target = os.fsdecode(raw[4:].strip()) if raw.startswith(b"ref:") else ""
        # A ref must not make us read a file outside of the repository.
        if not target.startswith("refs/") or ".." in target:
            break
        following = _loose(at / target) or packed.get(target)
        if following is None:
            found.unreadable[ref] = "it names a ref that is not there"
            return
        raw = following
    found.unreadable[ref] = "what its file says is not a commit"


def _below(at: Path, names: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    """Yield the loose refs below the directories, however deep."""
    waiting = [name.rstrip("/") for name in names]
    while waiting:
        directory = waiting.pop()
        try:
            entries = list(os.scandir(at / directory))
        except (FileNotFoundError, NotADirectoryError):
            continue  # git removes directories that are empty
        for entry in entries:
            name = f"{directory}/{entry.name}"
            if entry.name.startswith(".") or entry.name.endswith(".lock"):
                continue  # git does not look at those either
            if entry.is_dir(follow_symlinks=False):
                waiting.append(name)
            elif (raw := _loose(at / name)) is not None:
                yield name, raw


def _loose(path: Path) -> bytes | None:
    """Return the content of the file, or None if there is none. Anything but a file counts as empty."""
    try:
        # The oldest form of a symbolic ref, which git still reads.
        if path.is_symlink():
            return b"ref: " + os.fsencode(os.readlink(path))
        # Without O_NONBLOCK, opening a FIFO that somebody put there would block for ever.
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if path.is_dir():
            return None
        return f"? {error.strerror}".encode()
    try:
        mode = os.fstat(file).st_mode
        if stat.S_ISDIR(mode):
            return None
        return os.read(file, LOOSE_MAX_BYTES) if stat.S_ISREG(mode) else b""
    finally:
        os.close(file)


def _packed(at: Path) -> dict[str, bytes]:
    try:
        lines = (at / "packed-refs").read_bytes().split(b"\n")
    except FileNotFoundError:
        return {}
    found = {}
    for line in lines:
        oid, space, ref = line.partition(b" ")
        if space and _ID.fullmatch(oid):
            found[os.fsdecode(ref)] = oid
        # A torn or foreign file must not look like a repository whose refs were all deleted.
        elif line and not line.startswith((b"#", b"^")):
            raise OSError(f"{at / 'packed-refs'} has a line that git does not write: {line[:200]!r}")
    return found
