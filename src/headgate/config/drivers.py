"""Define the keys that each driver accepts in a pipeline: for triggers, requirements and reporters.

Keys are checked even for a driver that Headgate cannot connect to, so that any installation can check a configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

from headgate.config.files.checks import Check, Keys, StanzaKey, count, flag, many, mapping, text
from headgate.config.forges.gerrit import GERRIT
from headgate.config.forges.git import GIT, NO_DEBUG_LINES
from headgate.config.forges.github import GITEA, GITHUB
from headgate.config.forges.gitlab import GITLAB
from headgate.config.forges.keyterms import Dialect, forms
from headgate.config.forges.pagure import PAGURE
from headgate.config.keys.forms import any_of, events, queue, texts, time, words
from headgate.queueing.partitions import TTL_MAX_S

DIALECTS: Mapping[str, Dialect] = {
    "git": GIT,
    "gerrit": GERRIT,
    "github": GITHUB,
    "gitlab": GITLAB,
    "gitea": GITEA,
    "pagure": PAGURE,
}
"""Name of each forge's driver -> its dialect. To add a forge, add a row here, a module with its keys in
`config/forges`, and a package below `adapters/forges`."""
ANY = "any"
"""Driver of a connection of which only the name is known; it accepts the keys of all drivers."""
_NO_VARS = "reports contain no job variables; the history contains the data that jobs return"


class Driver(NamedTuple):
    """Hold the keys that a driver accepts in a pipeline."""

    trigger: Keys | None
    """Keys of one trigger; None if the driver has no triggers."""
    require: Keys | None
    """Keys of `require` and `reject`; None if the driver has neither."""
    reporter: Keys | None
    """Keys of one reporter; None if the driver has no reporters."""
    free: bool = False
    """Whether reporters may have any other keys, too."""
    lands: tuple[str, ...] = ()
    """Keys of a success reporter that land the change when they are true."""
    deprecated: tuple[str, ...] = ()
    """Keys of a trigger that have a successor; using one is a warning."""
    forgiven: str = ""
    """Name of warnings that replace errors in a trigger, except for unknown keys; empty if they stay errors."""
    idle: str = ""
    """Reason why a pipeline's settings for it have no effect in Headgate; empty if they have one."""
    posts: bool = False
    """Whether it reports changes of every connection, not only those of its own."""
    named: tuple[str, ...] = ()
    """Keys of a requirement that name people; they work only where the server authenticates people."""


def _of(dialect: Dialect) -> Driver:
    """Return the driver of a forge. It accepts exactly the keys that have predicates."""
    return Driver(
        trigger=forms(dialect.trigger),
        require=forms(dialect.require),
        reporter=dialect.reporter,
        free=dialect.free,
        lands=dialect.lands,
        deprecated=tuple(dialect.instead),
        forgiven=dialect.forgiven,
        named=dialect.named,
    )


QUEUE = Driver(
    trigger={
        "queue": StanzaKey(queue, required=True, note="each message in it starts an item"),
        # A message belongs to no repository, and neither does an object of the inventory below.
        "project": StanzaKey(text, required=True, note="the project whose jobs run"),
        "branch": StanzaKey(text, "the project's first branch"),
    },
    require=None,
    reporter={
        "queue": StanzaKey(queue, "gate-TENANT"),
        "ttl": StanzaKey(count(1, TTL_MAX_S), "259200", "seconds to keep the message"),
    },
    posts=True,
)
"""Driver of a message server: each report becomes a message in a queue, and messages start items
(how-to/use-queues)."""

INVENTORY = Driver(
    trigger={
        "event": events("object-created", "object-updated", "object-deleted"),
        "type": StanzaKey(text, "runm.machine"),
        "filter": StanzaKey(text, "everything", "a filter expression, as in searches of the inventory"),
        "project": StanzaKey(text, required=True, note="the project whose jobs run"),
        "branch": StanzaKey(text, "the project's first branch"),
    },
    require=None,
    reporter={
        "set": StanzaKey(mapping, note="properties of the object that started the item"),
        "unset": StanzaKey(texts),
        "tag": StanzaKey(texts),
        "untag": StanzaKey(texts),
    },
    posts=True,
)
"""Driver of the inventory: objects start items, and reports change their properties and tags
(how-to/burn-in-machines)."""

DRIVERS: dict[str, Driver] = {
    **{name: _of(dialect) for name, dialect in DIALECTS.items()},
    "queue": QUEUE,
    "inventory": INVENTORY,
    "timer": Driver(
        trigger={
            "time": StanzaKey(many(time), required=True, note="day 0 is Monday"),
            "dereference": StanzaKey(flag, "false", idle="an item whose branch has moved always restarts"),
            "debug": StanzaKey(flag, "false", idle=NO_DEBUG_LINES),
        },
        require=None,
        reporter=None,
    ),
    "zuul": Driver(
        trigger={
            "event": StanzaKey(
                many(words("parent-change-enqueued", "project-change-merged", "image-build", "image-validate")),
                required=True,
            ),
            "pipeline": StanzaKey(texts, "all", "the pipeline that the parent was enqueued into"),
            "debug": StanzaKey(flag, "false", idle=NO_DEBUG_LINES),
        },
        require=None,
        reporter={
            "image-built": StanzaKey(
                flag, note="creates images from the data that builds return as zuul_image; only with post-review"
            ),
            "image-validated": StanzaKey(
                flag, note="records whether machines may be created from the image; only with post-review"
            ),
        },
    ),
    "smtp": Driver(
        None,
        None,
        {
            "to": StanzaKey(text, "default_to of the connection", "addresses, separated by commas"),
            "from": StanzaKey(text, "default_from of the connection"),
            "subject": StanzaKey(
                text, note="with {change}, {change.subject}, {pipeline}, {project}, {branch}, {result} …"
            ),
        },
        posts=True,
    ),
    "http": Driver(None, None, {}, posts=True),
    "chat": Driver(None, None, {"title": StanzaKey(text, note="like subject of smtp")}, posts=True),
    "mqtt": Driver(
        None,
        None,
        {
            "topic": StanzaKey(
                text,
                "{tenant}/zuul/{pipeline}/{project}/{branch}/{change}",
                "may contain these, {patchset} and {ref}",
            ),
            "qos": StanzaKey(count(0, 2), "0"),
            "include-returned-data": StanzaKey(flag, "false", idle=_NO_VARS),
        },
        posts=True,
    ),
    "elasticsearch": Driver(
        None,
        None,
        {
            "index": StanzaKey(
                text, "zuul.{tenant}-%Y.%m.%d", "may contain %Y %y %m %d %H %V %G %U of the report's time"
            ),
            "index-vars": StanzaKey(flag, "false", idle=_NO_VARS),
            "index-returned-vars": StanzaKey(flag, "false", idle=_NO_VARS),
        },
        posts=True,
    ),
    "sql": Driver(None, None, {}, free=True, idle="every buildset is in the history anyway"),
}
ALWAYS_THERE = {"timer": "timer", "zuul": "zuul"}
"""Connection that every installation has -> its driver."""


@cache
def _united() -> Driver:
    def keys(part: str) -> Keys:
        # A dict, because many drivers share a check, and the value must be tried with each check only once, in a fixed
        # order.
        found: dict[str, dict[Check, None]] = {}
        for driver in DRIVERS.values():
            for name, key in (getattr(driver, part) or {}).items():
                found.setdefault(name, {})[key.check] = None
        return {name: StanzaKey(any_of(list(checks))) for name, checks in found.items()}

    lands = tuple(dict.fromkeys(key for driver in DRIVERS.values() for key in driver.lands))
    # Any reporter key may be right: on Gerrit, it may be the name of a label.
    return Driver(keys("trigger"), keys("require"), {}, free=True, lands=lands)


def driver_named(name: str) -> Driver | None:
    """Return the driver of this name, or None if there is none."""
    return _united() if name == ANY else DRIVERS.get(name)
