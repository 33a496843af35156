"""Users' regular expressions: RE2, and Python's dialect for patterns that RE2 does not know.

A pattern is text, or `{regex: text, negate: true|false}`.  Same text, same compiled pattern: the memo is bounded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import re2

COMPILED_MAX = 8_192
"""Patterns kept compiled."""

Rule = str | Mapping[str, Any]


class BadPattern(Exception):
    """Neither RE2 nor Python can compile it; the argument says why."""


class Matcher(Protocol):
    def match(self, text: str) -> object | None: ...
    def fullmatch(self, text: str) -> object | None: ...


class Compiled(NamedTuple):
    matcher: Matcher
    legacy: str
    """Why RE2 refuses it, when only Python accepts it."""


@lru_cache(maxsize=COMPILED_MAX)
def compiled(text: str) -> Compiled:
    """Raises BadPattern."""
    options = re2.Options()
    options.log_errors = False
    try:
        return Compiled(re2.compile(text, options), "")
    except re2.error as error:
        why = error.args[0]
        told = why.decode(errors="replace") if isinstance(why, bytes) else str(why)
    except UnicodeError as error:
        raise BadPattern(f"{text!r} is no text") from error
    try:
        return Compiled(re.compile(text), told)
    except (re.error, RecursionError, OverflowError) as error:
        raise BadPattern(f"{text!r} is no regular expression: {told}") from error


def matches(rule: Rule, subject: str) -> bool:
    """At the start of `subject`, not to its end; the other way round when negated."""
    if isinstance(rule, str):
        return compiled(rule).matcher.match(subject) is not None
    return (compiled(rule["regex"]).matcher.match(subject) is not None) != bool(rule.get("negate"))


def matches_whole(rule: Rule, subject: str) -> bool:
    if isinstance(rule, str):
        return compiled(rule).matcher.fullmatch(subject) is not None
    return (compiled(rule["regex"]).matcher.fullmatch(subject) is not None) != bool(rule.get("negate"))


def any_matches(rules: Iterable[Rule], subject: str) -> bool:
    return any(matches(rule, subject) for rule in rules)


def any_whole(rules: Iterable[Rule], subject: str) -> bool:
    return any(matches_whole(rule, subject) for rule in rules)
