"""Write a complete tree to one file of JSON lines, oldest entry first: for backups, and to move to another store.

The first line identifies the file, and the last one counts its entries, so that a truncated file is detected. Rows of
the history may follow the entries. Entries under leases belong to running processes and are left out. An import
appends numbered children again: they keep their order and get the numbers of the new store.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, BinaryIO

import msgspec

from headgate.store.model import check_commit
from headgate.store.types import NAME_DIGITS, OPS_MAX, PARENTS_MAX, Append, Backend, Entry, Op, Put, StoreError

FORMAT = 3
"""Version of the file format. From version 2 on, rows of the history may follow the entries, and from version 3 on,
records of logs."""
SIZE_MAX_BYTES = 800_000
"""Size limit of one commit of an import."""
LINE_MAX_BYTES = 64 * 2**20
"""Size limit of one line. The largest are log records, with 20 MB, and entries, with 0.9 MB that JSON may escape."""
_ROW, _LOG = b'{"history"', b'{"log"'


class Head(msgspec.Struct, frozen=True):
    headgate_export: int
    """Version of the file format."""
    source: str = ""


class ArchiveLine(msgspec.Struct, frozen=True, omit_defaults=True):
    path: str
    at: int
    """Number of the commit that created the entry; entries created in one commit share it."""
    text: str | None = None
    base64: str | None = None
    """The encoded value if it is not UTF-8, otherwise None."""


class ArchiveRow(msgspec.Struct, frozen=True):
    """Hold one row of the history; this package does not know its columns."""

    history: str
    """Name of the table."""
    row: dict[str, Any]  # JSON


class ArchiveLog(msgspec.Struct, frozen=True):
    """Hold the log record of a build; this package does not know its content."""

    log: str
    """Id of the build."""
    record: msgspec.Raw


class ArchiveTail(msgspec.Struct, frozen=True, omit_defaults=True):
    entries: int
    rows: int = 0
    logs: int = 0


Logs = Iterable[tuple[str, bytes]]  # the id of a build, and a record as JSON
Rows = Iterable[tuple[str, Mapping[str, Any]]]  # a table, and columns of several types


def written(entries: Iterable[Entry], source: str, history: Rows = (), logs: Logs = ()) -> Iterator[bytes]:
    """Yield the lines of the file."""
    yield msgspec.json.encode(Head(FORMAT, source)) + b"\n"
    count = 0
    for entry in entries:
        if entry.lease is None:
            count += 1
            yield msgspec.json.encode(_line(entry)) + b"\n"
    rows = 0
    for table, row in history:
        rows += 1
        yield msgspec.json.encode(ArchiveRow(table, dict(row))) + b"\n"
    records = 0
    for build, record in logs:
        records += 1
        yield msgspec.json.encode(ArchiveLog(build, msgspec.Raw(record))) + b"\n"
    yield msgspec.json.encode(ArchiveTail(count, rows, records)) + b"\n"


def _line(entry: Entry) -> ArchiveLine:
    try:
        return ArchiveLine(entry.path, entry.born, text=entry.value.decode())
    except UnicodeDecodeError:
        return ArchiveLine(entry.path, entry.born, base64=base64.b64encode(entry.value).decode())


def lines_of(file: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of a file; a line that is too long, as of a file that is no export, comes in parts."""
    while line := file.readline(LINE_MAX_BYTES):
        yield line


def parsed(lines: Iterable[bytes], name: str) -> list[ArchiveLine]:
    """Return the entries in the file of this name. Raise StoreError, which names the first invalid line, whether it is
    an entry or a row of the history."""
    found: list[ArchiveLine] = []
    paths = set[str]()
    tail: ArchiveTail | None = None
    number = rows = logs = 0
    for number, raw in enumerate(lines, 1):
        if tail is not None:
            raise StoreError(f"{name}:{number}: there are lines after the last line of the export")
        try:
            # The first key of a line shows its kind, so each line is decoded only once.
            if number == 1:
                _check_head(msgspec.json.decode(raw, type=Head), name)
            elif raw.startswith(b'{"entries"'):
                tail = msgspec.json.decode(raw, type=ArchiveTail)
            elif raw.startswith(_ROW):
                msgspec.json.decode(raw, type=ArchiveRow)
                rows += 1
            elif raw.startswith(_LOG):
                msgspec.json.decode(raw, type=ArchiveLog)
                logs += 1
            else:
                found.append(msgspec.json.decode(raw, type=ArchiveLine))
                _check_line(found[-1], paths)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise StoreError(f"{name}:{number}: not a line of a Headgate export: {error}") from error
    # Everything is checked before the first write: half a store is worse than none.
    if tail is None or (tail.entries, tail.rows, tail.logs) != (len(found), rows, logs):
        raise StoreError(f"{name}: truncated after line {number}; nothing was imported")
    return found


def _check_line(line: ArchiveLine, paths: set[str]) -> None:
    """Check that a store will accept the entry, and add its path to `paths`, those of earlier lines. Raise
    ValueError."""
    if (line.text is None) == (line.base64 is None):
        raise ValueError("an entry has either text or base64")
    if line.path in paths:
        raise ValueError(f"{line.path} occurs twice")
    paths.add(line.path)
    try:
        check_commit((), [Put(line.path, _value(line))])
    except StoreError as error:
        raise ValueError(str(error)) from error


def history_rows(lines: Iterable[bytes]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the table and the columns of each row of the history in a file that `parsed` has accepted."""
    for raw in lines:
        if raw.startswith(_ROW):
            read = msgspec.json.decode(raw, type=ArchiveRow)
            yield read.history, read.row


def log_records(lines: Iterable[bytes]) -> Iterator[tuple[str, bytes]]:
    """Yield the build and the content of each log record in a file that `parsed` has accepted."""
    for raw in lines:
        if raw.startswith(_LOG):
            read = msgspec.json.decode(raw, type=ArchiveLog)
            yield read.log, bytes(read.record)


def _check_head(head: Head, name: str) -> None:
    if head.headgate_export < 1:
        raise StoreError(f"{name}: there is no format {head.headgate_export}; nothing was imported")
    if head.headgate_export > FORMAT:
        raise StoreError(
            f"{name}: written by a newer Headgate (format {head.headgate_export}, this one knows {FORMAT}); upgrade"
        )


def commits(lines: Iterable[ArchiveLine], numbered: Callable[[str], bool]) -> Iterator[list[Op]]:
    """Yield commits to make one after the other, so that entries are created in their original order. `numbered`
    returns whether a path is a numbered child."""
    for _, together in groupby(lines, key=lambda line: line.at):
        ops: list[Op] = []
        for line in together:
            op = _op(line, numbered)
            if ops and _full([*ops, op]):
                yield ops
                ops = []
            ops.append(op)
        yield ops


def _op(line: ArchiveLine, numbered: Callable[[str], bool]) -> Op:
    value = _value(line)
    if not numbered(line.path):
        return Put(line.path, value)
    parent, _, name = line.path.rpartition("/")
    # The new store must count these children itself, or its next append would use a number that exists.
    return Append(parent, value, None, name[:-NAME_DIGITS])


def _value(line: ArchiveLine) -> bytes:
    """Return the value of an entry. Raise ValueError."""
    if line.text is not None:
        return line.text.encode()
    return base64.b64decode(line.base64 or "", validate=True)


def _full(ops: Sequence[Op]) -> bool:
    size_bytes = sum(len(op.value) + len(op.path.encode()) for op in ops if isinstance(op, Put))
    size_bytes += sum(len(op.value) + len(op.parent.encode()) for op in ops if isinstance(op, Append))
    parents = {op.parent for op in ops if isinstance(op, Append)}
    return len(ops) > OPS_MAX or size_bytes > SIZE_MAX_BYTES or len(parents) > PARENTS_MAX


async def check_empty(backend: Backend) -> None:
    """Raise StoreError if the store has entries."""
    if there := await backend.list(""):
        raise StoreError(
            f"the store is not empty ({there[0].path} and {len(there) - 1} more); nothing was imported. "
            f"`headgate store reset` empties it"
        )


async def restore(backend: Backend, lines: Iterable[ArchiveLine], numbered: Callable[[str], bool]) -> int:
    """Write the archived entries into an empty store and return how many there were. Raise StoreError if the store
    has entries."""
    await check_empty(backend)
    count = 0
    for ops in commits(lines, numbered):
        count += len(await backend.commit([], ops))
    return count
