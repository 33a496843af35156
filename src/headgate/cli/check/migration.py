"""Show on one page the effect of a `zuul.conf`: what works unchanged, what differs, what must be done."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from importlib.util import find_spec

from headgate.adapters.forges.registry import FORGES
from headgate.cli.reference import INSTEAD, MISSING, NEEDLESS, OptionNote
from headgate.cli.settings import OWN_NODE, Idle, Settings

WIDTH = 120
NAME = "zuul.conf"
HEADINGS = {
    MISSING: "Missing here",
    INSTEAD: "Said otherwise",
    NEEDLESS: "Not needed, and passed over",
}
_OLD_DATABASES = ("mysql", "mariadb")


def is_of_the_reference(settings: Settings) -> bool:
    """Return whether the file was written for the reference, wholly or in part."""
    return bool(settings.idle) or settings.path.name == NAME or "zookeeper" in settings.values


def page(settings: Settings) -> str:
    """Return the page, without colours."""
    taken = _taken(settings)
    lines = [f"{settings.path}: {_counts(settings, sum(map(len, taken.values())))}", ""]
    lines += _block("Works as it is", [f"[{section}] {', '.join(names)}" for section, names in taken.items()])
    lines += _block("Differs", list(_differences(settings)))
    for kind in (MISSING, INSTEAD, NEEDLESS):
        lines += _block(HEADINGS[kind], _idle_lines([one for one in settings.idle if one.note.kind == kind]))
    return "\n".join(lines).rstrip()


def _counts(settings: Settings, taken: int) -> str:
    of = {kind: sum(one.note.kind == kind for one in settings.idle) for kind in (MISSING, INSTEAD, NEEDLESS)}
    return (
        f"{taken} options work as they are, {of[MISSING]} are missing here, {of[INSTEAD]} are said otherwise, "
        f"{of[NEEDLESS]} are not needed"
    )


def _block(heading: str, lines: Sequence[str]) -> list[str]:
    if not lines:
        return []
    folded = [textwrap.fill(line, WIDTH, initial_indent="  ", subsequent_indent="      ") for line in lines]
    return [heading, *folded, ""]


def _taken(settings: Settings) -> dict[str, list[str]]:
    """Map each section to its options that take effect; their values may be secret and stay off this page."""
    found = {section: list(options) for section, options in settings.values.items() if options}
    found |= {f"connection {name}": list(options) for name, options in settings.connections.items() if len(options) > 1}
    found |= {f"auth {name}": list(options) for name, options in settings.authenticators.items() if options}
    # Sections may be quoted in zuul.conf; the settings have them without quotes.
    idle = {(re.sub("[\"']", "", one.section), one.option) for one in settings.idle}
    return {section: [name for name in names if (section, name) not in idle] for section, names in found.items()}


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
    """Yield the settings whose effect or default differs from the reference."""
    values = settings.values
    if not values.get("scheduler", {}).get("state_dir"):
        yield f"[scheduler] state_dir is not set: what is kept in files is in {settings.state_dir}"
    if "zookeeper" in values and not values.get("store", {}).get("url"):
        yield f"[zookeeper]: state is kept below {OWN_NODE}; what the reference has there is neither read nor changed"
    if not values.get("web", {}).get("listen_address"):
        yield "[web] listen_address is not set: pages are served at 127.0.0.1 alone, not at every address"
    yield from _keys_and_history(settings)
    for name, section in settings.connections.items():
        driver = section.get("driver") or "git"
        if driver == "git" and not section.get("poll_delay"):
            yield f"[connection {name}] poll_delay is not set: repositories are looked at every 30 s, not every 2 hours"
        # Only whether it is there, without importing it: this page must not need the library.
        if driver == "mqtt" and find_spec("aiomqtt") is None:
            yield f"[connection {name}]: it needs a library: pip install 'headgate[mqtt]'"
        if driver == "elasticsearch":
            yield f"[connection {name}]: fields of documents: docs/how-to/send-reports.md, no job variables"
        if driver in FORGES and section.get("webhook_token"):
            yield f"[connection {name}]: deliveries go to /api/connection/{name}/payload, as before, and must be signed"


def _keys_and_history(settings: Settings) -> Iterator[str]:
    """Yield what becomes of the reference's keys and history."""
    if settings.get("keystore", "password"):
        yield "[keystore]: keys are taken from an export: `headgate keys import FILE`; until then no secret opens"
    dburi = settings.get("database", "dburi")
    if dburi.startswith(_OLD_DATABASES):
        yield "[database] dburi: the history is in PostgreSQL or SQLite; leave it out, or name one of these"
    elif dburi:
        yield "[database]: the history begins anew, in tables of its own beside those of the reference"
