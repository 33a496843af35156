"""Objects as rows of CSV, lines of JSON and documents of YAML: written files can be read again without loss."""

from __future__ import annotations

import csv
import json
import shlex
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import yaml

from headgate.base.errors import UserError
from headgate.cli.inventory.documents import object_of
from headgate.inventory.model import KIND, PROVIDER
from headgate.inventory.wire import inventory_pb2 as pb

FORMATS = ("csv", "json", "yaml")
FIELDS = ("object_type", "name", "uuid", "project", "partition", "tags")
PROPERTY = "property:"
"""Prefix for the heading of a column whose property has the name of a field."""
_SUFFIXES = {".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json", ".yaml": "yaml", ".yml": "yaml"}

Row = tuple[str, pb.Object]
"""Place in the file, for messages, and the object."""


def format_of(file: str, given: str) -> str:
    """Return the given format, or that of the file's suffix. Raise UserError."""
    found = given or _SUFFIXES.get(Path(file).suffix.lower(), "")
    if not found:
        raise UserError(f"{file}: what format is this? Say --format {' or '.join(FORMATS)}")
    return found


def read(source: IO[str], name: str, format: str, type: str) -> Iterator[Row]:
    """Yield one object after the other.  Raise UserError, which names the line."""
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
    for number, line in enumerate(source, 1):
        # One array is read as a whole; lines are read one by one, so that a file of any size needs little memory.
        if number == 1 and line.lstrip().startswith("["):
            array = _parsed(name, line + source.read())
            yield from (_object(f"{name}: object {n}", one, type) for n, one in enumerate(array, 1))
        elif line.strip():
            yield _object(f"{name}:{number}", _parsed(f"{name}:{number}", line), type)


def _parsed(where: str, text: str) -> Any:  # JSON
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: this is not JSON: {error}; it is one object a line, or one array") from error


def _yaml(source: IO[str], name: str, type: str) -> Iterator[Row]:
    """Read documents, each an object or a list of them."""
    # The parser in C is many times as fast, and some builds of PyYAML lack it.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    number = 0
    try:
        for document in yaml.load_all(source, loader):
            for one in document if isinstance(document, list) else [] if document is None else [document]:
                number += 1
                yield _object(f"{name}: object {number}", one, type)
    except (yaml.YAMLError, RecursionError) as error:
        raise UserError(f"{name}: this is not YAML: {' '.join(str(error).split())}") from error


def _csv(source: IO[str], name: str, type: str) -> Iterator[Row]:
    reader = csv.reader(source, strict=True)
    try:
        heads = next(reader, None)
        if heads is None:
            raise UserError(f"{name}: is empty; its first line names the columns: {','.join(FIELDS)}, and properties")
        # Spreadsheet programs begin UTF-8 files with a byte order mark, which would belong to the first heading.
        heads[0] = heads[0].removeprefix("\ufeff")
        if twice := sorted({head for head in heads if heads.count(head) > 1}):
            raise UserError(f"{name}:1: column {twice[0]!r} is there twice")
        for cells in reader:
            where = f"{name}:{reader.line_num}"
            if len(cells) > len(heads):
                raise UserError(f"{where}: {len(cells)} values for {len(heads)} columns")
            if any(cells):
                yield _object(where, _of_cells(where, dict(zip(heads, cells, strict=False))), type)
    except csv.Error as error:
        raise UserError(f"{name}:{reader.line_num}: this is not CSV: {error}") from error


def _of_cells(where: str, cells: dict[str, str]) -> dict[str, Any]:  # JSON
    """Return the mapping of one row; empty cells are left out."""
    mapping: dict[str, Any] = {field: cells[field] for field in FIELDS if cells.get(field)}
    try:
        mapping["tags"] = shlex.split(cells.get("tags", ""))
    except ValueError as error:
        raise UserError(f"{where}: tags: {error}; close the quotes") from error
    named = {head.removeprefix(PROPERTY): cell for head, cell in cells.items() if head not in FIELDS and cell}
    mapping["properties"] = {key: _value(where, key, cell) for key, cell in named.items()}
    return mapping


def _value(where: str, key: str, cell: str) -> str:
    """Return the value of a cell: its text or, in quotes, a JSON string, which an empty text must be."""
    if not cell.startswith('"'):
        return cell
    try:
        found = json.loads(cell)
    except ValueError as error:
        raise UserError(f"{where}: {key}: what begins with a quote is a text of JSON, and this is none") from error
    return str(found)


def _write_csv(target: IO[str], described: Iterable[dict[str, Any]]) -> None:  # YAML
    rows = list(described)
    keys = sorted({key for one in rows for key in one.get("properties", {})})
    fields = [field for field in FIELDS if field in ("object_type", "name") or any(field in one for one in rows)]
    writer = csv.writer(target, lineterminator="\n")
    writer.writerow([*fields, *(PROPERTY + key if key in FIELDS or key.startswith(PROPERTY) else key for key in keys)])
    for one in rows:
        plain = {**one, "tags": shlex.join(one.get("tags", ()))}
        values = one.get("properties", {})
        writer.writerow([*(plain.get(field, "") for field in fields), *(_cell(values.get(key)) for key in keys)])


def _cell(value: str | None) -> str:
    if value is None:
        return ""
    return json.dumps(value, ensure_ascii=False) if not value or value.startswith('"') else value
