"""Define the keys of GitHub, and of Gitea and Forgejo, which share most of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from headgate.config.files.checks import Keys, StanzaKey, as_list, flag, inner, many, regex, text
from headgate.config.forges import terms
from headgate.config.forges.facts import ForgeEvent, Vote
from headgate.config.forges.git import NO_DEBUG_LINES
from headgate.config.forges.keyterms import Dialect, Terms, TermSubject, TriggerTerm, forms, refused, unmet
from headgate.config.keys.forms import age, events, patterns, permissions, texts, words

_STATES = ("approved", "commented", "changes_requested", "dismissed", "pending")
"""States of reviews."""
_TYPES = {"approval": "approved"}
"""Alternative spellings of types of reviews."""
ALIASES = {"requested": "rerequested"}
"""Old names of actions."""
_GITHUB_ACTIONS = (
    "opened",
    "changed",
    "edited",
    "closed",
    "reopened",
    "comment",
    "labeled",
    "unlabeled",
    "status",
    "converted_to_draft",
    "ready_for_review",
    "submitted",
    "dismissed",
    "rerequested",
    "completed",
)
_GITEA_ACTIONS = (
    "opened",
    "changed",
    "edited",
    "closed",
    "reopened",
    "comment",
    "labeled",
    "unlabeled",
    "status",
    "submitted",
)
_EVENTS: Mapping[str, tuple[ForgeEvent, ...]] = {
    "change-proposed": (ForgeEvent("pull_request", "opened"), ForgeEvent("pull_request", "changed")),
    "change-abandoned": (ForgeEvent("pull_request", "closed"),),
    # A merge has no action of its own: it closes the pull request.
    "change-merged": (ForgeEvent("pull_request", "closed"),),
    "ref-updated": (ForgeEvent("push"),),
}
"""Kind of event -> possible events of these forges, for an event of which only the kind is known."""

REVIEW: Keys = {
    "username": StanzaKey(regex),
    "email": StanzaKey(regex),
    "older-than": StanzaKey(age),
    "newer-than": StanzaKey(age),
    "type": StanzaKey(words(*_STATES, "approval")),
    "permission": StanzaKey(permissions),
}


def _reviewed(wanted: Mapping[str, Any], seen: TermSubject) -> bool:
    """Return whether at least one review meets all conditions."""
    return terms.any_decided(partial(_is, vote, wanted, seen.now_ms) for vote in terms.others(seen))


def _is(vote: Vote, wanted: Mapping[str, Any], now_ms: int | None) -> bool:
    kind = wanted.get("type")
    return (kind is None or vote.value == _TYPES.get(kind, kind)) and terms.counts(vote, wanted, now_ms)


def _all_reviewed(wanted: object, seen: TermSubject) -> bool:
    return all(terms.asks_of_us(one, seen) or _reviewed(one, seen) for one in as_list(wanted))


def _any_reviewed(unwanted: object, seen: TermSubject) -> bool:
    return any(not terms.asks_of_us(one, seen) and _reviewed(one, seen) for one in as_list(unwanted))


REQUIRE: Terms = {
    "status": TriggerTerm(StanzaKey(patterns), terms.has_status, terms.has_foreign_status),
    "review": TriggerTerm(StanzaKey(many(inner(REVIEW, "review"))), _all_reviewed, _any_reviewed),
    "open": TriggerTerm(StanzaKey(flag), terms.fact(terms.is_open)),
    "merged": TriggerTerm(StanzaKey(flag), terms.fact(terms.is_merged)),
    "current-patchset": TriggerTerm(StanzaKey(flag), terms.fact(terms.is_current)),
    "draft": TriggerTerm(StanzaKey(flag), terms.fact(terms.is_draft)),
    "label": TriggerTerm(StanzaKey(texts), terms.labelled, terms.has_label),
}


def _required(requirement: Mapping[str, Any], seen: TermSubject) -> bool:
    return not unmet(REQUIRE, requirement, seen)


def _not_rejected(requirement: Mapping[str, Any], seen: TermSubject) -> bool:
    return not refused(REQUIRE, requirement, seen)


def _statuses(check: bool, seen: TermSubject) -> list[str]:
    return [one.spelled for one in seen.what.statuses if one.check is check]


def _old(actions: tuple[str, ...]) -> Mapping[str, str]:
    return {old: new for old, new in ALIASES.items() if new in actions}


def _acted(wanted: object, seen: TermSubject) -> bool:
    return not {ALIASES.get(one, one) for one in as_list(wanted)}.isdisjoint(terms.action(seen))


def trigger(named: StanzaKey, actions: tuple[str, ...]) -> Terms:
    """Return the keys of a trigger, with these events (`named`) and actions."""
    return {
        "event": TriggerTerm(named, terms.happened_to_existing),
        "action": TriggerTerm(StanzaKey(many(words(*actions, old=_old(actions)))), _acted),
        "branch": TriggerTerm(StanzaKey(patterns), terms.on_branch),
        "ref": TriggerTerm(StanzaKey(patterns), terms.on_ref),
        "comment": TriggerTerm(StanzaKey(patterns), terms.commented),
        "label": TriggerTerm(StanzaKey(texts), terms.one_of(lambda seen: (*terms.added(seen), *terms.removed(seen)))),
        "status": TriggerTerm(StanzaKey(patterns), lambda rules, seen: terms.fullmatch(rules, _statuses(False, seen))),
        "state": TriggerTerm(StanzaKey(many(words(*_STATES))), terms.one_of(lambda seen: (seen.what.state,))),
        "permission": TriggerTerm(
            StanzaKey(many(permissions)), lambda wanted, seen: terms.permitted(wanted, seen.what.who)
        ),
        "require": TriggerTerm(StanzaKey(inner(forms(REQUIRE), "requirement")), _required),
        "reject": TriggerTerm(StanzaKey(inner(forms(REQUIRE), "requirement")), _not_rejected),
        "debug": TriggerTerm(StanzaKey(flag, "false", idle=NO_DEBUG_LINES), terms.always),
    }


def sets(how: Mapping[str, Any]) -> frozenset[str]:
    """Return the labels that one reporter sets or removes."""
    found: set[str] = set()
    for key in ("label", "unlabel"):
        # A report has one label as a string, or several as a list.
        labels = how.get(key, ())
        found.update(
            [labels] if isinstance(labels, str) else map(str, labels if isinstance(labels, list | tuple) else ())
        )
    return frozenset(found)


def _closes(started: Sequence[Mapping[str, Any]], ended: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Return the report that cancels a started check run if no final report completes it; otherwise it would stay
    unfinished forever."""
    runs = any(how.get("check") in ("queued", "in_progress") for how in started)
    return ({"check": "cancelled", "comment": False},) if runs and not any("check" in how for how in ended) else ()


GITHUB = Dialect(
    forgiven="Github Trigger Configuration Warning",
    trigger={
        **trigger(events("pull_request", "pull_request_review", "push", "check_run"), _GITHUB_ACTIONS),
        "check": TriggerTerm(StanzaKey(patterns), lambda rules, seen: terms.fullmatch(rules, _statuses(True, seen))),
        "unlabel": TriggerTerm(StanzaKey(texts), terms.one_of(terms.removed)),
        "require-status": TriggerTerm(StanzaKey(patterns, note="deprecated: require"), terms.has_status),
        "reject-status": TriggerTerm(
            StanzaKey(patterns, note="deprecated: reject"),
            lambda rules, seen: not terms.has_foreign_status(rules, seen),
        ),
    },
    require=REQUIRE,
    reporter={
        "status": StanzaKey(words("pending", "success", "failure", "error")),
        "status-url": StanzaKey(text),
        "comment": StanzaKey(flag, "true"),
        "merge": StanzaKey(flag, "false"),
        "label": StanzaKey(texts),
        "unlabel": StanzaKey(texts),
        "review": StanzaKey(words("approve", "request-changes", "comment")),
        "review-body": StanzaKey(text),
        "check": StanzaKey(words("cancelled", "failure", "queued", "in_progress", "neutral", "skipped", "success")),
    },
    instead={"require-status": "require", "reject-status": "reject"},
    events_of=_EVENTS,
    sets=sets,
    # These are found by comparing states of a pull request or ref, which does not show who caused them.
    nobody=frozenset({"push", "changed", "edited", "check_run", "dismissed", "rerequested", "requested", "completed"}),
    closes=_closes,
)


GITEA = Dialect(
    trigger=trigger(events("pull_request", "pull_request_review", "push"), _GITEA_ACTIONS),
    require=REQUIRE,
    reporter={
        "status": StanzaKey(words("pending", "success", "failure", "error", "warning")),
        "status-url": StanzaKey(text),
        "comment": StanzaKey(flag, "true"),
        "merge": StanzaKey(flag, "false"),
        "label": StanzaKey(texts),
        "unlabel": StanzaKey(texts),
        "review": StanzaKey(words("approve", "request-changes", "comment")),
        "review-body": StanzaKey(text),
    },
    events_of=_EVENTS,
    sets=sets,
    nobody=frozenset({"push", "changed", "edited", "closed", "reopened", "labeled", "unlabeled"}),
)
