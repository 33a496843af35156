"""Keep what people say of proposed commits: one line of JSON each, in a note on the commit.

Notes of two writers are merged by keeping the lines of both, as `cat_sort_uniq` of git does.  Who wrote a line is for
whoever reads it to find out: whoever may push the ref may write anything.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterator

import pygit2

from headgate.adapters.git.command import GitImpossible
from headgate.adapters.git.mirror import MirrorRepository
from headgate.adapters.git.notes import NotesMoved, tree_of, with_note

REVIEW_NOTES = "refs/notes/headgate-review"
NOTE_MAX_BYTES = 2 * 2**20
"""Size of the remarks on one commit; a larger note is not read."""
LINE_MAX_BYTES = 64_000
READ_MAX_BYTES = 4 * 2**20
"""Size of one answer."""


async def read(
    mirror: MirrorRepository, notes: str, commits: Collection[str]
) -> tuple[dict[str, tuple[str, ...]], tuple[str, ...]]:
    """Return commit -> its lines, and commits whose note is too large.  Raise GitError, OSError."""
    await _bring(mirror, notes)
    return await asyncio.to_thread(_read, mirror, notes, commits)


def _read(
    mirror: MirrorRepository, notes: str, commits: Collection[str]
) -> tuple[dict[str, tuple[str, ...]], tuple[str, ...]]:
    tree = tree_of(mirror, notes)
    found, unread, left = dict[str, tuple[str, ...]](), list[str](), READ_MAX_BYTES
    for commit in commits if tree is not None else ():
        lines = dict[str, None]()
        for id in _blobs(tree, commit):
            size = int(mirror.repository.odb.read_header(id)[1])
            if size > min(left, NOTE_MAX_BYTES):
                unread.append(commit)
                continue
            left -= size
            lines.update(dict.fromkeys(_lines(mirror, id)))
        if lines:
            found[commit] = tuple(lines)
    return found, tuple(dict.fromkeys(unread))


def _lines(mirror: MirrorRepository, id: pygit2.Oid) -> list[str]:
    blob = mirror.repository[id]
    data = blob.data if isinstance(blob, pygit2.Blob) else b""
    return [line.decode(errors="replace") for line in data.split(b"\n") if line and len(line) <= LINE_MAX_BYTES]


def _blobs(tree: pygit2.Tree | None, rest: str) -> Iterator[pygit2.Oid]:
    """Yield the note of a commit, at any depth of directories named by two digits each, unread."""
    if tree is None:
        return
    if rest in tree and tree[rest].type_str == "blob":
        yield tree[rest].id
    if rest[:2] in tree and isinstance(below := tree[rest[:2]], pygit2.Tree):
        yield from _blobs(below, rest[2:])


async def added(mirror: MirrorRepository, notes: str, commit: str, line: str) -> str:
    """Return the notes with one more line on a commit; the same, if it is there.  Raise GitError, OSError."""
    await _bring(mirror, notes)
    return await asyncio.to_thread(_added, mirror, notes, commit, line)


def _added(mirror: MirrorRepository, notes: str, commit: str, line: str) -> str:
    found, unread = _read(mirror, notes, [commit])
    before = found.get(commit, ())
    # A request that is repeated after its answer was lost adds nothing.
    if line in before:
        return notes
    text = "".join(f"{one}\n" for one in (*before, line)).encode(errors="replace")
    # A note that was too large to be read would be replaced by this one line.
    if unread or len(text) > NOTE_MAX_BYTES:
        why = f"so much was said of {commit[:12]} already that no more can be kept ({NOTE_MAX_BYTES // 2**20} MB)"
        raise GitImpossible(("notes",), 1, f"{why}; propose a new patchset")
    repository = mirror.repository
    tree = with_note(repository, tree_of(mirror, notes), commit, repository.create_blob(text))
    return mirror.write(str(tree), (notes,) if notes else (), int(time.time()), b"A remark added by Headgate\n")


async def _bring(mirror: MirrorRepository, notes: str) -> None:
    if notes and await mirror.bring({REVIEW_NOTES: notes}):
        raise NotesMoved(("fetch",), 1, f"{REVIEW_NOTES} of {mirror.remote.url} moved while they were read")
