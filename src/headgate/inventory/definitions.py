"""Compile definitions as people write them, and check objects by their JSON Schema (draft-07 and 2020-12)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Any

import msgspec

from headgate.base.errors import needing
from headgate.base.hints import expected, with_hint
from headgate.inventory import expansion
from headgate.inventory.model import KIND, PARENT, PROVIDER, READ, WRITE, Definition, Object, Permission
from headgate.inventory.names import Invalid, name, value

SCHEMA_SIZE_MAX_BYTES = 200_000
ERRORS_SHOWN_MAX = 10
_SCHEMAS_CACHED_MAX = 256
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


class Nonconforming(Invalid):
    """Report that the object does not conform to its definition; the text names each property and its problem."""


class Schema:
    """Check objects against one definition. Raise Invalid if the text is not a schema."""

    def __init__(self, text: str) -> None:
        with needing("a JSON Schema of the inventory", "inventory"):
            import jsonschema_rs  # 15 MB
        document = _parsed(text)
        # Checks run in the process that serves everybody, and nothing can interrupt one.
        expansion.bound(document)
        self._properties = _properties(document)
        self._fields = _fields(document)
        _open_empty_types(document)
        try:
            self._validator = jsonschema_rs.validator_for(
                document,
                # A `$ref` with a URL would otherwise make the server fetch whatever address a user wrote.
                retriever=_nothing_elsewhere,
                validate_formats=True,
                pattern_options=jsonschema_rs.RegexOptions(),  # linear in time, whatever the pattern
            )
        except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as error:
            raise Invalid(f"the schema is not JSON Schema: {_first_line(error)}") from error

    def check(self, object: Object, hidden: Collection[str] = ()) -> None:
        """Check the object. Raise Nonconforming, whose text leaves out properties that are hidden from the caller."""
        document = self._document(object)
        wrong = []
        for error in self._validator.iter_errors(document):
            where = ".".join(str(step) for step in error.instance_path) or "the object"
            message = f"{where}: {error.message}"
            # The validator's text quotes keys and values.
            secret = any(key in message or _quoted(key) in message for key in hidden)
            wrong.append("a property that is hidden from you" if secret else message)
            if len(wrong) >= ERRORS_SHOWN_MAX:
                break
        if wrong:
            raise Nonconforming(f"{object.name} does not match its definition: {'; '.join(wrong)}")

    def _document(self, object: Object) -> dict[str, Any]:  # JSON
        """Return the object as schemas see it, with values of the declared types. A provider has its type and
        parent besides the name, and its project only if that is declared, because definitions of runm-metadata do
        not have one."""
        properties = {key: self._typed(key, value) for key, value in object.properties.items()}
        document: dict[str, Any] = {"partition": object.partition, "name": object.name, "uuid": object.uuid}  # JSON
        if object.project and (object.type != PROVIDER or "project" in self._fields or not self._fields):
            document["project"] = object.project
        if object.type == PROVIDER and KIND in properties:
            document["provider_type"] = properties.pop(KIND)
        if object.type == PROVIDER and PARENT in properties and PARENT in self._fields:
            document[PARENT] = properties.pop(PARENT)
        return {**document, "tags": list(object.tags), "properties": properties}

    def _typed(self, key: str, value: str) -> Any:  # JSON
        """Return the value, which is stored as text, as a number or a truth value where one of these is declared."""
        kinds = self._properties.get(key, frozenset())
        # A value such as `007` stays a string wherever the schema allows a string.
        if not kinds or "string" in kinds:
            return value
        try:
            read = msgspec.json.decode(value.encode())
        except (ValueError, RecursionError):
            return value
        return read if isinstance(read, bool | int | float) or read is None else value


@lru_cache(_SCHEMAS_CACHED_MAX)
def schema(text: str) -> Schema:
    """Return `Schema(text)`, cached."""
    return Schema(text)


def without(text: str, keys: Collection[str]) -> str:
    """Return the schema without the parts about properties with these keys; empty if the parts cannot be separated."""
    document = _parsed(text) if text else {}
    if not isinstance(document, dict):
        return text
    left = msgspec.json.encode(_without(document, frozenset(keys)), order="deterministic").decode()
    return "" if any(key in left or _quoted(key) in left for key in keys) else left


def _without(found: Any, keys: frozenset[str]) -> Any:  # JSON
    match found:
        case dict():
            return {name: _without(one, keys) for name, one in found.items() if name not in keys}
        case list():
            return [_without(one, keys) for one in found if not (isinstance(one, str) and one in keys)]
        case _:
            return found


def _quoted(key: str) -> str:
    """Return the key as it is in JSON."""
    return msgspec.json.encode(key).decode()[1:-1]


def _parsed(text: str) -> dict[str, Any] | bool:  # JSON
    size_bytes = len(text.encode("utf-8", "surrogatepass"))
    if size_bytes > SCHEMA_SIZE_MAX_BYTES:
        raise Invalid(f"the schema has {size_bytes} bytes; at most {SCHEMA_SIZE_MAX_BYTES} are allowed")
    try:
        document = msgspec.json.decode(text.encode())
    except (ValueError, RecursionError) as error:
        raise Invalid(f"the schema is not JSON: {error}") from error
    if not isinstance(document, dict | bool):
        raise Invalid("the schema is not JSON Schema: it must be an object, or true or false")
    return document


def _fields(document: dict[str, Any] | bool) -> frozenset[str]:  # JSON
    """Return the keys that are declared besides `properties`."""
    found = document.get("properties") if isinstance(document, dict) else None
    return frozenset(found) if isinstance(found, dict) else frozenset()


def _open_empty_types(document: dict[str, Any] | bool) -> None:  # JSON
    """Remove `"type": []` from declared properties: compilers of runm-metadata write it to allow any type."""
    for one in _declared(document).values():
        if isinstance(one, dict) and one.get("type") == []:
            del one["type"]


def _declared(document: dict[str, Any] | bool) -> Mapping[str, Any]:  # JSON
    """Return the schemas of the declared properties, by key."""
    found: object = document
    for _ in range(3):  # the document's "properties" declares "properties", and that has them as "properties"
        found = found.get("properties", {}) if isinstance(found, dict) else {}
    return found if isinstance(found, dict) else {}


def _properties(document: dict[str, Any] | bool) -> Mapping[str, frozenset[str]]:  # JSON
    """Map each property key to the JSON types that its schema names, if it names any."""
    return {key: _types(one) for key, one in _declared(document).items()}


def _types(document: object) -> frozenset[str]:
    named = document.get("type", ()) if isinstance(document, dict) else ()
    return frozenset([named] if isinstance(named, str) else named if isinstance(named, list) else ())


def _nothing_elsewhere(uri: str) -> Any:  # of the type that the library's callback returns
    raise ValueError(f"{uri} is not part of the schema, and nothing is fetched")


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def compiled(uuid: str, written: Mapping[str, Any]) -> Definition:  # YAML or JSON
    """Compile `property_definitions`, which map keys to schema, required and permissions.

    Keys that are not named may hold any text.  Raise Invalid, naming the property and its valid content.
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
            raise Invalid(f"property {key}: enum is a list of strings, not {choices!r}")
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
        raise Invalid(with_hint(f"{what}: {', '.join(unknown)} is not known", expected(known)))
