"""What several people say of a change: who of them counts, and whether that is enough."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from typing import Any

from headgate.config.forges.facts import Word
from headgate.gate.change import Standing

AGES_S = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
Wanted = Mapping[str, Any]
"""`approvals` of a requirement, as it is written.  JSON."""


def person(name: str) -> str:
    """Return what two names of one person have in common: case and forms of letters make no second one."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())


def authors(standing: Standing) -> set[str]:
    """Return whoever wrote this patchset or pushed it, by every name that is known of them."""
    name, _, address = standing.change.owner.partition("<")
    address = address.rstrip("> ")
    names = (name.strip(), address, address.partition("@")[0], *standing.proposers)
    return {person(one) for one in names if one}


def counted(standing: Standing, wanted: Wanted, now_ms: int | None = None) -> tuple[Word, ...]:
    """Return the approvals of this patchset that count, one of each person, the earliest first.  `now_ms`: the moment
    at which the change is to come in; None: it is there already, and the age of an approval no longer matters."""
    among = {person(one) for one in _of(wanted)}
    not_these = authors(standing) if wanted.get("not-author") else set[str]()
    found: dict[str, Word] = {}
    for word in sorted(standing.approvals, key=lambda one: (one.since_ms, one.who)):
        who = person(word.who)
        if word.commit != standing.change.commit or (among and who not in among) or who in not_these:
            continue
        if now_ms is None or not _too_old(word, wanted, now_ms):
            found.setdefault(who, word)
    return tuple(found.values())


def _of(wanted: Wanted) -> list[str]:
    """Whose approvals count; nobody named: everybody's."""
    found = wanted.get("of", [])
    return [found] if isinstance(found, str) else list(found)


def _too_old(word: Word, wanted: Wanted, now_ms: int) -> bool:
    age = str(wanted.get("newer-than", ""))
    return bool(age) and now_ms - word.since_ms > int(age[:-1]) * AGES_S[age[-1]] * 1_000


def lacking(standing: Standing, wanted: Wanted, now_ms: int | None = None) -> str:
    """Return why what people say is not enough; empty when it is."""
    key, most = standing.change.key, int(wanted.get("count", 1))
    if wanted.get("not-author") and not standing.proposers:
        return f"{key} cannot be approved: the server did not tell who proposed this patchset; propose it again"
    found = [word.who for word in counted(standing, wanted, now_ms)]
    if len(found) >= most:
        return ""
    have = f"{len(found)} ({', '.join(found)})" if found else "none"
    of = f" of {', '.join(_of(wanted))}" if wanted.get("of") else ""
    other = ", not of who wrote or proposed it" if wanted.get("not-author") else ""
    age = f", not older than {wanted['newer-than']}" if wanted.get("newer-than") else ""
    return f"{key} needs {most} approval{'s' if most > 1 else ''}{of}{other}{age}, and has {have}"


def named(standing: Standing) -> str:
    """Return one line of who proposed and who approved this patchset; empty where nobody is known by name."""
    found = approvers(standing)
    parts = [f"proposed by {', '.join(standing.proposers)}"] if standing.proposers else []
    parts += [f"approved by {', '.join(found)}"] if found else []
    said = "; ".join(parts)
    return f"{said[:1].upper()}{said[1:]}." if said else ""


def approvers(standing: Standing) -> tuple[str, ...]:
    """Return who approved this patchset, as far as they are known by name."""
    mine = {person(word.who): word.who for word in standing.approvals if word.commit == standing.change.commit}
    return tuple(sorted(mine.values()))
