"""Checking stanzas against a table of keys: what is unknown, what has the wrong type, where, and what was meant."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import re2

from headgate.config.marked import Table, Tagged, Wrong, nearest

Check = Callable[[Any], str]
"""Value -> what is wrong with it; empty when nothing."""


def text(value: Any) -> str:
    return "" if isinstance(value, str) else f"must be text, not {_kind(value)}"


def text_or_null(value: Any) -> str:
    return "" if value is None else text(value)


def word(value: Any) -> str:
    return (
        ""
        if isinstance(value, str | int | float) and not isinstance(value, bool)
        else f"must be text or a number, not {_kind(value)}"
    )


def flag(value: Any) -> str:
    return "" if isinstance(value, bool) else f"must be true or false, not {_kind(value)}"


def flag_or_auto(value: Any) -> str:
    return "" if isinstance(value, bool) or value == "auto" else "must be true, false or auto"


def mapping(value: Any) -> str:
    return "" if isinstance(value, dict) else f"must be a mapping, not {_kind(value)}"


def anything(value: Any) -> str:
    return ""


def count(least: int = 0) -> Check:
    def check(value: Any) -> str:
        good = isinstance(value, int) and not isinstance(value, bool) and value >= least
        return "" if good else f"must be a whole number of at least {least}, not {_show(value)}"

    return check


def count_or_null(least: int = 0) -> Check:
    return lambda value: "" if value is None else count(least)(value)


def one_of(*words: str) -> Check:
    return lambda value: "" if value in words else f"must be one of {', '.join(words)}, not {_show(value)}"


def many(check: Check) -> Check:
    """One, or a list of them."""

    def checks(value: Any) -> str:
        return next((why for v in as_list(value) if (why := check(v))), "")

    return checks


def regex(value: Any) -> str:
    """A pattern, or `{regex: …, negate: …}`."""
    if isinstance(value, dict):
        if set(value) - {"regex", "negate"} or not isinstance(value.get("regex"), str):
            return "must be a pattern or {regex: pattern, negate: true|false}"
        value = value["regex"]
    if not isinstance(value, str):
        return f"must be a pattern, not {_kind(value)}"
    return bad_pattern(value)


def bad_pattern(pattern: str) -> str:
    """Why it cannot be used; empty when it can."""
    options = re2.Options()
    options.log_errors = False
    try:
        re2.compile(pattern, options)
    except re2.error as error:
        why = error.args[0]
        return f"{pattern!r} is no RE2 pattern: {why.decode() if isinstance(why, bytes) else why}"
    return ""


def either(*checks: Check) -> Check:
    """Good when any of them is content."""

    def check(value: Any) -> str:
        whys = [c(value) for c in checks]
        return "" if "" in whys else whys[-1]

    return check


def named(extra: Mapping[str, Check], key: str = "name") -> Check:
    """Text, or a mapping with `key` and some of `extra`."""

    def check(value: Any) -> str:
        if isinstance(value, str):
            return ""
        if not isinstance(value, dict) or not isinstance(value.get(key), str):
            return f"must be text or a mapping with {key!r}, not {_show(value)}"
        for name, inner in value.items():
            if name != key and name not in extra:
                return f"has no key {name!r}{nearest(name, [key, *extra])}"
            if name != key and (why := extra[name](inner)):
                return f"{name} {why}"
        return ""

    return check


def table(stanza: Any, keys: Mapping[str, Check], what: str, required: tuple[str, ...] = ("name",)) -> None:
    """Every key known and of the right type.  Raises Wrong for the first that is not."""
    if not isinstance(stanza, Table):
        raise Wrong(f"a {what} must be a mapping, not {_kind(stanza)}", 0)
    for key, value in stanza.items():
        if key not in keys:
            raise Wrong(f"a {what} has no key {key!r}{nearest(key, list(keys))}", stanza.at(key))
        if why := keys[key](plain(value)):
            raise Wrong(f"{key} of a {what} {why}", stanza.at(key))
    for key in required:
        if key not in stanza:
            raise Wrong(f"this {what} lacks {key!r}", stanza.line)


def plain(value: Any) -> Any:
    """Without the tag `!override` or `!inherit`."""
    return value.value if isinstance(value, Tagged) else value


def as_list(value: Any) -> list[Any]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def deep_plain(value: Any) -> Any:
    """As JSON: no Tables, no tags."""
    value = plain(value)
    if isinstance(value, dict):
        return {key: deep_plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [deep_plain(inner) for inner in value]
    return value


def _kind(value: Any) -> str:
    names = {dict: "a mapping", Table: "a mapping", list: "a list", str: "text", bool: "true/false", int: "a number"}
    return "nothing" if value is None else names.get(type(value), "a number")


def _show(value: Any) -> str:
    return repr(value) if isinstance(value, str | int | float) else _kind(value)
