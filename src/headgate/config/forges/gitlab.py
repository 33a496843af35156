"""GitLab."""

from __future__ import annotations

from headgate.config.forges.asking import Dialect, Term
from headgate.config.forges.facts import Happening
from headgate.config.forges.git import UNTOLD
from headgate.config.forges.github import sets
from headgate.config.forges.terms import (
    action,
    added,
    always,
    commented,
    fact,
    happened_to_what_is_there,
    has_label,
    is_merged,
    is_open,
    labelled,
    on_branch,
    on_ref,
    one_of,
    permitted,
    removed,
)
from headgate.config.keys.forms import events, patterns, permissions, texts, words
from headgate.config.reading.check import Key, flag, many

GITLAB = Dialect(
    trigger={
        "event": Term(events("gl_merge_request", "gl_push"), happened_to_what_is_there),
        "action": Term(
            Key(
                many(
                    words(
                        "opened",
                        "changed",
                        "merged",
                        "comment",
                        "approved",
                        "unapproved",
                        "labeled",
                        "closed",
                        "reopened",
                    )
                )
            ),
            one_of(action),
        ),
        "branch": Term(Key(patterns), on_branch),
        "comment": Term(Key(patterns), commented),
        "ref": Term(Key(patterns), on_ref),
        "labels": Term(Key(texts), one_of(added)),
        "unlabels": Term(Key(texts), one_of(removed)),
        "permission": Term(Key(many(permissions)), lambda wanted, seen: permitted(wanted, seen.what.who)),
        "debug": Term(Key(flag, "false", idle=UNTOLD), always),
    },
    require={
        "open": Term(Key(flag), fact(is_open)),
        "merged": Term(Key(flag), fact(is_merged)),
        "approved": Term(Key(flag), fact(lambda seen: seen.details.approved if seen.change.is_change else None)),
        "labels": Term(Key(texts), labelled, has_label),
    },
    reporter={
        "status": Key(words("pending", "running", "success", "failed", "canceled")),
        "comment": Key(flag, "true"),
        "approval": Key(flag),
        "merge": Key(flag, "false"),
        "label": Key(texts),
        "unlabel": Key(texts),
    },
    told={
        "change-proposed": (Happening("gl_merge_request", "opened"), Happening("gl_merge_request", "changed")),
        "change-abandoned": (Happening("gl_merge_request", "closed"),),
        "change-merged": (Happening("gl_merge_request", "merged"),),
        "ref-updated": (Happening("gl_push"),),
    },
    sets=sets,
    nobody=frozenset({"gl_push", "changed", "merged", "unapproved", "labeled", "closed", "reopened"}),
)
