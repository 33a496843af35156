"""Define the forms of the values that drivers accept: ages, times, known words, and approvals."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from headgate.base.hints import HintedText, nearest
from headgate.config.files.checks import Check, Keys, Schema, StanzaKey, ValueSpot, many, regex, show, text, word
from headgate.config.files.checks import idle as no_effect
from headgate.config.files.document import Table
from headgate.config.files.source import UNKNOWN_WORD, Wrong
from headgate.queueing.partitions import QUEUE_NAME

_AGE = re.compile(r"\d+[smhdw]")


def _age_wrong(value: Any, spot: ValueSpot) -> None:
    if not isinstance(value, str) or not _AGE.fullmatch(value):
        raise spot.wrong(f"must be a whole number and one of s m h d w, such as 24h, not {show(value)}")


def _time_wrong(value: Any, spot: ValueSpot) -> None:
    if not isinstance(value, str) or not 5 <= len(value.split()) <= 7:
        raise spot.wrong(f"must be 5 cron fields, or 6 with seconds, or 7 with jitter, not {show(value)}")


def _queue_wrong(value: Any, spot: ValueSpot) -> None:
    if not isinstance(value, str) or not QUEUE_NAME.fullmatch(value):
        raise spot.wrong(f"must be 1 to 50 letters, digits, dots, hyphens or underscores, not {show(value)}")


def words(*known: str, idle: Mapping[str, str] | None = None, old: Mapping[str, str] | None = None) -> Check:
    """Accept text, and warn about unknown words, words without effect (`idle`: word -> reason) and old words (`old`:
    word -> new word)."""

    def see(value: Any, spot: ValueSpot) -> None:
        text.see(value, spot)
        if old and value in old:
            # Only GitHub has old words.
            spot.warn(f"{value!r} is deprecated: {old[value]}", "GitHub Deprecation")
        elif value not in known:
            wrong = HintedText(f"{spot.what}: {value!r} is not known", nearest(value, known))
            spot.warnings.append(Wrong(wrong, spot.line, UNKNOWN_WORD, "warning"))
        elif idle and value in idle:
            spot.warnings.append(no_effect(f"{spot.what} {value!r}", idle[value], spot.line))

    def schema() -> Schema:
        # Editors offer the known words, but accept any text, because an unknown word is only a warning.
        return {"anyOf": [{"enum": list(known)}, text.schema()]}

    return Check(", ".join(known), see, schema=schema)


def events(*known: str) -> StanzaKey:
    """Return the key `event`, which every trigger has."""
    return StanzaKey(many(words(*known)), required=True)


texts, patterns = many(text), many(regex)
"""One value or a list of values, of which any may match."""


def misspoken(body: Table, keys: Keys, what: str, *, complete: bool = True) -> list[Wrong]:
    """Return all errors in the mapping `body`, which messages call `what`. An unknown key is a warning if `keys` is
    `complete`; otherwise it is ignored."""
    found: list[Wrong] = []
    for name, value in body.items():
        key, line = keys.get(name), body.at(name)
        # A newer Headgate or Zuul may know the key, so it is no error.
        if key is None and complete:
            text = HintedText(f"{what} has no key {name!r}", nearest(name, keys))
            found.append(Wrong(text, line, UNKNOWN_WORD, "warning"))
        elif key is not None:
            try:
                key.check.see(value, ValueSpot(line, f"{name} of {what}", found))
            except Wrong as wrong:
                found.append(wrong)
    return found


def loose(keys: Keys, what: str) -> Check:
    """Accept a mapping; unknown keys are warnings."""

    def see(value: Any, spot: ValueSpot) -> None:
        if not isinstance(value, Table):
            raise spot.wrong(f"must be a mapping, not {show(value)}")
        spot.warnings.extend(misspoken(value, keys, what))

    return Check(f"{{{', '.join(keys)}}}", see, schema=lambda: {"type": "object"})


age = Check("number and one of s m h d w", _age_wrong, schema=lambda: {"type": "string", "pattern": r"^\d+[smhdw]$"})
time = Check(
    "cron fields: minute hour day month weekday, and optionally second and jitter",
    _time_wrong,
    schema=lambda: {"type": "string"},
)
queue = Check(
    "1 to 50 letters, digits, dots, hyphens or underscores",
    _queue_wrong,
    schema=lambda: {"type": "string", "pattern": f"^{QUEUE_NAME.pattern}$"},
)
permissions = words("read", "write", "admin")
RESULTS_OF_CHECKS = ("success", "failure")
BY_DEFAULT = "check"
"""Pipeline whose result `check: success` requires."""
_WORDS = many(word)
_APPROVAL_KEYS: Keys = {
    "username": StanzaKey(regex),
    "email": StanzaKey(regex),
    "older-than": StanzaKey(age),
    "newer-than": StanzaKey(age),
}


def _approval_wrong(value: Any, spot: ValueSpot) -> None:
    """Check username, email, ages, and any label with a value or values."""
    if not isinstance(value, dict):
        raise spot.wrong(f"must be a mapping, not {show(value)}")
    for name, one in value.items():
        key = _APPROVAL_KEYS.get(name)
        if key is not None:
            key.check.see(one, spot.at(spot.line, f"{name} of an approval"))
        # Any other key is a label, which Gerrit's administrators may name as they like.
        else:
            _WORDS.see(one, spot.at(spot.line, f"the label {name} of an approval"))


approvals = many(
    Check(
        "{username, email, older-than, newer-than, <label>: value}", _approval_wrong, schema=lambda: {"type": "object"}
    )
)


def _checks_wrong(value: Any, spot: ValueSpot) -> None:
    """Check that the value is a result, or a mapping of pipelines to results."""
    results = value if isinstance(value, Table) else {BY_DEFAULT: value}
    for name, result in results.items():
        if result not in RESULTS_OF_CHECKS:
            known = " or ".join(RESULTS_OF_CHECKS)
            shown = show(result) if name == BY_DEFAULT else f"{show(result)} for {name}"
            raise spot.wrong(f"must be {known}, or a mapping of pipelines to one of them, not {shown}")


checks = Check(
    "success or failure (of the pipeline check), or pipeline: success or failure",
    _checks_wrong,
    schema=lambda: {
        "anyOf": [
            {"enum": list(RESULTS_OF_CHECKS)},
            {"type": "object", "additionalProperties": {"enum": list(RESULTS_OF_CHECKS)}},
        ]
    },
)


def any_of(checks: list[Check]) -> Check:
    """Accept a value that passes one of the checks; warn about a word that none of them knows."""

    def see(value: Any, spot: ValueSpot) -> None:
        accepted: list[list[Wrong]] = []
        for check in checks:
            warnings: list[Wrong] = []
            try:
                check.see(value, ValueSpot(spot.line, spot.what, warnings))
            except Wrong:
                continue
            accepted.append(warnings)
        problem = f"has a value that no driver accepts: {show(value)}"
        if not accepted:
            raise spot.wrong(problem)
        # The driver is unknown here. Assume the one with the fewest complaints.
        least = min(accepted, key=len)
        unknown = any(wrong.name == UNKNOWN_WORD for wrong in least)
        if unknown:
            spot.warn(problem, UNKNOWN_WORD)
        else:
            spot.warnings.extend(least)

    return (
        # The messages of a single check are more precise than those of `see`.
        checks[0]
        if len(checks) == 1
        else Check("what one of the drivers accepts", see, schema=lambda: {"anyOf": [c.schema() for c in checks]})
    )
