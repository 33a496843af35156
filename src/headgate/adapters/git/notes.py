"""Keep notes on commits: reports, with a section for each pipeline, and people's remarks, one on each line.

If two writers add remarks, the notes are merged by keeping the lines of both, as git's `cat_sort_uniq` does.  A reader
must verify who wrote a line, since anybody who may push the ref may write anything.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Collection, Iterator, Mapping

import pygit2

from headgate.adapters.git.command import GitError, GitImpossible, RemoteError
from headgate.adapters.git.mirror import COMMIT_MAX_BYTES, MirrorRepository
from headgate.adapters.git.objects import parts, too_wide

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
_SPOILT = re.compile(
    r"not a (tree|commit)|bad tree object|too-short tree object|empty filename in tree|Failed to traverse parents"
    r"|(?:unable to|[Cc]ould not) read [0-9a-f]{40}"
)
"""Reasons why a git server cannot send notes: their objects are damaged, missing or of the wrong type."""


class NotesMoved(GitError):
    """Report that the notes that were listed are no longer at their ref."""


class NotesUnread(RemoteError):
    """Report that the remote lists notes but does not send them; a later attempt may succeed."""


class NotesImpossible(GitImpossible):
    """Report notes that cannot be read or written until somebody deletes a ref."""

    def __init__(self, why: str, ref: str) -> None:
        super().__init__(("notes",), 1, f"{why}; delete this ref: git push REMOTE :{ref}")


UNWRITABLE = (NotesUnread, NotesImpossible)
"""Errors that keep a note from being written, but no change from landing."""


def names_of(ref: str) -> tuple[str, ...]:
    """Return the names to list for the notes at `ref`: its own, and those that keep it from being created."""
    return ref, f"{ref}/"


def notes_at(refs: Mapping[str, str], ref: str) -> str:
    """Return the commit of the notes at `ref`, from refs with these names; empty if there are none. Raise
    NotesImpossible if another ref keeps them from being written."""
    in_the_way = sorted(other for other in refs if other.startswith(f"{ref}/"))
    if ref not in refs and in_the_way:
        raise NotesImpossible(f"{in_the_way[0]} keeps {ref} from being created", in_the_way[0])
    return refs.get(ref, "")


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
    notes = await _bring(mirror, NOTES, notes)
    # The author of a change can influence its report, so escape lines that only Headgate may write.
    escaped = _OURS.sub("  ", text.strip())
    section = f"{escaped}\n\n{landed}" if landed else escaped
    return await asyncio.to_thread(_annotate, mirror, commit, pipeline, section, notes)


async def read(mirror: MirrorRepository, notes: str, commits: Collection[str]) -> dict[str, str]:
    """Return commit -> its note among those at `notes`, for the commits that have one; none if the notes remain
    impossible to fetch. Raise GitError, OSError."""
    try:
        notes = await _bring(mirror, NOTES, notes)
    except NotesImpossible:
        return {}

    def found() -> dict[str, str]:
        tree = tree_of(mirror, notes)
        return {commit: note for commit in commits if (note := _read(mirror, tree, commit))}

    return await asyncio.to_thread(found)


async def _bring(mirror: MirrorRepository, ref: str, notes: str) -> str:
    """Fetch the notes, and return them; return an empty string if they have been damaged at the remote for a while, and
    may be replaced. Raise GitError, OSError."""
    if not notes or not await mirror.bring({ref: notes}):
        return notes
    why = mirror.refusals.why(notes)
    if not why:
        raise NotesMoved(("fetch",), 1, f"{ref} of {mirror.remote.url} moved while they were read")
    text = f"{ref} of {mirror.remote.url}, {notes}, cannot be fetched: {why}"
    if not mirror.refusals.is_sure(notes):
        raise NotesUnread(("fetch",), 1, text)
    if not _SPOILT.search(why):
        raise NotesImpossible(text, ref)
    log.warning("%s: the notes at %s are damaged, and are replaced: %s", mirror.remote.url, notes, why)
    return ""


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
    """Return whether the object, which could not be read as notes, is intact: then it has none."""
    odb = mirror.repository.odb
    try:
        kind, size = odb.read_header(notes)
        if kind != pygit2.enums.ObjectType.COMMIT or size > COMMIT_MAX_BYTES:
            return True
        _check_intact(odb, parts(odb.read(notes)[1]).tree)
    except (KeyError, OSError, pygit2.GitError):
        return False
    except ValueError:
        pass  # the commit names no tree
    return True


def _check_intact(odb: pygit2.Odb, tree: pygit2.Oid | str) -> None:
    """Check an object that could not be read as a directory: if it is intact, it is something else, or a directory that
    neither git nor Headgate would write. Raise KeyError, OSError, pygit2.GitError if it is not."""
    if not too_wide(odb, tree):
        odb.read(tree)  # the library compares the content with the id


def _below(repository: pygit2.Repository, tree: pygit2.Tree | None, name: str) -> pygit2.Tree | None:
    """Return a directory of notes; None if there is none, or if it cannot contain notes. Raise KeyError, OSError,
    pygit2.GitError."""
    entry = tree[name] if tree is not None and name in tree else None
    if not isinstance(entry, pygit2.Tree) or too_wide(repository.odb, entry.id):
        return None
    try:
        found = repository[entry.id]
    except (pygit2.GitError, ValueError):
        _check_intact(repository.odb, entry.id)
        return None
    return found if isinstance(found, pygit2.Tree) else None


def _read(mirror: MirrorRepository, tree: pygit2.Tree | None, commit: str) -> str:
    """Return the note of a commit, without parts that are too large. Raise KeyError, pygit2.GitError."""
    blobs = () if tree is None else _blobs(mirror.repository, tree, commit)
    return "\n".join(blob.data.decode(errors="replace") for blob in blobs if _size(mirror, blob) <= NOTE_MAX_BYTES)


def _size(mirror: MirrorRepository, blob: pygit2.Blob) -> int:
    """Return the size of a note from its header, without reading the note."""
    return int(mirror.repository.odb.read_header(blob.id)[1])


def _blobs(repository: pygit2.Repository, tree: pygit2.Tree, rest: str) -> Iterator[pygit2.Blob]:
    """Yield the notes of a commit. A note's path is the commit's id, in which each leading pair of digits may be a
    directory, to any depth; `rest` is the part of the id below `tree`."""
    if rest in tree and isinstance(blob := tree[rest], pygit2.Blob):
        yield blob
    # The last pair of digits names the note itself, whatever lies below a directory of that name.
    if len(rest) > 2 and (below := _below(repository, tree, rest[:2])) is not None:
        yield from _blobs(repository, below, rest[2:])


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
    within = _below(repository, tree, rest[:2]) if len(rest) > 2 else None
    if within is not None or top:
        deeper = with_note(repository, within, rest[2:], blob, top=False)
        builder.insert(rest[:2], deeper, pygit2.enums.FileMode.TREE)
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
    notes = await _bring(mirror, REVIEW_NOTES, notes)
    return await asyncio.to_thread(_read_remarks, mirror, notes, commits)


def _read_remarks(
    mirror: MirrorRepository, notes: str, commits: Collection[str]
) -> tuple[dict[str, tuple[str, ...]], tuple[str, ...]]:
    found, unread, left = dict[str, tuple[str, ...]](), list[str](), READ_MAX_BYTES
    if (tree := tree_of(mirror, notes)) is None:
        return {}, ()
    for commit in commits:
        lines = dict[str, None]()
        for blob in _blobs(mirror.repository, tree, commit):
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
    notes = await _bring(mirror, REVIEW_NOTES, notes)
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
