"""What each driver lets a pipeline say: its triggers, requirements and reporters (config-language §4.1).

A driver whose connection cannot be made yet is checked all the same: the configuration is read, whoever runs it.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from headgate.config.keys.forms import age, any_of, approvals, checks, queue, time, words
from headgate.config.keys.objects import NO_IMAGES
from headgate.config.reading.check import Check, Key, Keys, count, flag, inner, many, mapping, regex, text, word
from headgate.queueing.lanes import TTL_MAX_S


class Driver(NamedTuple):
    trigger: Keys | None
    """Of one entry; None: it triggers nothing."""
    require: Keys | None
    """Of `require` and `reject`; None: it has neither."""
    reporter: Keys | None
    """None: it reports nothing."""
    free: bool = False
    """Reporters may have any other key, too."""
    lands: tuple[str, ...] = ()
    """Keys of a success reporter that land the change when they are true."""
    deprecated: tuple[str, ...] = ()
    """Keys of a trigger that have a better successor; they make a warning."""
    forgiven: str = ""
    """Name of the warnings that what is wrong with a trigger becomes, but for unknown keys; empty: it is an error."""
    idle: str = ""
    """Why whatever a pipeline says to it has no effect here; empty: it has one."""
    posts: bool = False
    """Its reports go to whoever takes them there, whatever connection the change is of."""
    named: tuple[str, ...] = ()
    """Keys of a requirement that ask for people by name, which mean something only where the server says who is who."""


_FORGE = "Headgate has no connections of this driver yet"
_UNTOLD = "nobody is told the lines of debugging"
_TEXTS = many(text)
_PATTERNS = many(regex)
_LABELS = many(mapping)


def _event(*events: str) -> Key:
    return Key(many(words(*events)), required=True)


GERRIT_REQUIRE: Keys = {
    "approval": Key(approvals),
    "open": Key(flag),
    "current-patchset": Key(flag),
    "wip": Key(flag),
    "hashtags": Key(_PATTERNS),
    "status": Key(_TEXTS),
}
GERRIT_TRIGGER: Keys = {
    "event": _event(
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
    "branch": Key(_PATTERNS),
    "ref": Key(_PATTERNS),
    "ignore-deletes": Key(flag, "true"),
    "approval": Key(_LABELS),
    "approval-change": Key(_LABELS),
    "comment": Key(_PATTERNS),
    "email": Key(_PATTERNS),
    "username": Key(_PATTERNS),
    "added": Key(_PATTERNS),
    "removed": Key(_PATTERNS),
    "uuid": Key(_TEXTS),
    "scheme": Key(_TEXTS),
    "require": Key(inner(GERRIT_REQUIRE, "requirement")),
    "reject": Key(inner(GERRIT_REQUIRE, "requirement")),
    "debug": Key(flag, "false"),
    "require-approval": Key(approvals, note="deprecated: require"),
    "reject-approval": Key(approvals, note="deprecated: reject"),
    "comment_filter": Key(_PATTERNS, note="deprecated: comment"),
    "email_filter": Key(_PATTERNS, note="deprecated: email"),
    "username_filter": Key(_PATTERNS, note="deprecated: username"),
}

_REVIEW: Keys = {
    "username": Key(text),
    "email": Key(text),
    "older-than": Key(age),
    "newer-than": Key(age),
    "type": Key(words("approved", "approval", "commented", "changes_requested", "dismissed", "pending")),
    "permission": Key(words("read", "write", "admin")),
}
GITHUB_REQUIRE: Keys = {
    "status": Key(_PATTERNS),
    "review": Key(many(inner(_REVIEW, "review"))),
    "open": Key(flag),
    "merged": Key(flag),
    "current-patchset": Key(flag),
    "draft": Key(flag),
    "label": Key(_TEXTS),
}
GITHUB_TRIGGER: Keys = {
    "event": _event("pull_request", "pull_request_review", "push", "check_run"),
    "action": Key(
        many(
            words(
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
        )
    ),
    "branch": Key(_PATTERNS),
    "ref": Key(_PATTERNS),
    "comment": Key(_PATTERNS),
    "label": Key(_TEXTS),
    "unlabel": Key(_TEXTS),
    "status": Key(_PATTERNS),
    "state": Key(_TEXTS),
    "check": Key(_PATTERNS),
    "permission": Key(_TEXTS),
    "require": Key(inner(GITHUB_REQUIRE, "requirement")),
    "reject": Key(inner(GITHUB_REQUIRE, "requirement")),
    "debug": Key(flag, "false"),
    "require-status": Key(_PATTERNS, note="deprecated: require"),
    "reject-status": Key(_PATTERNS, note="deprecated: reject"),
}

APPROVALS: Keys = {
    "count": Key(count(1, 100), "1"),
    "of": Key(_TEXTS, "anybody"),
    "newer-than": Key(age),
    "not-author": Key(flag, "false"),
}
"""What several people say of a change of plain git."""

GIT = Driver(
    trigger={
        "event": _event("change-proposed", "change-approved", "change-abandoned", "change-merged", "ref-updated"),
        "branch": Key(_PATTERNS),
        "ref": Key(_PATTERNS),
        "ignore-deletes": Key(flag, "true"),
        "debug": Key(flag, "false", idle=_UNTOLD),
    },
    require={
        "approved": Key(flag),
        "open": Key(flag),
        "current-patchset": Key(flag),
        "approvals": Key(inner(APPROVALS, "approvals")),
        "veto": Key(flag),
        "check": Key(checks),
    },
    named=("approvals", "veto"),
    reporter={"note": Key(flag, "true"), "land": Key(flag, "false")},
    lands=("land",),
)
"""Plain git: changes are proposed and approved by pushing to refs/for and refs/approved."""

QUEUE = Driver(
    trigger={
        "queue": Key(queue, required=True, note="each message in it starts an item"),
        "project": Key(text, required=True, note="whose jobs run"),
        "branch": Key(text, "the project's first"),
    },
    require=None,
    reporter={
        "queue": Key(queue, "gate-TENANT"),
        "ttl": Key(count(1, TTL_MAX_S), "259200", "seconds for which it is kept"),
    },
    posts=True,
)
"""A server of messages: each report is a message of a queue, and messages start pipelines (how-to/use-queues)."""

INVENTORY = Driver(
    trigger={
        "event": _event("object-created", "object-updated", "object-deleted"),
        "type": Key(text, "runm.machine"),
        "filter": Key(text, "everything", "as searches of the inventory have it"),
        "project": Key(text, required=True, note="whose jobs run"),
        "branch": Key(text, "the project's first"),
    },
    require=None,
    reporter={
        "set": Key(mapping, note="properties of the object that started the item"),
        "unset": Key(_TEXTS),
        "tag": Key(_TEXTS),
        "untag": Key(_TEXTS),
    },
    posts=True,
)
"""The inventory: objects start pipelines, and are told how these ended (how-to/burn-in-machines)."""

DRIVERS: dict[str, Driver] = {
    "git": GIT,
    "queue": QUEUE,
    "inventory": INVENTORY,
    "gerrit": Driver(
        trigger=GERRIT_TRIGGER,
        require=GERRIT_REQUIRE,
        reporter={
            "submit": Key(flag, "false"),
            "comment": Key(flag, "true"),
            "notify": Key(words("NONE", "OWNER", "OWNER_REVIEWERS", "ALL")),
            "checks-api": Key(mapping),
        },
        free=True,
        lands=("submit",),
        deprecated=("require-approval", "reject-approval", "comment_filter", "email_filter", "username_filter"),
        idle=_FORGE,
    ),
    "github": Driver(
        trigger=GITHUB_TRIGGER,
        require=GITHUB_REQUIRE,
        reporter={
            "status": Key(words("pending", "success", "failure", "error")),
            "status-url": Key(text),
            "comment": Key(flag, "true"),
            "merge": Key(flag, "false"),
            "label": Key(_TEXTS),
            "unlabel": Key(_TEXTS),
            "review": Key(words("approve", "request-changes", "comment")),
            "review-body": Key(text),
            "check": Key(words("cancelled", "failure", "queued", "in_progress", "neutral", "skipped", "success")),
        },
        lands=("merge",),
        deprecated=("require-status", "reject-status"),
        forgiven="Github Trigger Configuration Warning",
        idle=_FORGE,
    ),
    "gitlab": Driver(
        trigger={
            "event": _event("gl_merge_request", "gl_push"),
            "action": Key(
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
            "branch": Key(_PATTERNS),
            "comment": Key(_PATTERNS),
            "ref": Key(_PATTERNS),
            "labels": Key(_TEXTS),
            "unlabels": Key(_TEXTS),
            "debug": Key(flag, "false"),
        },
        require={"open": Key(flag), "merged": Key(flag), "approved": Key(flag), "labels": Key(_TEXTS)},
        reporter={
            "comment": Key(flag, "true"),
            "approval": Key(flag),
            "merge": Key(flag, "false"),
            "label": Key(_TEXTS),
            "unlabel": Key(_TEXTS),
        },
        lands=("merge",),
        idle=_FORGE,
    ),
    "pagure": Driver(
        trigger={
            "event": _event("pg_pull_request", "pg_pull_request_review", "pg_push"),
            "action": Key(
                many(words("opened", "changed", "closed", "comment", "status", "thumbsup", "tagged", "merged"))
            ),
            "ref": Key(_PATTERNS),
            "comment": Key(_PATTERNS),
            "status": Key(_TEXTS),
            "tag": Key(_TEXTS),
            "debug": Key(flag, "false"),
        },
        require={
            "score": Key(word),
            "open": Key(flag),
            "merged": Key(flag),
            "status": Key(_TEXTS),
            "tags": Key(_TEXTS),
        },
        reporter={
            "status": Key(words("pending", "success", "failure")),
            "status-url": Key(text),
            "comment": Key(flag, "true"),
            "merge": Key(flag, "false"),
        },
        lands=("merge",),
        idle=_FORGE,
    ),
    "timer": Driver(
        trigger={
            "time": Key(many(time), required=True, note="day 0 is Monday"),
            "dereference": Key(flag, "false", idle="a branch that has moved is always started again"),
            "debug": Key(flag, "false", idle=_UNTOLD),
        },
        require=None,
        reporter=None,
    ),
    "zuul": Driver(
        trigger={
            "event": Key(
                many(
                    words(
                        "parent-change-enqueued",
                        "project-change-merged",
                        "image-build",
                        "image-validate",
                        idle={"image-build": NO_IMAGES, "image-validate": NO_IMAGES},
                    )
                ),
                required=True,
            ),
            "pipeline": Key(_TEXTS, "all", "where the parent was enqueued"),
            "debug": Key(flag, "false", idle=_UNTOLD),
        },
        require=None,
        reporter={"image-built": Key(flag, idle=NO_IMAGES), "image-validated": Key(flag, idle=NO_IMAGES)},
    ),
    "smtp": Driver(
        None,
        None,
        {
            "to": Key(text, "default_to of the connection", "addresses, with commas between"),
            "from": Key(text, "default_from of the connection"),
            "subject": Key(text, note="with {change}, {change.subject}, {pipeline}, {project}, {branch}, {result} …"),
        },
        posts=True,
    ),
    "http": Driver(None, None, {}, posts=True),
    "chat": Driver(None, None, {"title": Key(text, note="as subject of smtp")}, posts=True),
    "mqtt": Driver(
        None,
        None,
        {"topic": Key(text), "qos": Key(count(0)), "include-returned-data": Key(flag, "false")},
        idle=_FORGE,
    ),
    "elasticsearch": Driver(
        None,
        None,
        {"index": Key(text), "index-vars": Key(flag, "false"), "index-returned-vars": Key(flag, "false")},
        idle=_FORGE,
    ),
    "sql": Driver(None, None, {}, free=True, idle="every buildset is in the history anyway"),
}
ALWAYS_THERE = {"timer": "timer", "zuul": "zuul"}
"""Connections every installation has -> their driver."""


@cache
def _united() -> Driver:
    def keys(part: str) -> Keys:
        found: dict[str, dict[Check, None]] = {}
        for driver in DRIVERS.values():
            for name, key in (getattr(driver, part) or {}).items():
                found.setdefault(name, {})[key.check] = None
        return {name: Key(any_of(list(checks))) for name, checks in found.items()}

    lands = tuple(dict.fromkeys(key for driver in DRIVERS.values() for key in driver.lands))
    return Driver(keys("trigger"), keys("require"), {}, free=True, lands=lands)


ANY = "any"
"""Driver of a connection of which nothing but its name is known: it may say what any of them may."""


def driver_named(name: str) -> Driver | None:
    """None: there is no such driver."""
    return _united() if name == ANY else DRIVERS.get(name)
