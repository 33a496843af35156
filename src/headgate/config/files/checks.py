"""Check values against tables of keys, and report unknown keys and wrong types with line numbers and suggestions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from headgate.base.hints import HintedText, nearest
from headgate.base.texts import line as one_line
from headgate.config.files.document import Encrypted, Rows, Table, Tagged, row_lines
from headgate.config.files.source import NO_EFFECT, Wrong
from headgate.config.patterns import BadPattern, compiled


@dataclass(slots=True)
class ValueSpot:
    """Describe a value in messages, with its line, and collect warnings about it."""

    line: int
    what: str
    warnings: list[Wrong] = field(default_factory=list)

    def wrong(self, text: str, name: str = "Unknown") -> Wrong:
        return Wrong(f"{self.what} {text}", self.line, name)

    def at(self, line: int, what: str = "") -> ValueSpot:
        return ValueSpot(line, what or self.what, self.warnings)

    def warn(self, text: str, name: str) -> None:
        self.warnings.append(Wrong(f"{self.what} {text}", self.line, name, "warning"))


def one_stanza(item: object, kinds: Collection[str], what: str) -> tuple[str, Any]:
    """Return the kind and the content of an element of a file, which `what` describes. Raise Wrong if it is no mapping
    with one key."""
    if not isinstance(item, Table) or not item:
        raise Wrong(what, getattr(item, "line", 1))
    (kind, content), *others = item.items()
    if others and kind in kinds and (key := others[0][0]) not in kinds:
        raise Wrong(f"{key!r} is next to `- {kind}:`, not in it: indent it further", item.at(key))
    if others:
        raise Wrong(what, item.line)
    return kind, content


Schema = dict[str, Any]
"""JSON Schema, draft 7."""


class Check(NamedTuple):
    """Check one value. `see` raises Wrong unless the value matches the description `says`."""

    says: str
    see: Callable[[Any, ValueSpot], None]
    tags: frozenset[str] = frozenset()
    """`override`, `inherit`: tags that the value may have."""
    schema: Callable[[], Schema] = dict
    """Function that returns the same check as JSON Schema, for editors, as far as it can express it."""


@dataclass(frozen=True, slots=True)
class StanzaKey:
    """Declare one key of a stanza; the reference page is generated from these declarations."""

    check: Check
    default: str = ""
    note: str = ""
    required: bool = False
    idle: str = ""
    """Reason why the key has no effect in Headgate; empty if it has one."""


Keys = Mapping[str, StanzaKey]


def _of(says: str, good: Callable[[Any], bool], schema: Schema) -> Check:
    def see(value: Any, spot: ValueSpot) -> None:
        if not good(value):
            raise spot.wrong(f"must be {says}, not {show(value)}")

    return Check(says, see, schema=lambda: schema)


def _is_int(value: Any) -> bool:
    # In Python, bool is a subclass of int.
    return isinstance(value, int) and not isinstance(value, bool)


text = _of("text", lambda v: isinstance(v, str), {"type": "string"})
name = _of(
    "one line of printable text",
    lambda v: isinstance(v, str) and one_line(v, len(v)) == v,
    {"type": "string"},
)
"""Check for names, which reports, pages and terminals display."""
text_or_null = _of("text or null", lambda v: v is None or isinstance(v, str), {"type": ["string", "null"]})
# YAML reads values such as 9 or 2.9 as numbers.
word = _of(
    "text or a number",
    lambda v: isinstance(v, str) or _is_int(v) or isinstance(v, float),
    {"type": ["string", "number"]},
)
flag = _of("true or false", lambda v: isinstance(v, bool), {"type": "boolean"})
flag_or_auto = _of("true, false or auto", lambda v: isinstance(v, bool) or v == "auto", {"enum": [True, False, "auto"]})
integer = _of("a whole number", _is_int, {"type": "integer"})
mapping = _of("a mapping", lambda v: isinstance(v, dict), {"type": "object"})
null = _of("null", lambda v: v is None, {"type": "null"})
anything = _of("anything", lambda v: True, {})


def count(least: int = 0, most: int | None = None) -> Check:
    schema: Schema = {"type": "integer", "minimum": least}
    if most is None:
        return _of(f"a whole number of at least {least}", lambda v: _is_int(v) and v >= least, schema)
    says = f"a whole number from {least} to {most}"
    return _of(says, lambda v: _is_int(v) and least <= v <= most, {**schema, "maximum": most})


def count_or_null(least: int = 0) -> Check:
    schema = {"type": ["integer", "null"], "minimum": least}
    says = f"a whole number of at least {least}, or null"
    return _of(says, lambda v: v is None or (_is_int(v) and v >= least), schema)


def one_of(*words: str) -> Check:
    return _of(f"one of {', '.join(words)}", lambda v: isinstance(v, str) and v in words, {"enum": list(words)})


def many(check: Check) -> Check:
    """Accept one value that passes the check, or a list of them."""

    def see(value: Any, spot: ValueSpot) -> None:
        for element, line in zip(as_list(value), row_lines(value, spot.line), strict=False):
            check.see(element, spot.at(line))
        # An empty value has no elements, so the loop has checked nothing.
        if value is None:
            raise spot.wrong(f"must be {check.says}, or a list of them, not empty")

    def schema() -> Schema:
        one = check.schema()
        return {"anyOf": [one, {"type": "array", "items": one}]}

    return Check(f"list of {check.says}", see, schema=schema)


def listed(check: Check) -> Check:
    """Accept a list of values that pass the check, but not a single value."""
    inner = many(check)

    def schema() -> Schema:
        return {"type": "array", "items": check.schema()}

    def see(value: Any, spot: ValueSpot) -> None:
        if not isinstance(value, list):
            raise spot.wrong(f"must be a list, not {show(value)}")
        inner.see(value, spot)

    return Check(inner.says, see, schema=schema)


def _regex(value: Any, spot: ValueSpot) -> None:
    pattern = value
    if isinstance(value, dict):
        good = set(value) <= {"regex", "negate"} and isinstance(value.get("regex"), str)
        if not good or not isinstance(value.get("negate", False), bool):
            raise spot.wrong("must be a pattern or {regex: pattern, negate: true|false}")
        pattern = value["regex"]
    if not isinstance(pattern, str):
        raise spot.wrong(f"must be a pattern, not {show(value)}")
    try:
        found = compiled(pattern)
    except BadPattern as bad:
        raise spot.wrong(f"is invalid: {bad}") from bad
    if found.legacy:
        spot.warn(f"has a pattern that RE2 does not support: {pattern!r}: {found.legacy}", "Regex Deprecation")


def _regex_schema() -> Schema:
    keys = {"regex": StanzaKey(text, required=True), "negate": StanzaKey(flag, "false")}
    return {"anyOf": [{"type": "string"}, object_schema(keys)]}


regex = Check("pattern, or {regex, negate}", _regex, schema=_regex_schema)


def either(*checks: Check) -> Check:
    """Accept a value that passes any of the checks; otherwise raise the error of the last."""

    def see(value: Any, spot: ValueSpot) -> None:
        for check in checks[:-1]:
            warnings: list[Wrong] = []
            try:
                # Drop the warnings of a check that fails: the value is probably meant for another one.
                check.see(value, ValueSpot(spot.line, spot.what, warnings))
            except Wrong:
                continue
            spot.warnings.extend(warnings)
            return
        checks[-1].see(value, spot)

    return Check(" or ".join(c.says for c in checks), see, schema=lambda: {"anyOf": [c.schema() for c in checks]})


def inner(keys: Keys, what: str) -> Check:
    """Accept a mapping with these keys."""

    def see(value: Any, spot: ValueSpot) -> None:
        table(value, keys, what, spot.warnings, spot.line)

    return Check(f"{{{', '.join(keys)}}}", see, schema=lambda: object_schema(keys))


def named(extra: Keys, what: str, key: str = "name") -> Check:
    """Accept a string, or a mapping with `key` and some of `extra`."""
    keys = {key: StanzaKey(text, required=True), **extra}

    def see(value: Any, spot: ValueSpot) -> None:
        if not isinstance(value, str):
            table(value, keys, what, spot.warnings, spot.line)

    def schema() -> Schema:
        return {"anyOf": [{"type": "string"}, object_schema(keys)]}

    return Check(f"text or {{{', '.join(keys)}}}", see, schema=schema)


def tagged(check: Check, *tags: str) -> Check:
    """Allow the tags `!override` or `!inherit` for the value."""

    def see(value: Any, spot: ValueSpot) -> None:
        if isinstance(value, Tagged) and value.tag not in tags:
            raise spot.wrong(f"cannot have the tag !{value.tag}")
        check.see(plain(value), spot)

    return Check(check.says, see, frozenset(tags), check.schema)


def table(stanza: Any, keys: Keys, what: str, warnings: list[Wrong], line: int = 0) -> None:
    """Check that every key is known, that its value has the right type, and that no required key is missing. Raise
    Wrong for the first error."""
    if not isinstance(stanza, Table):
        raise Wrong(f"{_a(what)} must be a mapping, not {show(stanza)}", line)
    for name, value in stanza.items():
        key = keys.get(name)
        if key is None:
            raise Wrong(HintedText(f"{_a(what)} has no key {name!r}", nearest(name, keys)), stanza.at(name))
        key.check.see(value, ValueSpot(stanza.at(name), f"{name} of {_a(what)}", warnings))
        # Do not warn about a setting that is off: ignoring it changes nothing.
        if key.idle and value not in (None, False):
            warnings.append(idle(f"{name} of {_a(what)}", key.idle, stanza.at(name)))
    for name, key in keys.items():
        if key.required and name not in stanza:
            raise Wrong(f"this {what} lacks {name!r}", stanza.line or line)


def idle(what: str, why: str, line: int) -> Wrong:
    """Return a warning that a setting is accepted but has no effect."""
    return Wrong(f"{what} has no effect: {why}", line, NO_EFFECT, "warning")


def object_schema(keys: Keys) -> Schema:
    """Return the schema of a mapping with these keys and no others."""
    required = [name for name, key in keys.items() if key.required]
    return {
        "type": "object",
        "properties": {name: _key_schema(key) for name, key in keys.items()},
        "additionalProperties": False,
        **({"required": required} if required else {}),
    }


def _key_schema(key: StanzaKey) -> Schema:
    words = [
        key.note,
        f"No effect: {key.idle}" if key.idle else "",
        f"Default: {key.default}" if key.default else "",
    ]
    description = ". ".join(f"{word[:1].upper()}{word[1:]}" for word in words if word)
    return {**key.check.schema(), **({"description": description} if description else {})}


def _a(what: str) -> str:
    return f"{'an' if what[:1] in 'aeiou' else 'a'} {what}"


def plain(value: Any) -> Any:
    """Return the value without its tag `!override` or `!inherit`."""
    return value.value if isinstance(value, Tagged) else value


def as_list(value: Any) -> list[Any]:
    """Return a value, which may be tagged, as a list."""
    value = plain(value)
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def entries(value: Any, line: int) -> list[tuple[Any, int]]:
    """Return a value, which may be tagged, as a list of elements, each with its line."""
    if value is None:
        return []
    value = plain(value)
    return list(zip(as_list(value), row_lines(value, line), strict=False))


def deep_plain(value: Any) -> Any:
    """Return the value as plain JSON, without Tables and tags. An encrypted value becomes a mapping whose only key
    is the tag."""
    if isinstance(value, Tagged):
        value = value.value
    if isinstance(value, dict):
        return {key: deep_plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [deep_plain(inner) for inner in value]
    if isinstance(value, Encrypted):
        return {"!encrypted/pkcs1-oaep": list(value.chunks)}
    return value


def show(value: Any) -> str:
    """Format a value for an error message."""
    kinds: dict[type, str] = {dict: "a mapping", Table: "a mapping", list: "a list", Rows: "a list"}
    if value is None:
        return "nothing"
    if isinstance(value, Tagged):
        return f"a value with the tag !{value.tag}"
    if isinstance(value, Encrypted):
        return "an encrypted value"
    shown = repr(value)
    return kinds.get(type(value)) or (shown if len(shown) <= 60 else f"{shown[:60]}…")
