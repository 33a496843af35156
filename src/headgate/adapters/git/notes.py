"""Keep notes on commits: reports, with a section for each pipeline, and people's remarks, one on each line.

If two writers add remarks, the notes are merged by keeping the lines of both, as git's `cat_sort_uniq` does.  A reader
must verify who wrote a line, since anybody who may push the ref may write anything.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Collection, Iterator

import pygit2

from headgate.adapters.git.command import GitError, GitImpossible
from headgate.adapters.git.mirror import COMMIT_MAX_BYTES, MirrorRepository
from headgate.adapters.git.objects import too_wide

log = logging.getLogger("headgate.git")

NOTES = "refs/notes/headgate"
_HEADING = re.compile(r"^Headgate \((.+)\):$", re.MULTILINE)
_LANDED = re.compile(r"^Landed on (.+) as ([0-9a-f]{40,64})$", re.MULTILINE)
_OURS = re.compile(r"^(?=Headgate \(|Landed on )", re.MULTILINE)
"""Beginnings of lines that readers of notes interpret."""
REVIEW_NOTES = "refs/notes/headgate-review"
NOTE_MAX_BYTES = 2 * 2**20
"""Size of the report or the remarks on one commit; a larger note is not read."""
LINE_MAX_BYTES = 64_000
READ_MAX_BYTES = 4 * 2**20
"""Size of one answer."""


class NotesMoved(GitError):
    """Report that the notes that were listed can no longer be fetched."""


def landed_line(branch: str, commit: str) -> str:
    """Return the line of a note which shows that a deleted change has landed, in any merge mode."""
    return f"Landed on {branch} as {commit}"


def landed_as(note: str, branch: str) -> str:
    """Return the commit as which the change landed on the branch; empty if the note names none."""
    # A change may land twice, for example after a revert; the last line is the newest one.
    return next((commit for on, commit in reversed(_LANDED.findall(note)) if on == branch), "")


async def annotate(
    mirror: MirrorRepository, commit: str, pipeline: str, text: str, notes: str, landed: str = ""
) -> str:
    """Return the notes at `notes` (empty: there are none) with this section added to the commit's note, which ends with
    the line `landed`; `notes` if nothing changed. Raise GitError, OSError."""
    await _bring(mirror, NOTES, notes)
    # The author of a change can influence its report, so escape lines that only Headgate may write.
    escaped = _OURS.sub("  ", text.strip())
    section = f"{escaped}\n\n{landed}" if landed else escaped
    return await asyncio.to_thread(_annotate, mirror, commit, pipeline, section, notes)


async def read(mirror: MirrorRepository, notes: str, commits: Collection[str]) -> dict[str, str]:
    """Return commit -> its note among those at `notes`, for the commits that have one. Raise GitError, OSError."""
    await _bring(mirror, NOTES, notes)

    def found() -> dict[str, str]:
        tree = tree_of(mirror, notes)
        return {commit: note for commit in commits if (note := _read(mirror, tree, commit))}

    return await asyncio.to_thread(found)


async def _bring(mirror: MirrorRepository, ref: str, notes: str) -> None:
    if notes and await mirror.bring({ref: notes}):
        raise NotesMoved(("fetch",), 1, f"{ref} of {mirror.remote.url} moved while they were read")


def tree_of(mirror: MirrorRepository, notes: str) -> pygit2.Tree | None:
    """Return the tree of the notes; None if there are none, or if the ref names something that has no notes: whoever
    may push the ref must not be able to stop landings, which write notes. Raise GitImpossible if this machine cannot
    read them: then they must stay."""
    try:
        return mirror.tree(notes) if notes else None
    except GitImpossible as error:
        if not _has_no_notes(mirror, notes):
            raise
        log.warning("%s: the notes at %s cannot be read, and are replaced: %s", mirror.remote.url, notes, error)
        return None


def _has_no_notes(mirror: MirrorRepository, notes: str) -> bool:
    """Return whether the object is here, and is no commit of notes that git or Headgate would write."""
    odb = mirror.repository.odb
    try:
        kind, size = odb.read_header(notes)
        is_commit = kind == pygit2.enums.ObjectType.COMMIT and size <= COMMIT_MAX_BYTES
        return not is_commit or bool(too_wide(odb, mirror.parts(notes).tree))
    except (KeyError, ValueError, OSError, pygit2.GitError, GitError):
        return False


def _read(mirror: MirrorRepository, tree: pygit2.Tree | None, commit: str) -> str:
    """Return the note of a commit, without parts that are too large. Raise KeyError, pygit2.GitError."""
    blobs = [] if tree is None else [blob for blob in _blobs(tree, commit) if _size(mirror, blob) <= NOTE_MAX_BYTES]
    return "\n".join(blob.data.decode(errors="replace") for blob in blobs)


def _size(mirror: MirrorRepository, blob: pygit2.Blob) -> int:
    """Return the size of a note from its header, without reading the note."""
    return int(mirror.repository.odb.read_header(blob.id)[1])


def _blobs(tree: pygit2.Tree, rest: str) -> Iterator[pygit2.Blob]:
    """Yield the notes of a commit. A note's path is the commit's id, in which each leading pair of digits may be a
    directory, to any depth; `rest` is the part of the id below `tree`."""
    if rest in tree and isinstance(blob := tree[rest], pygit2.Blob):
        yield blob
    if rest[:2] in tree and isinstance(below := tree[rest[:2]], pygit2.Tree):
        yield from _blobs(below, rest[2:])


def _annotate(mirror: MirrorRepository, commit: str, pipeline: str, text: str, notes: str) -> str:
    old = tree_of(mirror, notes)
    before = _read(mirror, old, commit)
    after = _with_section(before, pipeline, text)
    if after == before:
        return notes
    repository = mirror.repository
    tree = with_note(repository, old, commit, repository.create_blob(after.encode(errors="replace")))
    return mirror.write(str(tree), (notes,) if old is not None else (), int(time.time()), b"Notes added by Headgate\n")


def with_note(
    repository: pygit2.Repository, tree: pygit2.Tree | None, rest: str, blob: pygit2.Oid, *, top: bool = True
) -> pygit2.Oid:
    """Return the tree with only this note for its commit. Use at least one level of directories, or existing deeper
    ones, so that writing a note costs little however many there are."""
    builder = repository.TreeBuilder() if tree is None else repository.TreeBuilder(tree)
    # A note may be at this level since before the directories existed; git would concatenate two notes of one commit.
    if tree is not None and rest in tree:
        builder.remove(rest)
    name = rest[:2]
    below = tree[name] if tree is not None and name in tree else None
    within = below if isinstance(below, pygit2.Tree) else None
    if within is not None or top:
        deeper = with_note(repository, within, rest[2:], blob, top=False)
        builder.insert(name, deeper, pygit2.enums.FileMode.TREE)
    else:
        builder.insert(rest, blob, pygit2.enums.FileMode.BLOB)
    return builder.write()


def _with_section(note: str, pipeline: str, text: str) -> str:
    # Odd parts are headings and even ones their bodies; part 0 is what people wrote above them.
    parts = _HEADING.split(note)
    sections = {name: body.strip() for name, body in zip(parts[1::2], parts[2::2], strict=True)}
    # Remove the section and add it again, so that the latest report is the last section.
    sections.pop(pipeline, None)
    sections[pipeline] = text.strip()
    own_sections = [f"Headgate ({name}):\n{body}" for name, body in sections.items()]
    return "\n\n".join([parts[0].strip(), *own_sections] if parts[0].strip() else own_sections) + "\n"


async def read_remarks(
    mirror: MirrorRepository, notes: str, commits: Collection[str]
) -> tuple[dict[str, tuple[str, ...]], tuple[str, ...]]:
    """Return commit -> its lines, and commits whose note is too large.  Raise GitError, OSError."""
    await _bring(mirror, REVIEW_NOTES, notes)
    return await asyncio.to_thread(_read_remarks, mirror, notes, commits)


def _read_remarks(
    mirror: MirrorRepository, notes: str, commits: Collection[str]
) -> tuple[dict[str, tuple[str, ...]], tuple[str, ...]]:
    found, unread, left = dict[str, tuple[str, ...]](), list[str](), READ_MAX_BYTES
    if (tree := tree_of(mirror, notes)) is None:
        return {}, ()
    for commit in commits:
        lines = dict[str, None]()
        for blob in _blobs(tree, commit):
            size = _size(mirror, blob)
            if size > min(left, NOTE_MAX_BYTES):
                unread.append(commit)
                continue
            left -= size
            lines.update(dict.fromkeys(_lines(blob.data)))
        if lines:
            found[commit] = tuple(lines)
    return found, tuple(dict.fromkeys(unread))


def _lines(data: bytes) -> list[str]:
    return [line.decode(errors="replace") for line in data.split(b"\n") if line and len(line) <= LINE_MAX_BYTES]


async def with_remark(mirror: MirrorRepository, notes: str, commit: str, line: str) -> str:
    """Return the notes with one more line on a commit; unchanged if the line exists.  Raise GitError, OSError."""
    await _bring(mirror, REVIEW_NOTES, notes)
    return await asyncio.to_thread(_with_remark, mirror, notes, commit, line)


def _with_remark(mirror: MirrorRepository, notes: str, commit: str, line: str) -> str:
    found, unread = _read_remarks(mirror, notes, [commit])
    before = found.get(commit, ())
    # The request may be a repetition after its answer was lost.
    if line in before:
        return notes
    text = "".join(f"{one}\n" for one in (*before, line)).encode(errors="replace")
    # Otherwise this line would replace a note that was too large to read.
    if unread or len(text) > NOTE_MAX_BYTES:
        why = f"the remarks on {commit[:12]} have reached their limit of {NOTE_MAX_BYTES // 2**20} MB"
        raise GitImpossible(("notes",), 1, f"{why}; propose a new patchset")
    repository = mirror.repository
    old = tree_of(mirror, notes)
    tree = with_note(repository, old, commit, repository.create_blob(text))
    parents = (notes,) if old is not None else ()
    return mirror.write(str(tree), parents, int(time.time()), b"A remark added by Headgate\n")
