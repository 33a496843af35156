"""Summarise the effect of a `zuul.conf`: what works unchanged, what differs, and what must be changed."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from importlib.util import find_spec

from headgate.adapters.forges.registry import FORGES
from headgate.adapters.nodes.clouds.registry import CLOUDS
from headgate.cli.reference import INSTEAD, MISSING, NEEDLESS, OptionNote
from headgate.cli.settings import FLAGS, OWN_NODE, Idle, Settings

WIDTH = 120
NAME = "zuul.conf"
PACKAGES = {"inventory": "grpc", "mqtt": "aiomqtt", "postgresql": "psycopg", "tracing": "opentelemetry"}
"""Extra -> a package that it installs."""
HEADINGS = {
    MISSING: "Not supported",
    INSTEAD: "Replaced by something else",
    NEEDLESS: "Not needed, and ignored",
}
_OLD_DATABASES = ("mysql", "mariadb")
OLD_DATABASE = "[database] dburi: Headgate supports PostgreSQL and SQLite only; name one of these, or remove the option"


def is_of_the_reference(settings: Settings) -> bool:
    """Return whether the file was written, at least in part, for Zuul."""
    return bool(settings.idle) or settings.path.name == NAME or "zookeeper" in settings.values


def page(settings: Settings) -> str:
    """Return the page, without colours."""
    taken = _taken(settings)
    lines = [f"{settings.path}: {_counts(settings, sum(map(len, taken.values())))}", ""]
    lines += _block("Works unchanged", [f"[{section}] {', '.join(names)}" for section, names in taken.items()])
    lines += _block("Differs", list(_differences(settings)))
    for kind in (MISSING, INSTEAD, NEEDLESS):
        idle = _idle_lines([one for one in settings.idle if one.note.kind == kind])
        old = [OLD_DATABASE] if kind == MISSING and _has_old_database(settings) else []
        lines += _block(HEADINGS[kind], [*old, *idle])
    return "\n".join(lines).rstrip()


def _counts(settings: Settings, taken: int) -> str:
    of = {kind: sum(one.note.kind == kind for one in settings.idle) for kind in (MISSING, INSTEAD, NEEDLESS)}
    of[MISSING] += _has_old_database(settings)
    return (
        f"{taken} options work unchanged; not supported: {of[MISSING]}, replaced by something else: {of[INSTEAD]}, "
        f"not needed: {of[NEEDLESS]}"
    )


def _block(heading: str, lines: Sequence[str]) -> list[str]:
    if not lines:
        return []
    folded = [textwrap.fill(line, WIDTH, initial_indent="  ", subsequent_indent="      ") for line in lines]
    return [heading, *folded, ""]


def _taken(settings: Settings) -> dict[str, list[str]]:
    """Return the effective options of each section, without their values, which may be secret."""
    found = {section: list(options) for section, options in settings.values.items() if options}
    found |= {f"connection {name}": list(options) for name, options in settings.connections.items() if len(options) > 1}
    found |= {f"auth {name}": list(options) for name, options in settings.authenticators.items() if options}
    # A zuul.conf may quote names of sections; the settings have them without quotes.
    idle = {(re.sub("[\"']", "", one.section), one.option) for one in settings.idle}
    if _has_old_database(settings):
        idle.add(("database", "dburi"))
    taken = {section: [name for name in names if (section, name) not in idle] for section, names in found.items()}
    return {section: names for section, names in taken.items() if names}


def _has_old_database(settings: Settings) -> bool:
    return settings.get("database", "dburi").startswith(_OLD_DATABASES)


def _idle_lines(idle: Sequence[Idle]) -> list[str]:
    """Return a line for each section and note, with its options."""
    of: dict[tuple[str, OptionNote], list[Idle]] = {}
    for one in idle:
        of.setdefault((one.section, one.note), []).append(one)
    lines = []
    for (section, note), several in of.items():
        names = ", ".join(one.option for one in several)
        line = several[0].where.rpartition(":")[2]
        lines.append(f"line {line}: [{section}]{f' {names}' if names else ''}: {note.text}")
    return lines


def _differences(settings: Settings) -> Iterator[str]:
    """Yield the settings whose effect or default differs from Zuul's."""
    values = settings.values
    if not values.get("scheduler", {}).get("state_dir"):
        yield f"[scheduler] state_dir is not set: Headgate stores its files in {settings.state_dir}"
    if "zookeeper" in values and not values.get("store", {}).get("url"):
        yield f"[zookeeper]: Headgate stores its state below {OWN_NODE}; it neither reads nor changes the state of Zuul"
    if not values.get("web", {}).get("listen_address"):
        yield "[web] listen_address is not set: the pages listen on 127.0.0.1 only, not on every address"
    yield from _keys_and_history(settings)
    for where, extra in _extras(settings):
        # Look for the package without importing it: this page must not need it.
        if find_spec(PACKAGES[extra]) is None:
            yield f"[{where}]: this needs a library: pip install 'headgate[{extra}]'"
    for name, section in settings.connections.items():
        driver = section.get("driver") or "git"
        if driver == "git" and not section.get("poll_delay"):
            yield f"[connection {name}] poll_delay is not set: repositories are polled every 30 s, not every 2 hours"
        if driver == "elasticsearch":
            yield f"[connection {name}]: documents have the fields of docs/how-to/send-reports.md, no job variables"
        if driver in FORGES and section.get("webhook_token"):
            yield f"[connection {name}]: webhooks go to /api/connection/{name}/payload, as before, and must be signed"


def _extras(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield the sections that need an extra, and its name."""
    if FLAGS.get(settings.get("tracing", "enabled").lower()):
        yield "tracing", "tracing"
    if settings.get("database", "dburi").startswith("postgres"):
        yield "database", "postgresql"
    for name, section in settings.connections.items():
        if section.get("driver") == "mqtt":
            yield f"connection {name}", "mqtt"
        if section.get("driver") in CLOUDS:
            yield f"connection {name}", "inventory"


def _keys_and_history(settings: Settings) -> Iterator[str]:
    """Yield how to migrate Zuul's keys and history."""
    if settings.get("keystore", "password"):
        yield "[keystore]: export the keys from Zuul, and run `headgate keys import FILE` to be able to decrypt secrets"
    if settings.get("database", "dburi") and not _has_old_database(settings):
        yield "[database]: the history starts empty, in Headgate's own tables next to those of Zuul"
