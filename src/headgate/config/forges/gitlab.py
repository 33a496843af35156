"""Define the keys of GitLab."""

from __future__ import annotations

from headgate.config.files.checks import StanzaKey, flag, many
from headgate.config.forges import terms
from headgate.config.forges.facts import ForgeEvent
from headgate.config.forges.git import NO_DEBUG_LINES
from headgate.config.forges.github import sets
from headgate.config.forges.keyterms import Dialect, TriggerTerm
from headgate.config.keys.forms import events, patterns, permissions, texts, words

GITLAB = Dialect(
    trigger={
        "event": TriggerTerm(events("gl_merge_request", "gl_push"), terms.happened_to_existing),
        "action": TriggerTerm(
            StanzaKey(
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
            terms.one_of(terms.action),
        ),
        "branch": TriggerTerm(StanzaKey(patterns), terms.on_branch),
        "comment": TriggerTerm(StanzaKey(patterns), terms.commented),
        "ref": TriggerTerm(StanzaKey(patterns), terms.on_ref),
        "labels": TriggerTerm(StanzaKey(texts), terms.one_of(terms.added)),
        "unlabels": TriggerTerm(StanzaKey(texts), terms.one_of(terms.removed)),
        "permission": TriggerTerm(
            StanzaKey(many(permissions)), lambda wanted, seen: terms.permitted(wanted, seen.what.who)
        ),
        "debug": TriggerTerm(StanzaKey(flag, "false", idle=NO_DEBUG_LINES), terms.always),
    },
    require={
        "open": TriggerTerm(StanzaKey(flag), terms.fact(terms.is_open)),
        "merged": TriggerTerm(StanzaKey(flag), terms.fact(terms.is_merged)),
        "approved": TriggerTerm(
            StanzaKey(flag), terms.fact(lambda seen: seen.details.approved if seen.change.is_change else None)
        ),
        "labels": TriggerTerm(StanzaKey(texts), terms.labelled, terms.has_label),
    },
    reporter={
        "status": StanzaKey(words("pending", "running", "success", "failed", "canceled")),
        "comment": StanzaKey(flag, "true"),
        "approval": StanzaKey(flag),
        "merge": StanzaKey(flag, "false"),
        "label": StanzaKey(texts),
        "unlabel": StanzaKey(texts),
    },
    events_of={
        "change-proposed": (ForgeEvent("gl_merge_request", "opened"), ForgeEvent("gl_merge_request", "changed")),
        "change-abandoned": (ForgeEvent("gl_merge_request", "closed"),),
        "change-merged": (ForgeEvent("gl_merge_request", "merged"),),
        "ref-updated": (ForgeEvent("gl_push"),),
    },
    sets=sets,
    # These are found by comparing states of a merge request or ref, which does not show who caused them.
    nobody=frozenset({"gl_push", "changed", "merged", "unapproved", "labeled", "closed", "reopened"}),
)
