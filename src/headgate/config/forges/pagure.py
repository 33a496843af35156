"""Pagure."""

from __future__ import annotations

from headgate.config.forges.asking import Dialect, Seen, Term
from headgate.config.forges.facts import Happening
from headgate.config.forges.git import UNTOLD
from headgate.config.forges.terms import (
    action,
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
)
from headgate.config.keys.forms import events, patterns, texts, words
from headgate.config.reading.check import Key, as_list, flag, many, text, whole


def _states(seen: Seen) -> tuple[str, ...]:
    """What flags say; once it is there, those that Headgate sets are not asked."""
    return tuple(
        one.state for one in seen.details.statuses or () if seen.now_ms is not None or one.who not in seen.details.us
    )


def _has_state(wanted: object, seen: Seen) -> bool:
    mine = any(one.who in seen.details.us for one in seen.details.statuses or ())
    return not set(as_list(wanted)).isdisjoint(_states(seen)) or (seen.now_ms is None and mine)


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
            one_of(action),
        ),
        "ref": Term(Key(patterns), on_ref),
        "comment": Term(Key(patterns), commented),
        "status": Term(Key(texts), one_of(lambda seen: (seen.what.state,))),
        "tag": Term(Key(texts), one_of(added)),
        "debug": Term(Key(flag, "false", idle=UNTOLD), always),
    },
    require={
        "score": Term(Key(whole), _scored),
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
