"""Define the keys of plain git, where people propose changes by pushing, and decide which approvals count."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from typing import Any

from headgate.config.files.checks import Keys, StanzaKey, as_list, count, flag, inner
from headgate.config.forges.facts import Word
from headgate.config.forges.keyterms import Dialect, KnownFacts, TermSubject, TriggerTerm
from headgate.config.forges.terms import age_ms, always, fact, on_branch, on_ref, unless_deleted
from headgate.config.keys.forms import BY_DEFAULT, age, checks, events, patterns, texts

NO_DEBUG_LINES = "Headgate reports no debug lines"
"""Why `debug` of a trigger has no effect."""
APPROVALS: Keys = {
    "count": StanzaKey(count(1, 100), "1"),
    "of": StanzaKey(texts, "anybody"),
    "newer-than": StanzaKey(age),
    "not-author": StanzaKey(flag, "false"),
}
"""Keys of requirements for approvals by several people on plain git."""

Wanted = Mapping[str, Any]
"""Value of `approvals` in a requirement (JSON)."""


def person(name: str) -> str:
    """Return a person's name in a normal form, in which names that differ only in case or Unicode form are equal."""
    # Normalize twice, because casefolding can produce text that is no longer normalized.
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())


def authors(change_state: KnownFacts) -> set[str]:
    """Return the names of everyone who wrote or pushed this patchset, in the form that `person` returns, by every known
    name of each."""
    name, _, address = change_state.change.owner.partition("<")
    address = address.rstrip("> ")
    # Servers name people by login or by email address: authors must not be able to approve under the other form.
    names = (name.strip(), address, address.partition("@")[0], *change_state.proposers)
    return {person(one) for one in names if one}


def counted(change_state: KnownFacts, wanted: Wanted, now_ms: int | None = None) -> tuple[Word, ...]:
    """Return the approvals of this patchset that count, one per person, earliest first. `now_ms` is the time at which
    the change may enter; None means that it has entered, so that the age of an approval no longer matters."""
    among = {person(one) for one in as_list(wanted.get("of"))}
    not_these = authors(change_state) if wanted.get("not-author") else set[str]()
    found: dict[str, Word] = {}
    for word in sorted(change_state.approvals, key=lambda one: (one.since_ms, one.who)):
        who = person(word.who)
        if word.commit != change_state.change.commit or (among and who not in among) or who in not_these:
            continue
        if now_ms is None or not _too_old(word, wanted, now_ms):
            found.setdefault(who, word)
    return tuple(found.values())


def _too_old(word: Word, wanted: Wanted, now_ms: int) -> bool:
    age = str(wanted.get("newer-than", ""))
    return bool(age) and now_ms - word.since_ms > age_ms(age)


def lacking(change_state: KnownFacts, wanted: Wanted, now_ms: int | None = None) -> str:
    """Return why the approvals do not suffice, or an empty string if they do."""
    key, most = change_state.change.key, int(wanted.get("count", 1))
    # Without the proposers, an author who commits under another name would count as a different person.
    if wanted.get("not-author") and not change_state.proposers:
        return f"{key} cannot be approved: the server did not record who proposed this patchset; propose it again"
    found = [word.who for word in counted(change_state, wanted, now_ms)]
    if len(found) >= most:
        return ""
    have = f"{len(found)} ({', '.join(found)})" if found else "none"
    of = f" of {', '.join(as_list(wanted['of']))}" if wanted.get("of") else ""
    other = ", not from its author or proposer" if wanted.get("not-author") else ""
    age = f", not older than {wanted['newer-than']}" if wanted.get("newer-than") else ""
    return f"{key} needs {most} approval{'s' if most > 1 else ''}{of}{other}{age}, and has {have}"


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
    """Return the results that `check` requires, by pipeline."""
    return {BY_DEFAULT: check} if isinstance(check, str) else dict(check or {})


def _results(seen: TermSubject) -> dict[str, str]:
    """Return the results that pipelines reported for this patchset, by pipeline."""
    mine = (one for one in seen.known.checks if one.commit == seen.change.commit)
    # Pipelines of other tenants may have the same names.
    return {one.pipeline: one.result for one in mine if one.tenant == seen.tenant}


def _unchecked(wanted: object, seen: TermSubject) -> str:
    # Check only on entry: that pipeline may run again later, which must not dequeue an item that has entered.
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
        "debug": TriggerTerm(StanzaKey(flag, "false", idle=NO_DEBUG_LINES), always),
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
