"""Import and export many objects in bulk, without loss of data: CSV rows, JSON lines, YAML documents."""

from __future__ import annotations

import csv
import json
import shlex
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from pathlib import Path
from typing import IO, Any

import click
import yaml

from headgate.base.errors import UserError
from headgate.base.files import file_opener
from headgate.base.texts import yaml_fault
from headgate.cli.inventory.calls import InventoryClient, ServiceAddress, connected
from headgate.cli.inventory.documents import object_of
from headgate.cli.inventory.objects import filtered, search, wanted
from headgate.cli.terminal.say import say
from headgate.inventory.model import KIND, PROVIDER
from headgate.inventory.names import normal
from headgate.inventory.wire import inventory_pb2 as pb

Row = tuple[str, pb.Object]
"""Position in the file, for messages, and the object."""

FORMATS = ("csv", "json", "yaml")
FIELDS = ("object_type", "name", "uuid", "project", "partition", "tags")
PROPERTY = "property:"
"""Prefix for the column heading of a property that has the same name as a field."""
TEXT_MAX_CHARS = 20_000_000
"""Limit on what is read as a whole: a line, an array of JSON, or a document of YAML."""
_LIMIT = f"{TEXT_MAX_CHARS // 1_000_000} million characters"
STEPS_MAX = 500
"""Limit on the steps of one request; gRPC limits a request to 4 MB."""
STEPS_SIZE_MAX_BYTES = 2_000_000
NAMES_MAX = 100
"""Number of objects to look up in one request."""
SHOWN_MAX = 20
"""Number of rejected rows to list."""
TAKEN = "ALREADY_EXISTS"
"""Status of a step that creates an existing object."""
_SUFFIXES = {".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json", ".yaml": "yaml", ".yml": "yaml"}
_format = click.option(
    "--format", type=click.Choice(FORMATS), default=None, help="Format of the file. Default: from the file's suffix."
)


def format_of(file: str, given: str) -> str:
    """Return the given format, or that of the file's suffix. Raise UserError."""
    found = given or _SUFFIXES.get(Path(file).suffix.lower(), "")
    if not found:
        what = (
            "standard input and output have no suffix" if file == "-" else f"{file}: the suffix names no known format"
        )
        raise UserError(f"{what}; add --format {' or '.join(FORMATS)}")
    return found


def read(source: IO[str], name: str, format: str, type: str) -> Iterator[Row]:
    """Yield the objects one by one. Raise UserError that names the line."""
    try:
        if format == "csv":
            yield from _csv(source, name, type)
        elif format == "json":
            yield from _json(source, name, type)
        else:
            yield from _yaml(source, name, type)
    except UnicodeDecodeError as error:
        raise UserError(f"{name}: is not UTF-8 ({error.reason} at byte {error.start})") from error


def write(target: IO[str], found: Sequence[pb.Object], format: str, *, uuids: bool) -> None:
    """Write the objects; name their partition only if there are several."""
    several = len({one.partition for one in found}) > 1
    described = [_described(one, partitions=several, uuids=uuids) for one in found]
    if format == "csv":
        _write_csv(target, described)
    elif format == "json":
        target.writelines(json.dumps(one, ensure_ascii=False) + "\n" for one in described)
    else:
        yaml.safe_dump_all(described, target, allow_unicode=True, sort_keys=False, explicit_start=True)


def _described(one: pb.Object, *, partitions: bool, uuids: bool) -> dict[str, Any]:  # YAML
    fields = {
        "object_type": one.type,
        "name": one.name,
        "uuid": one.uuid if uuids else "",
        "project": one.project,
        "partition": one.partition if partitions else "",
        "tags": sorted(one.tags),
        "properties": dict(sorted(one.properties.items())),
    }
    return {field: value for field, value in fields.items() if value}


def _object(where: str, found: Any, type: str) -> Row:  # YAML or JSON
    if not isinstance(found, dict):
        raise UserError(f"{where}: expected a mapping with name, object_type, properties and tags")
    given = dict(found)
    if type:
        given.setdefault("object_type", type)
    if "provider_type" in given:
        given.setdefault("object_type", PROVIDER)
        given["properties"] = {**(given.get("properties") or {}), KIND: given.pop("provider_type")}
    return where, object_of(where, given, "")


def _json(source: IO[str], name: str, type: str) -> Iterator[Row]:
    """Read one object per line, or one array."""
    for number, line in enumerate(_lines(source, name), 1):
        # An array must be read as a whole; lines are read one by one, so that files of any size need little memory.
        if number == 1 and line.lstrip().startswith("["):
            text = line + source.read(TEXT_MAX_CHARS)
            if len(text) > TEXT_MAX_CHARS:
                raise UserError(f"{name}: the array is longer than {_LIMIT}; write one object per line")
            array = _parsed(name, text)
            yield from (_object(f"{name}: object {n}", one, type) for n, one in enumerate(array, 1))
        elif line.strip():
            yield _object(f"{name}:{number}", _parsed(f"{name}:{number}", line), type)


def _lines(source: IO[str], name: str) -> Iterator[str]:
    """Yield the lines. Raise UserError for one that is too long, as of a file without line breaks."""
    number = 0
    while line := source.readline(TEXT_MAX_CHARS + 1):
        number += 1
        if len(line) > TEXT_MAX_CHARS:
            raise UserError(f"{name}:{number}: the line is longer than {_LIMIT}")
        yield line


class _Documents:
    """Read YAML documents, with a limit on each."""

    def __init__(self, source: IO[str], name: str) -> None:
        self._source, self._name, self._size = source, name, 0

    def read(self, size: int = -1) -> str:
        """Read as a file does. Raise UserError for a document that is too long."""
        text = self._source.read(size)
        self._size += len(text)
        if self._size > TEXT_MAX_CHARS:
            raise UserError(f"{self._name}: a document is longer than {_LIMIT}; begin each object with `---`")
        return text

    def begin(self) -> None:
        """Begin the next document."""
        self._size = 0


def _parsed(where: str, text: str) -> Any:  # JSON
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: this is not JSON: {error}; write one object per line, or one array") from error


def _yaml(source: IO[str], name: str, type: str) -> Iterator[Row]:
    """Read documents, each an object or a list of them."""
    # The C parser is many times faster, but some builds of PyYAML lack it.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    number, documents = 0, _Documents(source, name)
    try:
        for document in yaml.load_all(documents, loader):
            documents.begin()
            for one in document if isinstance(document, list) else [] if document is None else [document]:
                number += 1
                yield _object(f"{name}: object {number}", one, type)
    except (yaml.YAMLError, RecursionError) as error:
        raise UserError(f"{name}: this is not YAML: {yaml_fault(error)}") from error


def _csv(source: IO[str], name: str, type: str) -> Iterator[Row]:
    reader = csv.reader(_lines(source, name), strict=True)
    try:
        heads = next(reader, None)
        if heads is None:
            raise UserError(
                f"{name}: the file is empty; its first line must name the columns: {','.join(FIELDS)}, and properties"
            )
        # Spreadsheet programs begin UTF-8 files with a byte order mark, which would belong to the first heading.
        heads[0] = heads[0].removeprefix("\ufeff")
        if twice := sorted({head for head in heads if heads.count(head) > 1}):
            raise UserError(f"{name}:1: column {twice[0]!r} occurs twice")
        for cells in reader:
            where = f"{name}:{reader.line_num}"
            if len(cells) > len(heads):
                raise UserError(f"{where}: {len(cells)} values for {len(heads)} columns")
            if any(cells):
                yield _object(where, _of_cells(where, dict(zip(heads, cells, strict=False))), type)
    except csv.Error as error:
        raise UserError(f"{name}:{reader.line_num}: this is not CSV: {error}") from error


def _of_cells(where: str, cells: dict[str, str]) -> dict[str, Any]:  # JSON
    """Return the mapping of one row, without empty cells."""
    mapping: dict[str, Any] = {field: cells[field] for field in FIELDS if cells.get(field)}
    try:
        mapping["tags"] = shlex.split(cells.get("tags", ""))
    except ValueError as error:
        raise UserError(f"{where}: tags: {error}; close the quotes") from error
    named = {head.removeprefix(PROPERTY): cell for head, cell in cells.items() if head not in FIELDS and cell}
    mapping["properties"] = {key: _value(where, key, cell) for key, cell in named.items()}
    return mapping


def _value(where: str, key: str, cell: str) -> str:
    """Return the value of a cell: its text or, if it begins with a quote, the JSON string in it. Only a JSON string can
    be empty."""
    if not cell.startswith('"'):
        return cell
    try:
        found = json.loads(cell)
    except ValueError as error:
        raise UserError(f"{where}: {key}: a value that begins with a quote must be a JSON string") from error
    return str(found)


def _write_csv(target: IO[str], described: Iterable[dict[str, Any]]) -> None:  # YAML
    rows = list(described)
    keys = sorted({key for one in rows for key in one.get("properties", {})})
    fields = [field for field in FIELDS if field in ("object_type", "name") or any(field in one for one in rows)]
    writer = csv.writer(target, lineterminator="\n")
    # Prefix properties whose names look like a field or already have the prefix, so that `import` can tell them apart.
    writer.writerow([*fields, *(PROPERTY + key if key in FIELDS or key.startswith(PROPERTY) else key for key in keys)])
    for one in rows:
        plain = {**one, "tags": shlex.join(one.get("tags", ()))}
        values = one.get("properties", {})
        writer.writerow([*(plain.get(field, "") for field in fields), *(_cell(values.get(key)) for key in keys)])


def _cell(value: str | None) -> str:
    if value is None:
        return ""
    return json.dumps(value, ensure_ascii=False) if not value or value.startswith('"') else value


@click.command("import")
@click.option("--file", "-f", default="-", metavar="FILE", help="The file to read. Default: standard input.")
@_format
@click.option("--type", "-t", default="", metavar="TYPE", help="The type of rows that name none.")
@click.option("--update", is_flag=True, help="Update existing objects that differ, instead of rejecting their rows.")
@connected
def import_(address: ServiceAddress, file: str, format: str | None, type: str, update: bool) -> None:
    """Create objects from CSV, JSON (one object per line, or an array) or YAML, without changing existing objects.

    The command imports all valid rows, and lists the rejected ones; after you correct those, import the same file
    again. The exit status is 1 if a row was rejected.
    """
    format = format_of(file, format or "")
    done = _Import(address.open(), update=update)
    try:
        with _opened(file, "r") as source:
            try:
                for part in _parts(read(source, "standard input" if file == "-" else file, format, type)):
                    done.take(part)
            finally:
                if not address.quiet:
                    say(done.text())
    except OSError as error:
        raise UserError(f"{file}: cannot be read: {error.strerror}") from error
    sys.exit(1 if done.counts["refused"] else 0)


@click.command("export")
@filtered
@_format
@click.option(
    "--output", "-o", "file", default="-", metavar="FILE", help="The file to write. Default: standard output."
)
@click.option("--no-uuid", is_flag=True, help="Omit uuids, so that an import creates new objects.")
@connected
def export(address: ServiceAddress, filters: tuple[str, ...], format: str | None, file: str, no_uuid: bool) -> None:
    """Write objects as CSV, JSON (one object per line) or YAML, in the format that `import` reads."""
    format = format_of(file, format or "")
    found = sorted(search(address.open(), wanted(filters, "")), key=lambda one: (one.partition, one.type, one.name))
    try:
        with _opened(file, "w") as target:
            write(target, found, format, uuids=not no_uuid)
    except OSError as error:
        raise UserError(f"{file}: cannot be written: {error.strerror}") from error


def _opened(file: str, mode: str) -> AbstractContextManager[IO[str]]:
    """Open the file without translating line endings."""
    if file == "-":
        return nullcontext(sys.stdin if mode == "r" else sys.stdout)
    # The csv module needs untranslated line endings, because a quoted value may contain one.
    return open(file, mode, encoding="utf-8", newline="", opener=file_opener if mode == "r" else None)


def _parts(found: Iterator[Row]) -> Iterator[list[Row]]:
    """Yield lists of rows, each as long as one request allows."""
    part: list[Row] = []
    size_bytes = 0
    for row in found:
        more = row[1].ByteSize()
        if part and (len(part) >= STEPS_MAX or size_bytes + more > STEPS_SIZE_MAX_BYTES):
            yield part
            part, size_bytes = [], 0
        part.append(row)
        size_bytes += more
    if part:
        yield part


class _Import:
    """Import one file, and count the outcomes of its rows."""

    def __init__(self, client: InventoryClient, *, update: bool) -> None:
        self._client, self._update = client, update
        self.counts: Counter[str] = Counter()

    def take(self, part: Sequence[Row]) -> None:
        """Import some rows: create their objects, and compare or update objects that already exist."""
        taken = self._apply(part, [pb.Step(create=one) for _, one in part], "created")
        if taken:
            self._compare([part[number] for number in taken], taken)

    def text(self) -> str:
        return ", ".join(f"{self.counts[what]} {what}" for what in ("created", "updated", "unchanged", "refused"))

    def _apply(self, part: Sequence[Row], steps: Sequence[pb.Step], what: str) -> dict[int, str]:
        """Perform the steps; return the numbers of those whose objects already exist, with the server's messages."""
        # With `in_parts`, one rejected row does not undo the other rows of the request.
        answer = self._client.call("Apply", steps=steps, in_parts=True)
        taken = {}
        for failure in answer.failures:
            if failure.status == TAKEN and what == "created":
                taken[failure.step] = failure.detail
            else:
                self._refused(part[failure.step], failure.detail)
        self.counts[what] += len(steps) - len(answer.failures)
        return taken

    def _compare(self, part: Sequence[Row], why: dict[int, str]) -> None:
        """Compare rows with existing objects: leave equal ones unchanged, and update or reject the others."""
        existing: dict[tuple[str, str], list[pb.Object]] = {}
        for old in self._existing([one for _, one in part]):
            existing.setdefault((old.type, old.name), []).append(old)
        changed: list[Row] = []
        patches: list[pb.Step] = []
        # `part` was built from the keys of `why`, so both have the same order.
        for (where, one), detail in zip(part, why.values(), strict=True):
            same = existing.get((one.type, one.name), [])
            same = [old for old in same if one.project in ("", old.project) and normal(one.uuid) in ("", old.uuid)]
            # Names are unique only within a project or a partition. If several objects match, reject the row: choosing
            # one would be a guess.
            if len(same) != 1:
                self._refused((where, one), detail)
                continue
            old = same[0]
            if one.properties == old.properties and sorted(one.tags) == sorted(old.tags):
                self.counts["unchanged"] += 1
            elif self._update:
                changed.append((where, one))
                patches.append(pb.Step(update=_patch(old, one)))
            else:
                self._refused((where, one), f"{one.type} {one.name} exists and differs; --update changes it")
        if patches:
            self._apply(changed, patches, "updated")

    def _existing(self, named: Sequence[pb.Object]) -> list[pb.Object]:
        """Return the existing objects with the same types and names."""
        found: list[pb.Object] = []
        left = iter(named)
        while some := list(islice(left, NAMES_MAX)):
            filters = [pb.Filter(types=[one.type], name=one.name, project=one.project) for one in some]
            for filter, one in zip(filters, some, strict=True):
                filter.partitions.extend([one.partition] if one.partition else [])
            found += search(self._client, filters)
        return found

    def _refused(self, row: Row, why: str) -> None:
        self.counts["refused"] += 1
        if self.counts["refused"] <= SHOWN_MAX:
            say(f"headgate: {row[0]}: {why}", err=True)
        elif self.counts["refused"] == SHOWN_MAX + 1:
            say("headgate: further rejected rows are only counted", err=True)


def _patch(old: pb.Object, new: pb.Object) -> pb.Patch:
    """Return the patch from `old` to `new`; the server rejects it if the object changes in the meantime."""
    patch = pb.Patch(uuid=old.uuid, expected_generation=old.generation)
    for key, value in new.properties.items():
        if old.properties.get(key, None) != value:
            patch.set_properties[key] = value
    patch.remove_properties.extend(sorted(key for key in old.properties if key not in new.properties))
    patch.add_tags.extend(sorted(set(new.tags) - set(old.tags)))
    patch.remove_tags.extend(sorted(set(old.tags) - set(new.tags)))
    return patch
