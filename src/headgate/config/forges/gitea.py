"""Gitea and Forgejo: the reference has no driver for them; where they are as GitHub is, the words are the same."""

from __future__ import annotations

from headgate.config.forges.asking import Dialect
from headgate.config.forges.facts import Happening
from headgate.config.forges.github import sets
from headgate.config.forges.reviewing import REQUIRE, trigger
from headgate.config.keys.forms import events, texts, words
from headgate.config.reading.check import Key, flag, text

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
    "submitted",
)

GITEA = Dialect(
    trigger=trigger(events("pull_request", "pull_request_review", "push"), _ACTIONS),
    require=REQUIRE,
    reporter={
        "status": Key(words("pending", "success", "failure", "error", "warning")),
        "status-url": Key(text),
        "comment": Key(flag, "true"),
        "merge": Key(flag, "false"),
        "label": Key(texts),
        "unlabel": Key(texts),
        "review": Key(words("approve", "request-changes", "comment")),
        "review-body": Key(text),
    },
    told={
        "change-proposed": (Happening("pull_request", "opened"), Happening("pull_request", "changed")),
        "change-abandoned": (Happening("pull_request", "closed"),),
        "change-merged": (Happening("pull_request", "closed"),),
        "ref-updated": (Happening("push"),),
    },
    sets=sets,
    nobody=frozenset({"push", "changed", "edited", "closed", "reopened", "labeled", "unlabeled"}),
)
