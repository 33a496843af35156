"""Pipeline stanzas as the records the gate reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headgate.config import keys
from headgate.config.check import as_list, table
from headgate.config.marked import Table, Wrong, nearest
from headgate.config.model import Pipeline, TriggerFilter, Window
from headgate.config.parse import Stanza
from headgate.config.tenants import Tenant

_REPORTERS = (
    "success",
    "failure",
    "merge-conflict",
    "config-error",
    "start",
    "enqueue",
    "no-jobs",
    "disabled",
    "dequeue",
)
_MESSAGES = tuple(key for key in keys.PIPELINE if key.endswith("-message"))
_PRECEDENCE = {"high": 100, "normal": 200, "low": 300}


def pipeline(stanza: Stanza, tenant: Tenant) -> Pipeline:
    """Raises Wrong where a connection, event or reporter is not known."""
    body = stanza.body
    reporters = {kind: tuple(found) for kind in _REPORTERS if (found := _reporter(body, kind, tenant))}
    window = _window(body)
    return Pipeline(
        name=body["name"],
        manager=body["manager"],
        description=body.get("description", ""),
        triggers=tuple(_triggers(body, tenant)),
        require_approved=tuple(_approved(body, tenant)),
        reporters=reporters,
        lands=tuple(c for c, how in (body.get("success") or {}).items() if isinstance(how, dict) and how.get("land")),
        precedence=_PRECEDENCE[body.get("precedence", "normal")],
        post_review=body.get("post-review", False),
        dequeue_on_new_patchset=body.get("dequeue-on-new-patchset", True),
        ignore_dependencies=body.get("ignore-dependencies", False),
        disable_after=body.get("disable-after-consecutive-failures"),
        supercedes=tuple(as_list(body.get("supercedes"))),
        window=window,
        **{key.replace("-", "_"): body[key] for key in _MESSAGES if key in body},
    )


def _window(body: Table) -> Window:
    window = Window(
        size=body.get("window", 20),
        floor=body.get("window-floor", 3),
        ceiling=body.get("window-ceiling"),
        increase_type=body.get("window-increase-type", "linear"),
        increase_factor=body.get("window-increase-factor", 1),
        decrease_type=body.get("window-decrease-type", "exponential"),
        decrease_factor=body.get("window-decrease-factor", 2),
    )
    if window.ceiling is not None and window.ceiling < window.floor:
        raise Wrong("window-ceiling is below window-floor", body.at("window-ceiling"))
    return window


def _connections(body: Table, key: str, tenant: Tenant) -> Iterator[tuple[str, Any]]:
    section = body.get(key)
    for name, value in (section or {}).items():
        if name not in tenant.connections:
            line = section.at(name) if isinstance(section, Table) else body.at(key)
            known = nearest(name, list(tenant.connections))
            raise Wrong(f"the connection {name!r} is not configured{known}", line, "Unknown Connection")
        yield name, value


def _triggers(body: Table, tenant: Tenant) -> Iterator[TriggerFilter]:
    for connection, entries in _connections(body, "trigger", tenant):
        for entry in as_list(entries):
            table(entry, keys.TRIGGER, "trigger", ("event",))
            yield TriggerFilter(
                connection=connection,
                events=tuple(as_list(entry["event"])),
                branches=tuple(as_list(entry.get("branch"))),
                refs=tuple(as_list(entry.get("ref"))),
                ignore_deletes=entry.get("ignore-deletes", True),
            )


def _approved(body: Table, tenant: Tenant) -> Iterator[str]:
    for connection, wanted in _connections(body, "require", tenant):
        table(wanted, keys.REQUIRE, "requirement", ())
        if wanted.get("approved"):
            yield connection


def _reporter(body: Table, kind: str, tenant: Tenant) -> Iterator[str]:
    for connection, how in _connections(body, kind, tenant):
        if isinstance(how, Table):
            table(how, keys.REPORTER, "reporter", ())
        elif how is not None and how is not True:
            raise Wrong(f"{kind} of {connection} must be a mapping such as {{}} or {{land: true}}", body.at(kind))
        if not isinstance(how, Table) or how.get("note", True):
            yield connection
