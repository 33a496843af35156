"""Define the keys of Pagure."""

from __future__ import annotations

from headgate.config.files.checks import StanzaKey, as_list, flag, integer, many, text
from headgate.config.forges import terms
from headgate.config.forges.facts import ForgeEvent
from headgate.config.forges.git import NO_DEBUG_LINES
from headgate.config.forges.keyterms import Dialect, TermSubject, TriggerTerm
from headgate.config.keys.forms import events, patterns, permissions, texts, words


def _states(seen: TermSubject) -> tuple[str, ...]:
    """Return the state of Headgate's own newest flag, since anybody may set flags; return nothing once the change has
    entered."""
    own = (one.state for one in seen.details.statuses or () if one.who in seen.details.us)
    # The newest flag is first.
    return tuple(own)[:1] if seen.now_ms is not None else ()


def _has_state(wanted: object, seen: TermSubject) -> bool:
    return seen.now_ms is None or not set(as_list(wanted)).isdisjoint(_states(seen))


def _actions(seen: TermSubject) -> tuple[str, ...]:
    """Return the actions of an event; a merged pull request is also closed."""
    return ("merged", "closed") if seen.what.action == "merged" else (seen.what.action,)


def _scored_by_committers(least: int, seen: TermSubject) -> bool:
    """Return whether the votes of committers reach a score. Only accounts that may write and did not propose the change
    count."""
    votes = [
        one.value
        for one in seen.details.votes or ()
        if one.who.permission in ("write", "admin") and one.who.name not in ("", seen.change.owner)
    ]
    # Unknown votes must not meet a required score of 0.
    return seen.details.votes is not None and votes.count("thumbsup") - votes.count("thumbsdown") >= least


def _scored(least: int, seen: TermSubject) -> bool:
    return seen.details.score is not None and seen.details.score >= least


PAGURE = Dialect(
    trigger={
        "event": TriggerTerm(
            events("pg_pull_request", "pg_pull_request_review", "pg_push"), terms.happened_to_existing
        ),
        "action": TriggerTerm(
            StanzaKey(
                many(
                    words(
                        "opened",
                        "changed",
                        "closed",
                        "comment",
                        "status",
                        "thumbsup",
                        "thumbsdown",
                        "tagged",
                        "merged",
                    )
                )
            ),
            terms.one_of(_actions),
        ),
        "ref": TriggerTerm(StanzaKey(patterns), terms.on_ref),
        "comment": TriggerTerm(StanzaKey(patterns), terms.commented),
        "status": TriggerTerm(StanzaKey(texts), terms.one_of(lambda seen: (seen.what.state,))),
        "tag": TriggerTerm(StanzaKey(texts), terms.one_of(terms.added)),
        "permission": TriggerTerm(
            StanzaKey(many(permissions)), lambda wanted, seen: terms.permitted(wanted, seen.what.who)
        ),
        "debug": TriggerTerm(StanzaKey(flag, "false", idle=NO_DEBUG_LINES), terms.always),
    },
    require={
        "score": TriggerTerm(StanzaKey(integer), _scored),
        "committer-score": TriggerTerm(StanzaKey(integer, note="not in Zuul"), _scored_by_committers),
        "open": TriggerTerm(StanzaKey(flag), terms.fact(terms.is_open)),
        "merged": TriggerTerm(StanzaKey(flag), terms.fact(terms.is_merged)),
        "status": TriggerTerm(StanzaKey(texts), _has_state, terms.one_of(_states)),
        "tags": TriggerTerm(StanzaKey(texts), terms.one_of(terms.labels)),
    },
    reporter={
        "status": StanzaKey(words("pending", "success", "failure")),
        "status-url": StanzaKey(text),
        "comment": StanzaKey(flag, "true"),
        "merge": StanzaKey(flag, "false"),
    },
    events_of={
        "change-proposed": (ForgeEvent("pg_pull_request", "opened"), ForgeEvent("pg_pull_request", "changed")),
        "change-abandoned": (ForgeEvent("pg_pull_request", "closed"),),
        "change-merged": (ForgeEvent("pg_pull_request", "merged"),),
        "ref-updated": (ForgeEvent("pg_push"),),
    },
)
