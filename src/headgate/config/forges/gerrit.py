"""Define the keys of Gerrit."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from headgate.config.files.checks import StanzaKey, as_list, flag, inner, many, mapping
from headgate.config.forges import terms
from headgate.config.forges.facts import ForgeEvent, Vote
from headgate.config.forges.git import NO_DEBUG_LINES
from headgate.config.forges.keyterms import Dialect, TermSubject, TriggerTerm, forms, refused, unmet
from headgate.config.keys.forms import approvals, events, patterns, texts, words

_OF_VOTES = ("username", "email", "older-than", "newer-than")
"""Keys of an approval; all other keys are labels."""
_REPORTER = ("comment", "submit", "notify", "checks-api")


def _spelled(label: str) -> str:
    return label.casefold().replace(" ", "-")


def _is(vote: Vote, label: str, value: object) -> bool:
    return _spelled(vote.label) == _spelled(label) and vote.value in {str(one) for one in as_list(value)}


def _voted(wanted: object, seen: TermSubject) -> bool:
    """Return whether the votes of the event include every label and value."""
    pairs = [(label, value) for one in as_list(wanted) for label, value in one.items()]
    return all(any(_is(vote, *one) for vote in seen.what.votes) for one in pairs)


def _changed(wanted: object, seen: TermSubject) -> bool:
    """Return whether every label and value is among the votes that the event changed."""
    # The event repeats the votes that it did not change.
    moved = [vote for vote in seen.what.votes if vote.old_value and vote.old_value != vote.value]
    pairs = [(label, value) for one in as_list(wanted) for label, value in one.items()]
    return all(any(_is(vote, *one) for vote in moved) for one in pairs)


def _given(wanted: Mapping[str, Any], seen: TermSubject) -> bool:
    """Return whether at least one vote meets all conditions of an approval."""
    labels = {label: value for label, value in wanted.items() if label not in _OF_VOTES}

    def fits(vote: Vote) -> bool:
        return all(_is(vote, *one) for one in labels.items()) and terms.counts(vote, wanted, seen.now_ms)

    return terms.any_decided(partial(fits, vote) for vote in terms.others(seen))


def _approved(wanted: object, seen: TermSubject) -> bool:
    return all(terms.asks_of_us(one, seen) or _given(one, seen) for one in as_list(wanted))


def _disapproved(wanted: object, seen: TermSubject) -> bool:
    return any(not terms.asks_of_us(one, seen) and _given(one, seen) for one in as_list(wanted))


def _tagged(rules: object, seen: TermSubject) -> bool:
    """Return whether each pattern occurs in some hashtag."""
    return all(terms.found_in(rule, seen.details.hashtags or ()) for rule in as_list(rules))


def _of_scheme(schemes: object, seen: TermSubject) -> bool:
    # A UUID of a checker has the form `scheme:id`.
    return seen.what.checker.partition(":")[0] in as_list(schemes)


REQUIRE = {
    "approval": TriggerTerm(StanzaKey(approvals), _approved, _disapproved),
    "open": TriggerTerm(StanzaKey(flag), terms.fact(terms.is_open)),
    "current-patchset": TriggerTerm(StanzaKey(flag), terms.fact(terms.is_current)),
    "wip": TriggerTerm(StanzaKey(flag), terms.fact(terms.is_draft)),
    "hashtags": TriggerTerm(
        StanzaKey(patterns), _tagged, lambda rules, seen: terms.found_in(rules, seen.details.hashtags or ())
    ),
    "status": TriggerTerm(StanzaKey(texts), terms.one_of(lambda seen: (seen.details.state,))),
}


def _required(requirement: Mapping[str, Any], seen: TermSubject) -> bool:
    return not unmet(REQUIRE, requirement, seen)


def _not_rejected(requirement: Mapping[str, Any], seen: TermSubject) -> bool:
    return not refused(REQUIRE, requirement, seen)


TRIGGER = {
    "event": TriggerTerm(
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
        terms.happened,
    ),
    "branch": TriggerTerm(StanzaKey(patterns), terms.on_branch),
    "ref": TriggerTerm(StanzaKey(patterns), terms.on_updated_ref),
    "ignore-deletes": TriggerTerm(StanzaKey(flag, "true"), terms.unless_deleted),
    "approval": TriggerTerm(StanzaKey(many(mapping)), _voted),
    "approval-change": TriggerTerm(StanzaKey(many(mapping)), _changed),
    "comment": TriggerTerm(StanzaKey(patterns), terms.commented),
    "email": TriggerTerm(StanzaKey(patterns), terms.of_somebody(lambda who: who.email)),
    "username": TriggerTerm(StanzaKey(patterns), terms.of_somebody(lambda who: who.name)),
    "added": TriggerTerm(StanzaKey(patterns), lambda rules, seen: terms.found_in(rules, terms.added(seen))),
    "removed": TriggerTerm(StanzaKey(patterns), lambda rules, seen: terms.found_in(rules, terms.removed(seen))),
    "uuid": TriggerTerm(StanzaKey(texts), terms.one_of(lambda seen: (seen.what.checker,))),
    "scheme": TriggerTerm(StanzaKey(texts), _of_scheme),
    "require": TriggerTerm(StanzaKey(inner(forms(REQUIRE), "requirement")), _required),
    "reject": TriggerTerm(StanzaKey(inner(forms(REQUIRE), "requirement")), _not_rejected),
    "debug": TriggerTerm(StanzaKey(flag, "false", idle=NO_DEBUG_LINES), terms.always),
    "require-approval": TriggerTerm(StanzaKey(approvals, note="deprecated: require"), _approved),
    "reject-approval": TriggerTerm(
        StanzaKey(approvals, note="deprecated: reject"), lambda unwanted, seen: not _disapproved(unwanted, seen)
    ),
    "comment_filter": TriggerTerm(StanzaKey(patterns, note="deprecated: comment"), terms.commented),
    "email_filter": TriggerTerm(
        StanzaKey(patterns, note="deprecated: email"), terms.of_somebody(lambda who: who.email)
    ),
    "username_filter": TriggerTerm(
        StanzaKey(patterns, note="deprecated: username"), terms.of_somebody(lambda who: who.name)
    ),
}

GERRIT = Dialect(
    lands=("submit",),
    free=True,
    trigger=TRIGGER,
    require=REQUIRE,
    reporter={
        "submit": StanzaKey(flag, "false"),
        "comment": StanzaKey(flag, "true"),
        "notify": StanzaKey(words("NONE", "OWNER", "OWNER_REVIEWERS", "ALL")),
        "checks-api": StanzaKey(
            mapping, idle="Gerrit no longer includes the checks plugin; let the reporter vote on a label instead"
        ),
    },
    trigger_defaults={"ignore-deletes": True},
    instead={
        "require-approval": "require",
        "reject-approval": "reject",
        "comment_filter": "comment",
        "email_filter": "email",
        "username_filter": "username",
    },
    events_of={
        "change-proposed": (ForgeEvent("patchset-created"),),
        "change-abandoned": (ForgeEvent("change-abandoned"),),
        "change-merged": (ForgeEvent("change-merged"),),
        "ref-updated": (ForgeEvent("ref-updated"),),
    },
    # All other keys of a reporter are names of labels.
    sets=lambda how: frozenset(name for name in how if name not in _REPORTER),
)
