"""Plain git: changes are proposed and approved by pushing to refs/for and refs/approved."""

from __future__ import annotations

from typing import Any

from headgate.config.forges.asking import Dialect, Seen, Term
from headgate.config.forges.people import lacking
from headgate.config.forges.terms import always, fact, on_branch, on_ref, unless_deleted
from headgate.config.keys.forms import BY_DEFAULT, age, checks, events, patterns, texts
from headgate.config.reading.check import Key, Keys, as_list, count, flag, inner

UNTOLD = "nobody is told the lines of debugging"
APPROVALS: Keys = {
    "count": Key(count(1, 100), "1"),
    "of": Key(texts, "anybody"),
    "newer-than": Key(age),
    "not-author": Key(flag, "false"),
}
"""What several people say of a change of plain git."""


def _happened(wanted: object, seen: Seen) -> bool:
    return seen.kind in as_list(wanted)


def _vetoed(wanted: object, seen: Seen) -> bool:
    return bool(seen.known.vetoes) is wanted


def _no_veto(wanted: bool, seen: Seen) -> str:
    vetoes, key = seen.known.vetoes, seen.change.key
    if vetoes and not wanted:
        return f"{key} is vetoed by {', '.join(sorted(word.who for word in vetoes))}"
    return f"{key} is vetoed by nobody" if wanted and not vetoes else ""


def asked_for(said: Any) -> dict[str, str]:
    """Return pipeline -> what it must have said, of `check` as it is written."""
    return {BY_DEFAULT: said} if isinstance(said, str) else dict(said or {})


def _said(seen: Seen) -> dict[str, str]:
    """Pipeline -> what it said of this patchset."""
    mine = (one for one in seen.known.checks if one.commit == seen.change.commit)
    return {one.pipeline: one.result for one in mine if one.tenant == seen.tenant}


def _unchecked(wanted: object, seen: Seen) -> str:
    said = _said(seen) if seen.now_ms is not None else {}
    for name, result in asked_for(wanted).items() if seen.now_ms is not None else ():
        if said.get(name) != result:
            return f"{seen.change.key}: the pipeline {name} has not reported {result} on this patchset"
    return ""


def _checked(unwanted: object, seen: Seen) -> str:
    """Of `reject`: which of them has said what it says there?"""
    for name, result in asked_for(unwanted).items() if seen.now_ms is not None else ():
        if _said(seen).get(name) == result:
            return f"{seen.change.key}: the pipeline {name} has reported {result} on this patchset"
    return ""


GIT = Dialect(
    trigger={
        "event": Term(
            events("change-proposed", "change-approved", "change-abandoned", "change-merged", "ref-updated"), _happened
        ),
        "branch": Term(Key(patterns), on_branch),
        "ref": Term(Key(patterns), on_ref),
        "ignore-deletes": Term(Key(flag, "true"), unless_deleted),
        "debug": Term(Key(flag, "false", idle=UNTOLD), always),
    },
    require={
        "approved": Term(Key(flag), fact(lambda seen: seen.known.is_approved)),
        "open": Term(Key(flag), fact(lambda seen: seen.known.open)),
        "current-patchset": Term(Key(flag), fact(lambda _: True)),
        "approvals": Term(
            Key(inner(APPROVALS, "approvals")),
            lambda wanted, seen: not lacking(seen.known, wanted, seen.now_ms),
            lacks=lambda wanted, seen: lacking(seen.known, wanted, seen.now_ms),
        ),
        "veto": Term(Key(flag), _vetoed, lambda unwanted, seen: _no_veto(not unwanted, seen), _no_veto),
        "check": Term(Key(checks), lambda wanted, seen: not _unchecked(wanted, seen), _checked, _unchecked),
    },
    reporter={"note": Key(flag, "true"), "land": Key(flag, "false")},
    unless_said={"ignore-deletes": True},
    refs_too=True,
)
