"""Define the keys of Gitea and Forgejo. Zuul has no driver for them, so the keys are those of GitHub where the forges
agree."""

from __future__ import annotations

from headgate.config.files.check import StanzaKey, flag, text
from headgate.config.forges.facts import ForgeEvent
from headgate.config.forges.github import sets
from headgate.config.forges.keyterms import Dialect
from headgate.config.forges.reviews import REQUIRE, trigger
from headgate.config.keys.forms import events, texts, words

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
        "status": StanzaKey(words("pending", "success", "failure", "error", "warning")),
        "status-url": StanzaKey(text),
        "comment": StanzaKey(flag, "true"),
        "merge": StanzaKey(flag, "false"),
        "label": StanzaKey(texts),
        "unlabel": StanzaKey(texts),
        "review": StanzaKey(words("approve", "request-changes", "comment")),
        "review-body": StanzaKey(text),
    },
    events_of={
        "change-proposed": (ForgeEvent("pull_request", "opened"), ForgeEvent("pull_request", "changed")),
        "change-abandoned": (ForgeEvent("pull_request", "closed"),),
        "change-merged": (ForgeEvent("pull_request", "closed"),),
        "ref-updated": (ForgeEvent("push"),),
    },
    sets=sets,
    nobody=frozenset({"push", "changed", "edited", "closed", "reopened", "labeled", "unlabeled"}),
)
