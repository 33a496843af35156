"""Pagure."""

from __future__ import annotations

from headgate.config.forges.asking import Dialect, Seen, Term
from headgate.config.forges.facts import Happening
from headgate.config.forges.git import UNTOLD
from headgate.config.forges.terms import (
    added,
    always,
    commented,
    fact,
    happened_to_what_is_there,
    is_merged,
    is_open,
    labels,
    on_ref,
    one_of,
    permitted,
)
from headgate.config.keys.forms import events, patterns, permissions, texts, words
from headgate.config.reading.check import Key, as_list, flag, many, text, whole


def _states(seen: Seen) -> tuple[str, ...]:
    """What the newest flag of ours says, as anybody may set one; once it is there, that is not asked."""
    own = (one.state for one in seen.details.statuses or () if one.who in seen.details.us)
    return tuple(own)[:1] if seen.now_ms is not None else ()


def _has_state(wanted: object, seen: Seen) -> bool:
    return seen.now_ms is None or not set(as_list(wanted)).isdisjoint(_states(seen))


def _actions(seen: Seen) -> tuple[str, ...]:
    """What is merged is closed, too."""
    return ("merged", "closed") if seen.what.action == "merged" else (seen.what.action,)


def _scored_by_committers(least: int, seen: Seen) -> bool:
    """Anybody may vote; here those alone count who may write, and not who proposed it."""
    votes = [
        one.value
        for one in seen.details.votes or ()
        if one.who.permission in ("write", "admin") and one.who.name not in ("", seen.change.owner)
    ]
    return seen.details.votes is not None and votes.count("thumbsup") - votes.count("thumbsdown") >= least


def _scored(least: int, seen: Seen) -> bool:
    return seen.details.score is not None and seen.details.score >= least


PAGURE = Dialect(
    trigger={
        "event": Term(events("pg_pull_request", "pg_pull_request_review", "pg_push"), happened_to_what_is_there),
        "action": Term(
            Key(
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
            one_of(_actions),
        ),
        "ref": Term(Key(patterns), on_ref),
        "comment": Term(Key(patterns), commented),
        "status": Term(Key(texts), one_of(lambda seen: (seen.what.state,))),
        "tag": Term(Key(texts), one_of(added)),
        "permission": Term(Key(many(permissions)), lambda wanted, seen: permitted(wanted, seen.what.who)),
        "debug": Term(Key(flag, "false", idle=UNTOLD), always),
    },
    require={
        "score": Term(Key(whole), _scored),
        "committer-score": Term(Key(whole, note="Headgate's own"), _scored_by_committers),
        "open": Term(Key(flag), fact(is_open)),
        "merged": Term(Key(flag), fact(is_merged)),
        "status": Term(Key(texts), _has_state, one_of(_states)),
        "tags": Term(Key(texts), one_of(labels)),
    },
    reporter={
        "status": Key(words("pending", "success", "failure")),
        "status-url": Key(text),
        "comment": Key(flag, "true"),
        "merge": Key(flag, "false"),
    },
    told={
        "change-proposed": (Happening("pg_pull_request", "opened"), Happening("pg_pull_request", "changed")),
        "change-abandoned": (Happening("pg_pull_request", "closed"),),
        "change-merged": (Happening("pg_pull_request", "merged"),),
        "ref-updated": (Happening("pg_push"),),
    },
)
