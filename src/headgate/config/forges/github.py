"""Define the keys of GitHub."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headgate.config.files.check import StanzaKey, flag, text
from headgate.config.forges.facts import ForgeEvent
from headgate.config.forges.keyterms import Dialect, TermSubject, TriggerTerm
from headgate.config.forges.reviews import REQUIRE, trigger
from headgate.config.forges.terms import has_foreign_status, has_status, one_of, removed, whole_of
from headgate.config.keys.forms import events, patterns, texts, words

_ACTIONS = (
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


def _checks(seen: TermSubject) -> list[str]:
    return [one.spelled for one in seen.what.statuses if one.check]


def sets(how: Mapping[str, Any]) -> frozenset[str]:
    """Return the labels that one reporter sets or removes."""
    found: set[str] = set()
    for key in ("label", "unlabel"):
        labels = how.get(key, ())
        found.update(
            [labels] if isinstance(labels, str) else map(str, labels if isinstance(labels, list | tuple) else ())
        )
    return frozenset(found)


def _closes(started: Sequence[Mapping[str, Any]], ended: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Return the report that cancels a started check run if no report at the end completes it, since it would run for
    ever."""
    runs = any(how.get("check") in ("queued", "in_progress") for how in started)
    return ({"check": "cancelled", "comment": False},) if runs and not any("check" in how for how in ended) else ()


GITHUB = Dialect(
    forgiven="Github Trigger Configuration Warning",
    trigger={
        **trigger(events("pull_request", "pull_request_review", "push", "check_run"), _ACTIONS),
        "check": TriggerTerm(StanzaKey(patterns), lambda rules, seen: whole_of(rules, _checks(seen))),
        "unlabel": TriggerTerm(StanzaKey(texts), one_of(removed)),
        "require-status": TriggerTerm(StanzaKey(patterns, note="deprecated: require"), has_status),
        "reject-status": TriggerTerm(
            StanzaKey(patterns, note="deprecated: reject"), lambda rules, seen: not has_foreign_status(rules, seen)
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
    events_of={
        "change-proposed": (ForgeEvent("pull_request", "opened"), ForgeEvent("pull_request", "changed")),
        "change-abandoned": (ForgeEvent("pull_request", "closed"),),
        "change-merged": (ForgeEvent("pull_request", "closed"),),
        "ref-updated": (ForgeEvent("push"),),
    },
    sets=sets,
    nobody=frozenset({"push", "changed", "edited", "check_run", "dismissed", "rerequested", "requested", "completed"}),
    closes=_closes,
)
