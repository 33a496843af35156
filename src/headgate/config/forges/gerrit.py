"""Gerrit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headgate.config.forges.asking import Dialect, Seen, Term, forms, refused, unmet
from headgate.config.forges.facts import Happening, Vote
from headgate.config.forges.git import UNTOLD
from headgate.config.forges.terms import (
    added,
    always,
    asks_of_us,
    commented,
    counts,
    fact,
    found_in,
    happened,
    is_current,
    is_draft,
    is_open,
    of_somebody,
    on_branch,
    on_updated_ref,
    one_of,
    others,
    removed,
    unless_deleted,
)
from headgate.config.keys.forms import approvals, events, patterns, texts, words
from headgate.config.reading.check import Key, as_list, flag, inner, many, mapping

_OF_VOTES = ("username", "email", "older-than", "newer-than")
"""Keys of an approval; every other one is a label."""
_REPORTER = ("comment", "submit", "notify", "checks-api")


def _spelled(label: str) -> str:
    return label.casefold().replace(" ", "-")


def _is(vote: Vote, label: str, value: object) -> bool:
    return _spelled(vote.label) == _spelled(label) and vote.value in {str(one) for one in as_list(value)}


def _voted(wanted: object, seen: Seen) -> bool:
    """Every label and value is among the votes that the event shows."""
    asked = [(label, value) for one in as_list(wanted) for label, value in one.items()]
    return all(any(_is(vote, *one) for vote in seen.what.votes) for one in asked)


def _changed(wanted: object, seen: Seen) -> bool:
    """As `_voted`, and the event changed these votes."""
    moved = [vote for vote in seen.what.votes if vote.old_value and vote.old_value != vote.value]
    asked = [(label, value) for one in as_list(wanted) for label, value in one.items()]
    return all(any(_is(vote, *one) for vote in moved) for one in asked)


def _given(wanted: Mapping[str, Any], seen: Seen) -> bool:
    """One vote is all that an approval asks for."""
    labels = {label: value for label, value in wanted.items() if label not in _OF_VOTES}
    return any(
        counts(vote, wanted, seen.now_ms) and all(_is(vote, *one) for one in labels.items()) for vote in others(seen)
    )


def _approved(wanted: object, seen: Seen) -> bool:
    return all(asks_of_us(one, seen) or _given(one, seen) for one in as_list(wanted))


def _disapproved(wanted: object, seen: Seen) -> bool:
    return any(not asks_of_us(one, seen) and _given(one, seen) for one in as_list(wanted))


def _tagged(rules: object, seen: Seen) -> bool:
    """Each pattern is found in some hashtag."""
    return all(found_in(rule, seen.details.hashtags or ()) for rule in as_list(rules))


def _of_scheme(schemes: object, seen: Seen) -> bool:
    return seen.what.checker.partition(":")[0] in as_list(schemes)


REQUIRE = {
    "approval": Term(Key(approvals), _approved, _disapproved),
    "open": Term(Key(flag), fact(is_open)),
    "current-patchset": Term(Key(flag), fact(is_current)),
    "wip": Term(Key(flag), fact(is_draft)),
    "hashtags": Term(Key(patterns), _tagged, lambda rules, seen: found_in(rules, seen.details.hashtags or ())),
    "status": Term(Key(texts), one_of(lambda seen: (seen.details.state,))),
}


def _required(said: Mapping[str, Any], seen: Seen) -> bool:
    return not unmet(REQUIRE, said, seen)


def _not_rejected(said: Mapping[str, Any], seen: Seen) -> bool:
    return not refused(REQUIRE, said, seen)


TRIGGER = {
    "event": Term(
        events(
            "patchset-created",
            "draft-published",
            "change-abandoned",
            "change-restored",
            "change-merged",
            "comment-added",
            "ref-updated",
            "pending-check",
            "vote-deleted",
            "hashtags-changed",
            "wip-state-changed",
        ),
        happened,
    ),
    "branch": Term(Key(patterns), on_branch),
    "ref": Term(Key(patterns), on_updated_ref),
    "ignore-deletes": Term(Key(flag, "true"), unless_deleted),
    "approval": Term(Key(many(mapping)), _voted),
    "approval-change": Term(Key(many(mapping)), _changed),
    "comment": Term(Key(patterns), commented),
    "email": Term(Key(patterns), of_somebody(lambda who: who.email)),
    "username": Term(Key(patterns), of_somebody(lambda who: who.name)),
    "added": Term(Key(patterns), lambda rules, seen: found_in(rules, added(seen))),
    "removed": Term(Key(patterns), lambda rules, seen: found_in(rules, removed(seen))),
    "uuid": Term(Key(texts), one_of(lambda seen: (seen.what.checker,))),
    "scheme": Term(Key(texts), _of_scheme),
    "require": Term(Key(inner(forms(REQUIRE), "requirement")), _required),
    "reject": Term(Key(inner(forms(REQUIRE), "requirement")), _not_rejected),
    "debug": Term(Key(flag, "false", idle=UNTOLD), always),
    "require-approval": Term(Key(approvals, note="deprecated: require"), _approved),
    "reject-approval": Term(Key(approvals, note="deprecated: reject"), lambda said, seen: not _disapproved(said, seen)),
    "comment_filter": Term(Key(patterns, note="deprecated: comment"), commented),
    "email_filter": Term(Key(patterns, note="deprecated: email"), of_somebody(lambda who: who.email)),
    "username_filter": Term(Key(patterns, note="deprecated: username"), of_somebody(lambda who: who.name)),
}

GERRIT = Dialect(
    trigger=TRIGGER,
    require=REQUIRE,
    reporter={
        "submit": Key(flag, "false"),
        "comment": Key(flag, "true"),
        "notify": Key(words("NONE", "OWNER", "OWNER_REVIEWERS", "ALL")),
        "checks-api": Key(mapping, idle="its plugin is no part of Gerrit any more; let the reporter vote on a label"),
    },
    unless_said={"ignore-deletes": True},
    instead={
        "require-approval": "require",
        "reject-approval": "reject",
        "comment_filter": "comment",
        "email_filter": "email",
        "username_filter": "username",
    },
    told={
        "change-proposed": (Happening("patchset-created"),),
        "change-abandoned": (Happening("change-abandoned"),),
        "change-merged": (Happening("change-merged"),),
        "ref-updated": (Happening("ref-updated"),),
    },
    sets=lambda how: frozenset(name for name in how if name not in _REPORTER),
)
