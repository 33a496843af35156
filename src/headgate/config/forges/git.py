"""Define the keys of plain git, where changes are proposed and approved by pushing to refs/for and refs/approved."""

from __future__ import annotations

from typing import Any

from headgate.config.files.check import Keys, StanzaKey, as_list, count, flag, inner
from headgate.config.forges.keyterms import Dialect, TermSubject, TriggerTerm
from headgate.config.forges.people import lacking
from headgate.config.forges.terms import always, fact, on_branch, on_ref, unless_deleted
from headgate.config.keys.forms import BY_DEFAULT, age, checks, events, patterns, texts

UNTOLD = "debugging lines are not reported"
APPROVALS: Keys = {
    "count": StanzaKey(count(1, 100), "1"),
    "of": StanzaKey(texts, "anybody"),
    "newer-than": StanzaKey(age),
    "not-author": StanzaKey(flag, "false"),
}
"""Keys of requirements for approvals by several people on plain git."""


def _happened(wanted: object, seen: TermSubject) -> bool:
    return seen.kind in as_list(wanted)


def _vetoed(wanted: object, seen: TermSubject) -> bool:
    return bool(seen.known.vetoes) is wanted


def _no_veto(wanted: bool, seen: TermSubject) -> str:
    vetoes, key = seen.known.vetoes, seen.change.key
    if vetoes and not wanted:
        return f"{key} is vetoed by {', '.join(sorted(word.who for word in vetoes))}"
    return f"nobody has vetoed {key}" if wanted and not vetoes else ""


def required_results(check: Any) -> dict[str, str]:
    """Map each pipeline that `check` names to the result that it must have reported."""
    return {BY_DEFAULT: check} if isinstance(check, str) else dict(check or {})


def _results(seen: TermSubject) -> dict[str, str]:
    """Map each pipeline to the result that it reported for this patchset."""
    mine = (one for one in seen.known.checks if one.commit == seen.change.commit)
    # Pipelines of other tenants may have the same names.
    return {one.pipeline: one.result for one in mine if one.tenant == seen.tenant}


def _unchecked(wanted: object, seen: TermSubject) -> str:
    # Asked on entry only: that pipeline may run again meanwhile, and must not take out an item that was let in.
    results = _results(seen) if seen.now_ms is not None else {}
    for name, result in required_results(wanted).items() if seen.now_ms is not None else ():
        if results.get(name) != result:
            return f"{seen.change.key}: the pipeline {name} has not reported {result} on this patchset"
    return ""


def _checked(unwanted: object, seen: TermSubject) -> str:
    """Return a message about a pipeline that reported a result that `reject` rules out, or an empty string."""
    for name, result in required_results(unwanted).items() if seen.now_ms is not None else ():
        if _results(seen).get(name) == result:
            return f"{seen.change.key}: the pipeline {name} has reported {result} on this patchset"
    return ""


GIT = Dialect(
    lands=("land",),
    named=("approvals", "veto"),
    trigger={
        "event": TriggerTerm(
            events("change-proposed", "change-approved", "change-abandoned", "change-merged", "ref-updated"), _happened
        ),
        "branch": TriggerTerm(StanzaKey(patterns), on_branch),
        "ref": TriggerTerm(StanzaKey(patterns), on_ref),
        "ignore-deletes": TriggerTerm(StanzaKey(flag, "true"), unless_deleted),
        "debug": TriggerTerm(StanzaKey(flag, "false", idle=UNTOLD), always),
    },
    require={
        "approved": TriggerTerm(StanzaKey(flag), fact(lambda seen: seen.known.is_approved)),
        "open": TriggerTerm(StanzaKey(flag), fact(lambda seen: seen.known.open)),
        "current-patchset": TriggerTerm(StanzaKey(flag), fact(lambda _: True)),
        "approvals": TriggerTerm(
            StanzaKey(inner(APPROVALS, "approvals")),
            lambda wanted, seen: not lacking(seen.known, wanted, seen.now_ms),
            lacks=lambda wanted, seen: lacking(seen.known, wanted, seen.now_ms),
        ),
        "veto": TriggerTerm(StanzaKey(flag), _vetoed, lambda unwanted, seen: _no_veto(not unwanted, seen), _no_veto),
        "check": TriggerTerm(
            StanzaKey(checks), lambda wanted, seen: not _unchecked(wanted, seen), _checked, _unchecked
        ),
    },
    reporter={"note": StanzaKey(flag, "true"), "land": StanzaKey(flag, "false")},
    trigger_defaults={"ignore-deletes": True},
    refs_too=True,
)
