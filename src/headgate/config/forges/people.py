"""Decide whose approvals of a change of plain git count, and whether they suffice."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from typing import Any

from headgate.config.files.check import as_list
from headgate.config.forges.facts import Word
from headgate.config.forges.keyterms import KnownFacts
from headgate.config.forges.terms import age_ms

Wanted = Mapping[str, Any]
"""Value of `approvals` in a requirement (JSON)."""


def person(name: str) -> str:
    """Return the name of a person in a form in which names that differ only in case or in Unicode form are equal."""
    # Twice, because casefolding can leave a text that is not normalized any more.
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())


def authors(change_state: KnownFacts) -> set[str]:
    """Return the names of everyone who wrote or pushed this patchset, in the form that `person` returns, by every known
    name of each."""
    name, _, address = change_state.change.owner.partition("<")
    address = address.rstrip("> ")
    # Servers name people by login or by address: authors must not approve under whichever form is not on the commit.
    names = (name.strip(), address, address.partition("@")[0], *change_state.proposers)
    return {person(one) for one in names if one}


def counted(change_state: KnownFacts, wanted: Wanted, now_ms: int | None = None) -> tuple[Word, ...]:
    """Return the approvals of this patchset that count, one per person, the earliest first. `now_ms` is the time at
    which the change is to enter; None means that it has entered, and the age of an approval no longer matters."""
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
    # Without the proposers, an author who commits under another name would count as somebody else.
    if wanted.get("not-author") and not change_state.proposers:
        return f"{key} cannot be approved: the server did not tell who proposed this patchset; propose it again"
    found = [word.who for word in counted(change_state, wanted, now_ms)]
    if len(found) >= most:
        return ""
    have = f"{len(found)} ({', '.join(found)})" if found else "none"
    of = f" of {', '.join(as_list(wanted['of']))}" if wanted.get("of") else ""
    other = ", not of who wrote or proposed it" if wanted.get("not-author") else ""
    age = f", not older than {wanted['newer-than']}" if wanted.get("newer-than") else ""
    return f"{key} needs {most} approval{'s' if most > 1 else ''}{of}{other}{age}, and has {have}"
