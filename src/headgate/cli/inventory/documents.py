"""Read partitions, providers, objects and definitions from YAML that people write."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from headgate.base.errors import UserError
from headgate.base.files import text_of
from headgate.base.texts import yaml_fault
from headgate.inventory import definitions
from headgate.inventory.model import KIND, PROVIDER, Definition
from headgate.inventory.names import Invalid
from headgate.inventory.wire import inventory_pb2 as pb

DOCUMENT_SIZE_MAX_CHARS = 2_000_000


def read(file: str) -> tuple[str, dict[str, Any]]:  # YAML
    """Read a file, or standard input (`-`), and return its name for messages and its mapping. Raise UserError."""
    name = "standard input" if file == "-" else file
    try:
        size = DOCUMENT_SIZE_MAX_CHARS + 1
        text = sys.stdin.read(size) if file == "-" else text_of(Path(file), size_max=size)
        if len(text) == size:
            raise UserError(
                f"{name}: the document is longer than {DOCUMENT_SIZE_MAX_CHARS // 1_000_000} million characters"
            )
        found = yaml.safe_load(text)
    except OSError as error:
        raise UserError(f"{file}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{name}: the file is not UTF-8 ({error.reason} at byte {error.start})") from error
    except yaml.YAMLError as error:
        raise UserError(f"{name}: this is not YAML: {yaml_fault(error)}") from error
    if not isinstance(found, dict):
        raise UserError(f"{name}: expected a mapping, NAME: VALUE")
    return name, found


def partition(file: str) -> pb.Partition:
    """Read a partition: name and uuid. Raise UserError."""
    name, found = read(file)
    _only(name, found, ("name", "uuid"), ("name",))
    return pb.Partition(name=_text(found["name"]), uuid=_text(found.get("uuid", "")))


def described(file: str, type: str) -> pb.Object:
    """Read an object of the given type, or else of the type in its `object_type`. Raise UserError."""
    name, found = read(file)
    return object_of(name, found, type)


def object_of(name: str, found: Mapping[str, Any], type: str) -> pb.Object:  # YAML or JSON
    """Return the object that a mapping describes; `name` is its name in error messages. Raise UserError."""
    known: tuple[str, ...] = ("partition", "project", "name", "uuid", "tags", "properties")
    needed: tuple[str, ...] = ("name",)
    if type == PROVIDER:
        known, needed = (*known, "provider_type", "parent"), ("name", "provider_type")
    elif not type:
        known, needed = (*known, "object_type"), ("name", "object_type")
    _only(name, found, known, needed)
    properties, tags = found.get("properties") or {}, found.get("tags") or []
    # The inventory stores property values as strings, so nested values are not allowed.
    if not isinstance(properties, dict) or any(isinstance(one, dict | list) for one in properties.values()):
        raise UserError(f"{name}: properties must be a mapping whose values are strings, numbers, true or false")
    if not isinstance(tags, list):
        raise UserError(f"{name}: tags must be a list")
    texts = {_text(key): _text(value) for key, value in properties.items()}
    texts |= {
        key: _text(found[field]) for key, field in ((KIND, "provider_type"), ("parent", "parent")) if field in found
    }
    return pb.Object(
        partition=_text(found.get("partition", "")),
        type=type or _text(found["object_type"]),
        project=_text(found.get("project", "")),
        uuid=_text(found.get("uuid", "")),
        name=_text(found["name"]),
        properties=texts,
        tags=[_text(tag) for tag in tags],
    )


def definition(file: str) -> Definition:
    """Read a definition: property_definitions. Raise UserError."""
    name, found = read(file)
    _only(name, found, ("property_definitions",), ("property_definitions",))
    written = found["property_definitions"]
    if not isinstance(written, dict):
        raise UserError(
            f"{name}: property_definitions must be a mapping of each KEY to schema, required and permissions"
        )
    try:
        return definitions.compiled("", {_text(key): body or {} for key, body in written.items()})
    except Invalid as error:
        raise UserError(f"{name}: {error}") from error


def _only(name: str, found: Mapping[str, Any], known: tuple[str, ...], needed: tuple[str, ...]) -> None:  # YAML
    if unknown := sorted(str(key) for key in found if key not in known):
        raise UserError(f"{name}: unknown key {', '.join(unknown)}; known keys are {', '.join(known)}")
    if missing := [key for key in needed if not found.get(key)]:
        raise UserError(f"{name}: {' and '.join(missing)} must be set")


def _text(value: object) -> str:
    """Return a value as a string: numbers as in JSON, booleans as true and false."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)
