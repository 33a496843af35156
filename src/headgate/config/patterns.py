"""Match users' regular expressions with RE2, or in Python's dialect if RE2 does not support a pattern.

A pattern is a string, or `{regex: string, negate: true|false}`. Compiled patterns are cached, within a limit. No match
takes long: a pattern that RE2 does not support is matched by Python's engine if that is proved to be fast
(`regex.steps_max`), or else by `regex.Walk`. If even that does not finish within its limit of steps, the match is
Undecided, which is a configuration error and never counts as a result.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import re2

from headgate.base.errors import ConfigurationError
from headgate.config import regex

COMPILED_MAX = 4_096
"""Maximum number of cached compiled patterns."""
ANSWERS_MAX = 1_000
"""Maximum number of cached results of a pattern that RE2 does not support."""
LENGTH_MAX = 20_000
"""Largest number of characters of a pattern."""
RANGES_MAX = 3_000_000
"""Maximum number of characters in all ranges of a pattern that RE2 does not support."""
ENGINE_STEPS_MAX = 1_000_000
"""Maximum steps of Python's engine, which take a few milliseconds."""
WALK_STEPS_MAX = 30_000
"""Maximum steps of a walk, which take a few tenths of a second."""
MEMORY_BYTES, MEMORY_MAX_BYTES = 1 << 20, 8 << 20
"""Memory that RE2 may use for a pattern: on the first attempt, and if that fails."""

Rule = str | Mapping[str, Any]


_FLAGS = re.compile(r"\(\?[a-zA-Z]+\)")


class BadPattern(ConfigurationError):
    """Report why neither RE2 nor Python can compile a pattern."""


class Undecided(ConfigurationError):
    """Report that a match could not be decided within WALK_STEPS_MAX steps."""

    def __init__(self, pattern: str, subject: str) -> None:
        shown = subject if len(subject) <= 80 else f"{subject[:80]}…"
        super().__init__(
            f"matching the pattern {pattern!r} against {shown!r} takes more than {WALK_STEPS_MAX:,} steps; "
            "write a simpler pattern, without backreferences or nested repetitions"
        )


class Matcher(Protocol):
    def match(self, text: str) -> object | None: ...
    def fullmatch(self, text: str) -> object | None: ...


class Compiled(NamedTuple):
    """Hold a compiled pattern."""

    matcher: Matcher
    legacy: str
    """Reason why RE2 rejects it, if only Python accepts it; otherwise empty."""


class Legacy:
    """Hold a pattern of Python's dialect. Its methods raise Undecided."""

    def __init__(self, text: str) -> None:
        """Compile the pattern. Raise BadPattern, re.error, RecursionError, OverflowError."""
        self._text, self._tree = text, regex.parsed(text)
        # Check this before compiling, because the compiler visits every character of a range.
        if regex.range_lengths(self._tree) > RANGES_MAX:
            raise BadPattern(f"{text[:80]!r} has ranges of more than {RANGES_MAX} characters")
        self._engine = re.compile(text)
        self._answer = lru_cache(maxsize=ANSWERS_MAX)(self._found)

    def match(self, text: str) -> object | None:
        return self._decided(text, full=False)

    def fullmatch(self, text: str) -> object | None:
        return self._decided(text, full=True)

    def _decided(self, subject: str, *, full: bool) -> object | None:
        found = self._answer(subject, full)
        if found is None:
            raise Undecided(self._text, subject)
        # The cache distinguishes False (no match) from None (undecided); callers only test for a match.
        return found or None

    def _found(self, subject: str, full: bool) -> bool | None:
        """Return whether the subject matches, or None if that is undecided."""
        if regex.steps_max(self._tree, len(subject)) <= ENGINE_STEPS_MAX:
            return (self._engine.fullmatch(subject) if full else self._engine.match(subject)) is not None
        try:
            return regex.Walk(self._tree, subject, steps_max=WALK_STEPS_MAX).matches(full=full)
        except regex.Exhausted:
            return None


@lru_cache(maxsize=COMPILED_MAX)
def compiled(text: str) -> Compiled:
    """Compile a pattern. Raise BadPattern."""
    if len(text) > LENGTH_MAX:
        raise BadPattern(f"{text[:80]!r}… has {len(text)} characters; a pattern has at most {LENGTH_MAX}")
    try:
        return Compiled(_re2(text), "")
    except re2.error as error:
        why = error.args[0]
        reason = why.decode(errors="replace") if isinstance(why, bytes) else str(why)
    # YAML escapes can produce lone surrogates, which UTF-8 cannot encode.
    except UnicodeError as error:
        raise BadPattern(f"{text!r} is not valid Unicode") from error
    try:
        return Compiled(Legacy(text), reason)
    except (re.error, RecursionError, OverflowError) as error:
        raise BadPattern(f"{text!r} is not a regular expression: {reason}") from error


def _re2(text: str) -> Matcher:
    """Compile the pattern with re2. Raise re2.error, UnicodeError."""
    options = re2.Options()
    # By default, RE2 writes every error to standard error.
    options.log_errors = False
    options.max_mem = MEMORY_BYTES
    try:
        found: Matcher = re2.compile(text, options)
    except re2.error:
        # Thousands of compiled patterns are cached, so allow more memory only to those that need it.
        options.max_mem = MEMORY_MAX_BYTES
        found = re2.compile(text, options)
    return found


def matches(rule: Rule, subject: str) -> bool:
    """Return whether the rule matches at the start of `subject`, not necessarily to its end; a negated rule inverts the
    result. Raise Undecided."""
    if isinstance(rule, str):
        return compiled(rule).matcher.match(subject) is not None
    return (compiled(rule["regex"]).matcher.match(subject) is not None) != bool(rule.get("negate"))


def fullmatches(rule: Rule, subject: str) -> bool:
    """Return whether the rule matches all of `subject`; a negated rule inverts the result. Raise Undecided."""
    if isinstance(rule, str):
        return compiled(rule).matcher.fullmatch(subject) is not None
    return (compiled(rule["regex"]).matcher.fullmatch(subject) is not None) != bool(rule.get("negate"))


def searches(rule: Rule, subject: str) -> bool:
    """Return whether the rule matches anywhere in `subject`; a negated rule inverts the result. Raise Undecided."""
    if isinstance(rule, str):
        return _anywhere(rule).matcher.match(subject) is not None
    return (_anywhere(rule["regex"]).matcher.match(subject) is not None) != bool(rule.get("negate"))


@lru_cache(maxsize=COMPILED_MAX)
def _anywhere(text: str) -> Compiled:
    """Compile the pattern so that it matches anywhere, with its global flags kept in front. Raise BadPattern."""
    flags = _FLAGS.match(text)
    begin = flags[0] if flags is not None else ""
    end = "\n)" if "x" in begin else ")"  # in verbose mode, the pattern may end with a comment
    # Matchers only match at the start, so prepend a pattern that skips the text before a match.
    return compiled(f"{begin}(?:(?s:.)*?)(?:{text[len(begin) :]}{end}")


def any_matches(rules: Iterable[Rule], subject: str) -> bool:
    """Return whether any rule matches at the start. Raise Undecided."""
    return any(matches(rule, subject) for rule in rules)


def any_fullmatch(rules: Iterable[Rule], subject: str) -> bool:
    """Return whether any rule of the tenant file matches all of `subject`. An undecided rule does not match, because
    nobody would see the error."""
    try:
        return any(fullmatches(rule, subject) for rule in rules)
    except Undecided:
        return False


def may_match(rules: Iterable[Rule], subject: str) -> bool:
    """Return the same as `any_matches`, but count Undecided as a match: if a change enters because of that, its freeze
    reports the error."""
    try:
        return any_matches(rules, subject)
    except Undecided:
        return True
