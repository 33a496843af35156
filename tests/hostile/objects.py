"""Put objects and refs that git would not make into a repository, past git's checks, as a hostile client can."""

from __future__ import annotations

import hashlib
import zlib
from pathlib import Path

from headgate.testing.repositories import Repositories, run_git

AUTHOR = b"Eve <eve@example.org> 1700000000 +0000"


def put(bare: Path, kind: str, content: bytes) -> str:
    """Write an object unchanged; return its name."""
    raw = f"{kind} {len(content)}\0".encode() + content
    name = hashlib.sha1(raw).hexdigest()
    file = bare / "objects" / name[:2] / name[2:]
    file.parent.mkdir(parents=True, exist_ok=True)
    if not file.exists():
        file.write_bytes(zlib.compress(raw, 1))
    return name


def commit_of(
    tree: str,
    parents: tuple[str, ...],
    author: bytes = b"author " + AUTHOR,
    committer: bytes = b"committer " + AUTHOR,
    more: bytes = b"",
    message: bytes = b"Evil\n",
) -> bytes:
    lines = [b"tree " + tree.encode(), *(b"parent " + parent.encode() for parent in parents), author, committer, more]
    return b"\n".join(line for line in lines if line) + b"\n\n" + message


def tree_of(*entries: tuple[bytes, bytes, str]) -> bytes:
    """Mode, name and object of each entry, in this order."""
    return b"".join(mode + b" " + name + b"\0" + bytes.fromhex(oid) for mode, name, oid in entries)


def point(bare: Path, ref: str, name: str) -> None:
    """Make the ref name the object, without git."""
    file = bare / ref
    file.parent.mkdir(parents=True, exist_ok=True)
    file.with_name(f"{file.name}.lock").write_text(f"{name}\n")
    file.with_name(f"{file.name}.lock").rename(file)


def based_on(repositories: Repositories, project: str) -> tuple[str, str]:
    """Return the head of the master branch, and its tree."""
    bare = repositories.hub / project
    return repositories.head(project), run_git("rev-parse", "refs/heads/master^{tree}", at=bare)
