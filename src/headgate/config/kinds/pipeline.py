"""Turn pipeline stanzas into the records that the gate reads, and find triggers that can never match."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from headgate.base.hints import HintedText, nearest
from headgate.config.drivers import DIALECTS, DRIVERS, Driver, driver_named
from headgate.config.files.checks import StanzaKey, anything, as_list, deep_plain, entries, idle, show, table
from headgate.config.files.document import Table
from headgate.config.files.source import NEVER, UNKNOWN_WORD, Wrong
from headgate.config.keys.objects import PIPELINE, REPORTERS
from headgate.config.model import Pipeline, TriggerFilter, Window
from headgate.config.operator.model import Tenant

OURS = (
    "refs/for/",
    "refs/approved/",
    "refs/recheck/",
    "refs/approvals/",
    "refs/vetoes/",
    "refs/proposers/",
    "refs/notes/headgate",
)
"""Prefixes of the refs of proposals, approvals, requests and notes; a push to one of them is not a ref update."""
_HEADS, _FOR = "refs/heads/", "refs/for/"
_SPECIAL = frozenset(".^$*+?{}[]|()")
_REPEATS = ("*", "?", "{")
_MESSAGES = tuple(key for key in PIPELINE if key.endswith("-message"))
_PRECEDENCE = {"high": 100, "normal": 200, "low": 300}


def pipeline(body: Table, tenant: Tenant, warnings: list[Wrong]) -> Pipeline:
    """Return the record of a pipeline. Raise Wrong if a connection is unknown or its driver does not accept a key."""
    settings = _ConnectionSettings(body, tenant, warnings)
    triggers = tuple(settings.triggers())
    started_once(body, triggers)
    named = dict.fromkeys(trigger.connection for trigger in triggers)
    require, reject = settings.requirements("require"), settings.requirements("reject")
    reports = {kind: found for kind in REPORTERS if (found := settings.reports(kind))}
    not_by_itself(body, triggers, reports)
    # As in Zuul, these are reported like failures unless the pipeline has reporters for them.
    for kind in ("merge-conflict", "config-error"):
        if kind not in reports and "failure" in reports:
            reports[kind] = reports["failure"]
    connections = tuple(dict.fromkeys([*named, *require, *(name for found in reports.values() for name in found)]))
    return Pipeline(
        name=body["name"],
        manager=body["manager"],
        description=body.get("description", ""),
        triggers=triggers,
        require=require,
        reject=reject,
        require_approved=tuple(
            name for name, wanted in require.items() if wanted.get("approved") and not _is_forge(tenant.driver(name))
        ),
        reporters={kind: connected for kind, found in reports.items() if (connected := _public(found))},
        reports=reports,
        posts=tuple(dict.fromkeys(name for found in reports.values() for name in found if settings.posts(name))),
        lands=tuple(name for name, found in reports.get("success", {}).items() if settings.lands(name, found)),
        precedence=_PRECEDENCE[body.get("precedence", "normal")],
        post_review=body.get("post-review", False),
        dequeue_on_new_patchset=body.get("dequeue-on-new-patchset", True),
        ignore_dependencies=body.get("ignore-dependencies", False),
        allow_parameters=body.get("allow-parameters", False),
        allow_other_connections=body.get("allow-other-connections", True),
        connections=connections,
        drivers={name: tenant.driver(name) for name in {*connections, *reject} if _is_forge(tenant.driver(name))},
        disable_after=body.get("disable-after-consecutive-failures"),
        rerun_only_failed=body.get("rerun-only-failed", False),
        reuse=body.get("reuse", False),
        supercedes=tuple(as_list(body.get("supercedes"))),
        window=_window(body),
        **{key.replace("-", "_"): body[key] for key in _MESSAGES if key in body},
    )


def _is_forge(driver: str) -> bool:
    """Return whether the driver is that of a forge other than plain git."""
    return driver in DIALECTS and driver != "git"


def _window(body: Table) -> Window:
    return Window(
        size=body.get("window", 20),
        floor=body.get("window-floor", 3),
        ceiling=body.get("window-ceiling"),
        increase_type=body.get("window-increase-type", "linear"),
        increase_factor=body.get("window-increase-factor", 1),
        decrease_type=body.get("window-decrease-type", "exponential"),
        decrease_factor=body.get("window-decrease-factor", 2),
    )


def _public(found: dict[str, tuple[Any, ...]]) -> tuple[str, ...]:
    """Return the connections that report in public: all except those of plain git with `note: false`."""
    return tuple(name for name, hows in found.items() if not hows or any(how.get("note", True) for how in hows))


class _ConnectionSettings:
    """Read the settings of a pipeline stanza for its connections, by the keys of their drivers."""

    def __init__(self, body: Table, tenant: Tenant, warnings: list[Wrong]) -> None:
        self._body, self._tenant, self._warnings = body, tenant, warnings
        self._idle: set[str] = set()
        """Connections for which a warning was already given."""

    def _sections(self, key: str, allowed: tuple[str, ...] | None) -> Iterator[tuple[str, Driver, Any, int]]:
        section = self._body.get(key, Table(0))
        for name, value in section.items():
            line = section.at(name)
            if name not in self._tenant.connections:
                hint = nearest(name, self._tenant.connections)
                raise Wrong(HintedText(f"the connection {name!r} is not configured", hint), line)
            if allowed is not None and name not in allowed:
                text = (
                    f"this tenant may not use the connection {name!r} here; it may use {', '.join(allowed) or 'none'}"
                )
                raise Wrong(text, line, "Unknown Connection")
            driver = driver_named(self._tenant.driver(name))
            if driver is None:
                text = f"the connection {name!r} has the unknown driver {self._tenant.driver(name)!r}"
                hint = nearest(self._tenant.driver(name), DRIVERS)
                raise Wrong(HintedText(text, hint), line, "Unknown Connection")
            if driver.idle and name not in self._idle:
                self._idle.add(name)
                what = f"the use of the connection {name!r} in the pipeline {self._body['name']}"
                self._warnings.append(idle(what, driver.idle, line))
            yield name, driver, value, line

    def triggers(self) -> Iterator[TriggerFilter]:
        for connection, driver, value, line in self._sections("trigger", self._tenant.allowed_triggers):
            if driver.trigger is None:
                raise Wrong(f"the connection {connection!r} cannot trigger pipelines", line)
            for entry, at in entries(value, line):
                if not self._trigger(entry, driver, connection, at):
                    continue
                self._deprecated(entry, driver, connection)
                if "project" in entry and self._tenant.find(entry["project"]) is None:
                    raise Wrong(self._tenant.why_not(entry["project"]), entry.at("project"))
                if driver is DRIVERS["git"] and (why := never(entry)):
                    self._warnings.append(Wrong(why, entry.at("ref"), NEVER, "warning"))
                dialect = DIALECTS.get(self._tenant.driver(connection))
                if dialect is not None and (why := nobody_did(entry, dialect.nobody)):
                    self._warnings.append(Wrong(why, entry.at("permission"), NEVER, "warning"))
                # In a trigger that names a project, `branch` is not a pattern but the branch whose jobs run.
                filters = ("event", "ref", "ignore-deletes", *(() if "project" in entry else ("branch",)))
                more = {k: v for k, v in entry.items() if k not in filters}
                yield TriggerFilter(
                    connection=connection,
                    events=tuple(as_list(entry.get("event"))),
                    branches=() if "branch" in more else tuple(deep_plain(as_list(entry.get("branch")))),
                    refs=tuple(deep_plain(as_list(entry.get("ref")))),
                    ignore_deletes=entry.get("ignore-deletes", True),
                    more=deep_plain(more),
                )

    def _trigger(self, entry: Any, driver: Driver, connection: str, line: int) -> bool:
        """Return whether a trigger is valid. If not, warn that it is ignored, or raise Wrong if its driver does not
        tolerate errors."""
        keys, found = driver.trigger or {}, list[Wrong]()
        try:
            table(entry, keys, f"trigger of {connection}", found, line)
        except Wrong as wrong:
            # An unknown key stays an error: without a misspelt filter, the trigger would match more than intended.
            if not driver.forgiven or (isinstance(entry, Table) and not keys.keys() >= entry.keys()):
                raise
            text = f"{wrong.text}; this trigger is ignored"
            self._warnings.append(Wrong(text, wrong.line, driver.forgiven, "warning"))
            return False
        for one in found:
            name = driver.forgiven if driver.forgiven and one.name == UNKNOWN_WORD else one.name
            self._warnings.append(Wrong(one.message, one.line, name, "warning"))
        return True

    def _deprecated(self, entry: Table, driver: Driver, connection: str) -> None:
        # These are the names of the same warnings in Zuul.
        names = {"gerrit": "Gerrit Deprecation", "github": "GitHub Deprecation"}
        for key in driver.deprecated:
            if key in entry:
                name = names.get(self._tenant.driver(connection), "Deprecation")
                text = f"{key} is {driver.trigger[key].note if driver.trigger else 'deprecated'}"
                self._warnings.append(Wrong(text, entry.at(key), name, "warning"))

    def requirements(self, key: str) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        # The tenant file limits the connections of triggers and reporters, not those of requirements.
        for connection, driver, value, line in self._sections(key, None):
            if driver.require is None:
                raise Wrong(f"the connection {connection!r} supports no requirements", line)
            table(value, driver.require, f"requirement of {connection}", self._warnings, line)
            named = next((key for key in driver.named if key in value), "")
            # If the server does not check who pushes, anybody could approve under another user's name.
            if named and connection not in self._tenant.bound:
                text = (
                    f"{named} depends on who approves, but the server of {connection!r} is not known to check the "
                    "names of those who push: install its rules (`headgate hook install --people`), then set "
                    f"approvals = bound in [connection {connection}]"
                )
                raise Wrong(text, value.at(named))
            found[connection] = deep_plain(value)
        return found

    def reports(self, kind: str) -> dict[str, tuple[Any, ...]]:
        """Map each connection to the settings of its reports; `{}` stands for a report without settings. Raise Wrong if
        a connection accepts no reports."""
        found: dict[str, tuple[Any, ...]] = {}
        for connection, driver, value, line in self._sections(kind, self._tenant.allowed_reporters):
            if driver.reporter is None:
                raise Wrong(f"the connection {connection!r} accepts no reports", line)
            one = [(Table(line), line)] if value is None else entries(value, line)
            for how, at in one:
                self._report(kind, connection, driver, how, at)
            found[connection] = tuple(deep_plain(how) for how, _ in one)
            images = next((k for how, _ in one for k in ("image-built", "image-validated") if k in how), "")
            if driver is DRIVERS["zuul"] and images and not self._body.get("post-review"):
                why = "the pipeline needs `post-review: true`; otherwise, proposers could choose the image of machines"
                self._warnings.append(idle(images, why, line))
        return found

    def _report(self, kind: str, connection: str, driver: Driver, how: Any, line: int) -> None:
        if not isinstance(how, Table):
            raise Wrong(f"{kind} of {connection} must be a mapping such as {{}}, not {show(how)}", line)
        keys = driver.reporter or {}
        if driver.free:
            # Declared keys come last, so that their own checks apply.
            keys = {**{key: StanzaKey(anything) for key in how}, **keys}
        table(how, keys, f"{kind} reporter of {connection}", self._warnings, line)

    def posts(self, connection: str) -> bool:
        driver = driver_named(self._tenant.driver(connection))
        return driver is not None and driver.posts

    def lands(self, connection: str, found: tuple[Any, ...]) -> bool:
        driver = driver_named(self._tenant.driver(connection))
        # Values are not checked if the driver of the connection is unknown.
        return driver is not None and any(how.get(key) is True for how in found for key in driver.lands)


def never(trigger: Table) -> str:
    """Return a message for the user: why a trigger of plain git can never match. Empty if it can match."""
    patterns = deep_plain(as_list(trigger.get("ref")))
    events = as_list(trigger.get("event"))
    if not patterns or any(_may(p, event, "branch" in trigger) for p in patterns for event in events):
        return ""
    reason = "refs of changes begin with refs/for/" if "ref-updated" not in events else "write the full name"
    example = "" if "ref-updated" not in events else ", such as refs/heads/master or refs/tags/v1"
    if "branch" in trigger and "ref-updated" in events:
        reason, example = "with `branch`, only branches match", ", whose refs begin with refs/heads/"
    elif "ref-updated" in events and any(begin.startswith(OURS) for begin in map(beginning, patterns)):
        reason, example = "pushes to these refs are changes, approvals and notes", ", not updates of a ref"
    return f"ref {', '.join(map(str, patterns))} can never match: {reason}{example}"


def nobody_did(trigger: Table, nobody: frozenset[str]) -> str:
    """Return a message for the user: why a trigger with `permission` can never match. Empty if it can match. `nobody`
    holds the events and actions for which the forge does not report an author."""
    actions = [*map(str, as_list(trigger.get("action")) or as_list(trigger.get("event")))]
    if "permission" not in trigger or not actions or not nobody.issuperset(actions):
        return ""
    what = ", ".join(actions)
    return f"permission can never be met: the forge reports no author for {what}; require a review or a comment"


def _may(pattern: Any, event: str, of_branches: bool) -> bool:
    begin = beginning(pattern)
    if event != "ref-updated":
        return _meets(begin, _FOR)
    return _meets(begin, _HEADS if of_branches else "refs/") and not begin.startswith(OURS)


def _meets(begin: str, names: str) -> bool:
    """Return whether some name can begin with both."""
    return begin.startswith(names) or names.startswith(begin)


def beginning(pattern: Any) -> str:
    """Return the literal text with which every match of the pattern begins, as far as it is evident."""
    # A negated pattern excludes only some beginnings, and each alternative may have its own.
    if not isinstance(pattern, str) or "|" in pattern:
        return ""
    found, rest = "", pattern.removeprefix("^")
    while rest and rest[0] not in _SPECIAL:
        char, rest = rest[0], rest[1:]
        if char == "\\":
            # `\d` and similar classes stand for no single character.
            if not rest or rest[0].isalnum():
                break
            char, rest = rest[0], rest[1:]
        # An optional character does not belong to every match.
        if rest.startswith(_REPEATS):
            break
        found += char
    return found


def started_once(body: Table, triggers: Sequence[TriggerFilter]) -> None:
    """Raise Wrong if two triggers name the same queue or the same type of objects, because a pipeline has only one
    position in each."""
    seen = set[tuple[str, str]]()
    for trigger in triggers:
        if "project" not in trigger.more:
            continue
        queue = trigger.more.get("queue")
        what = f"the queue {queue}" if queue is not None else f"the type {trigger.more.get('type', 'runm.machine')}"
        if (trigger.connection, what) in seen:
            text = f"two triggers name {what} of {trigger.connection}; use a separate pipeline for each"
            raise Wrong(text, body.at("trigger"))
        seen.add((trigger.connection, what))


def not_by_itself(
    body: Table, triggers: Sequence[TriggerFilter], reports: Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]]
) -> None:
    """Raise Wrong for a pipeline whose reports go to a queue that starts it."""
    started = {(trigger.connection, trigger.more.get("queue")) for trigger in triggers}
    for kind, by_connection in reports.items():
        for connection, hows in by_connection.items():
            for how in hows:
                if (queue := how.get("queue")) is not None and (connection, queue) in started:
                    text = f"{kind} is reported to the queue {queue} of {connection}, which starts this pipeline again"
                    raise Wrong(text, body.at(kind))
