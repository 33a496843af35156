"""Definitions as people write them: the properties of objects, their schemas, and who may see and change them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from headgate.inventory.model import READ, WRITE, Definition, Permission
from headgate.inventory.names import Invalid, name, value
from headgate.inventory.schema import schema

DRAFT = "http://json-schema.org/draft-07/schema#"
_KINDS = ("string", "integer", "number", "boolean")
_BOUNDS = {
    "multiple_of": "multipleOf",
    "minimum": "minimum",
    "maximum": "maximum",
    "min_length": "minLength",
    "max_length": "maxLength",
    "pattern": "pattern",
    "format": "format",
}
_FORMATS = (
    "date-time", "date", "time", "email", "idn-email", "hostname", "idn-hostname", "ipv4", "ipv6", "uri",
    "uri-reference", "iri", "iri-reference", "uri-template",
)  # fmt: skip
_MASKS = {"": 0, "r": READ, "w": WRITE, "rw": READ | WRITE}


def compiled(uuid: str, written: Mapping[str, Any]) -> Definition:  # YAML or JSON
    """Compile `property_definitions`, which map keys to schema, required and permissions.

    Keys that are not named may hold any text.  Raises Invalid, naming the property and what it may say.
    """
    properties: dict[str, Any] = {}  # JSON
    required: list[str] = []
    permissions: dict[str, tuple[Permission, ...]] = {}
    for key in sorted(written):
        body = written[key]
        name(key, "property key")
        _only(body, ("schema", "required", "permissions"), f"property {key}")
        properties[key] = _compiled_schema(key, body.get("schema"))
        if body.get("required", False) is True:
            required.append(key)
        elif body.get("required", False) is not False:
            raise Invalid(f"property {key}: required is true or false, not {body['required']!r}")
        if body.get("permissions") is not None:
            permissions[key] = _permissions(key, body["permissions"])
    definition = Definition(uuid, document(properties, required), permissions)
    check(definition)
    return definition


def document(properties: Mapping[str, Any], required: list[str]) -> str:  # JSON
    """Return the schema of a whole object with these properties; equal content always gives equal text."""
    inner: dict[str, Any] = {  # JSON
        "type": "object",
        "properties": dict(properties),
        "additionalProperties": {"type": "string"},
    }
    outer: dict[str, Any] = {  # JSON
        "$schema": DRAFT,
        "type": "object",
        "properties": {
            **{field: {"type": "string"} for field in ("partition", "provider_type", "project", "name", "uuid")},
            "tags": {"type": "array", "items": {"type": "string"}},
            "properties": inner,
        },
        "required": ["name"],
        "additionalProperties": False,
    }
    if required:
        inner["required"] = sorted(required)
        outer["required"] = ["name", "properties"]
    return msgspec.json.encode(outer, order="deterministic").decode()


def check(definition: Definition) -> Definition:
    """Return the definition if it can be stored. Raise Invalid."""
    if definition.schema:
        schema(definition.schema)
    for key, rules in definition.permissions.items():
        name(key, "property key of a permission")
        for rule in rules:
            value(rule.project, "project of a permission")
            value(rule.role, "role of a permission")
            if rule.mask not in (0, READ, WRITE, READ | WRITE):
                raise Invalid(f"permission {rule.mask} of property {key}: it is 0 (none), 1 (read), 2 (write) or 3")
    return definition


DEFAULT = Definition("", document({}, []))
"""The definition of providers until another is set: any property, any text."""


def _original() -> str:
    """Return the schema that runm-metadata has for providers from the start."""
    text = {"type": "string"}
    fields = {field: text for field in ("partition", "provider_type", "name", "uuid", "parent")}
    properties = {
        "type": "object",
        "properties": {},
        "patternProperties": {"^[a-zA-Z0-9]+$": text},
        "additionalProperties": False,
    }
    document = {
        "$schema": DRAFT,
        "type": "object",
        "properties": {**fields, "tags": {"type": "array", "items": text}, "properties": properties},
        "required": ["partition", "provider_type"],
        "additionalProperties": False,
    }
    return msgspec.json.encode(document, order="deterministic").decode()


ORIGINAL_DEFAULT = Definition("", _original())
"""The definition of runm-metadata: any property whose key has letters and digits alone, with any text."""


def _compiled_schema(key: str, written: object) -> dict[str, Any]:  # JSON
    if written is None:
        return {"type": "string"}
    _only(written, ("type", "types", "enum", *_BOUNDS), f"schema of property {key}")
    assert isinstance(written, dict), "only mappings pass"
    found: dict[str, Any] = {}  # JSON
    kinds = written.get("type", written.get("types"))
    named = [kinds] if isinstance(kinds, str) else kinds
    if named is not None:
        if not isinstance(named, list) or not named or not set(map(str, named)) <= set(_KINDS):
            raise Invalid(f"property {key}: type is one or several of {', '.join(_KINDS)}, not {kinds!r}")
        found["type"] = named[0] if len(named) == 1 else named
    if (choices := written.get("enum")) is not None:
        if not isinstance(choices, list) or not choices or not all(isinstance(one, str) for one in choices):
            raise Invalid(f"property {key}: enum is a list of texts, not {choices!r}")
        found["enum"] = choices
    found |= {_BOUNDS[bound]: written[bound] for bound in _BOUNDS if written.get(bound) is not None}
    if "format" in found and found["format"] not in _FORMATS:
        raise Invalid(f"property {key}: format is one of {', '.join(_FORMATS)}, not {found['format']!r}")
    return found or {"type": "string"}


def _permissions(key: str, written: object) -> tuple[Permission, ...]:
    if not isinstance(written, list):
        raise Invalid(f"property {key}: permissions is a list, not {written!r}")
    found = []
    for rule in written:
        _only(rule, ("project", "role", "permission"), f"a permission of property {key}")
        mask = rule.get("permission") or ""
        if mask not in _MASKS:
            raise Invalid(f"property {key}: permission is empty, r, w or rw, not {mask!r}")
        found.append(Permission(str(rule.get("project") or ""), str(rule.get("role") or ""), _MASKS[mask]))
    return tuple(found)


def _only(written: object, known: tuple[str, ...], what: str) -> None:
    if not isinstance(written, dict):
        raise Invalid(f"{what} is a mapping, not {written!r}")
    unknown = sorted(str(word) for word in written if word not in known)
    if unknown:
        raise Invalid(f"{what}: {', '.join(unknown)} is not known; known are {', '.join(known)}")
