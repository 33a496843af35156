"""Check names and values, and normalise uuids and numbers to one form."""

from __future__ import annotations

import re
from decimal import Decimal
from functools import lru_cache

from headgate.base.errors import HeadgateError
from headgate.inventory.model import Object

NAME_SIZE_MAX_BYTES = 255
VALUE_SIZE_MAX_BYTES = 1_024
ATTRIBUTES_MAX = 64
"""Limit of properties and tags of one object together: each takes an entry of the commit that writes the object."""
RECORD_SIZE_MAX_BYTES = 60_000

_UUID = re.compile(r"[0-9a-f]{32}")
_NUMBER = re.compile(r"[+-]?[0-9]{1,40}(\.[0-9]{1,40})?([eE][+-]?[0-9]{1,3})?")
_NUMBERS_CACHED_MAX = 10_000


class Invalid(HeadgateError, ValueError):
    """Report a request that is invalid whatever the state; the text says what is wrong and what would be right."""


def normal(text: str) -> str:
    """Return a uuid in its stored form: lower case, no hyphens. Check other text with `is_uuid` first."""
    return text.lower().replace("-", "") if len(text) in (32, 36) else text


def is_uuid(text: str) -> bool:
    """Return whether the text is 32 hex digits, or 36 characters made of 32 hex digits and hyphens."""
    return bool(_UUID.fullmatch(normal(text)))


def uuid(text: str, what: str = "uuid") -> str:
    """Return the normal form of a uuid. Raise Invalid."""
    if not is_uuid(text):
        raise Invalid(f"{what} {_shown(text)} is not a uuid: give 32 hex digits, with or without hyphens")
    return normal(text)


def name(text: str, what: str, *, size_max_bytes: int = NAME_SIZE_MAX_BYTES) -> str:
    """Return the text if it is a valid name, key or tag. Raise Invalid."""
    if not text:
        raise Invalid(f"{what} is empty")
    return value(text, what, size_max_bytes=size_max_bytes)


def value(text: str, what: str, *, size_max_bytes: int = VALUE_SIZE_MAX_BYTES) -> str:
    """Check the text like `name`, but allow an empty one; return it."""
    try:
        size_bytes = len(text.encode())
    except UnicodeEncodeError:
        raise Invalid(f"{what} is not valid Unicode") from None
    if size_bytes > size_max_bytes:
        raise Invalid(f"{what} has {size_bytes} bytes; at most {size_max_bytes} are allowed")
    if "\x00" in text:
        raise Invalid(f"{what} {_shown(text)} contains NUL, which is not allowed")
    return text


def check(object: Object) -> Object:
    """Return the object if it can be stored: check names, sizes and numbers. Raise Invalid."""
    name(object.name, "name")
    value(object.project, "project", size_max_bytes=NAME_SIZE_MAX_BYTES)
    count = len(object.properties) + len(object.tags)
    if count > ATTRIBUTES_MAX:
        raise Invalid(f"{object.name} has {count} properties and tags; an object has at most {ATTRIBUTES_MAX} together")
    for key, text in object.properties.items():
        name(key, "property key")
        value(text, f"value of property {key}")
    for tag in object.tags:
        name(tag, "tag")
    if len(set(object.tags)) != len(object.tags):
        raise Invalid(f"{object.name} has a tag twice: {', '.join(sorted(object.tags))}")
    texts = (object.name, object.project, *object.properties, *object.properties.values(), *object.tags)
    most = sum(map(len, texts)) * 4 + len(texts) * 12 + 500  # a letter has at most four bytes
    if most > RECORD_SIZE_MAX_BYTES and (size_bytes := len(object.to_wire())) > RECORD_SIZE_MAX_BYTES:
        raise Invalid(f"{object.name} has {size_bytes} bytes in all; at most {RECORD_SIZE_MAX_BYTES} are allowed")
    return object


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:59]}…")


@lru_cache(_NUMBERS_CACHED_MAX)
def number(text: str) -> Decimal | None:
    """Return the exact number; None for a string that is not a number, such as one with a unit."""
    # Decimal itself also accepts NaN, Infinity, underscores and digits of other scripts.
    return Decimal(text) if _NUMBER.fullmatch(text) else None


def number_text(number: Decimal) -> str:
    """Return the shortest text for the number, without an exponent where it is an integer of a usual size."""
    plain = number.normalize()
    return f"{plain:f}" if -20 < plain.adjusted() < 20 else str(plain)
