"""Generate the reference page of the language from the declarations that the parser uses."""

from __future__ import annotations

from collections.abc import Iterator

from headgate.config.drivers import DRIVERS
from headgate.config.explain.words import (
    ASSEMBLY,
    BRANCHES,
    CONTROL,
    DECISIONS,
    DRIVER_WORDS,
    ERROR_WORDS,
    FILES,
    FREEZING,
    HEAD,
    JOB_WORDS,
    NODE_WORDS,
    PROPOSALS,
    TENANT_WORDS,
)
from headgate.config.files.check import Keys, StanzaKey
from headgate.config.keys import objects, tenant
from headgate.config.keys.errors import CHECKED, ERRORS
from headgate.config.keys.job import JOB
from headgate.config.keys.nodes import ANY_NODES, NODE_DRIVERS
from headgate.config.keys.pipeline import PIPELINE

_OBJECTS: tuple[tuple[str, Keys], ...] = (
    ("project", objects.PROJECT),
    ("project, for each pipeline", objects.PROJECT_PIPELINE),
    ("project, a parameter", objects.PARAMETER),
    ("project-template", objects.TEMPLATE),
    ("queue", objects.QUEUE),
    ("semaphore", objects.SEMAPHORE),
    ("nodeset", objects.NODESET),
    ("nodeset, a node", objects.NODE),
    ("nodeset, a group", objects.GROUP),
    ("secret", objects.SECRET),
    ("secret, oidc", objects.OIDC),
    ("pragma", objects.PRAGMA),
    ("image", objects.IMAGE),
    ("flavor", objects.FLAVOR),
    ("label", objects.LABEL),
    ("section", objects.SECTION),
    ("provider", objects.PROVIDER),
)
_TENANT_FILE: tuple[tuple[str, Keys], ...] = (
    ("tenant", tenant.TENANT),
    ("a project of a tenant", tenant.PROJECT),
    ("global-semaphore", tenant.SEMAPHORE),
    ("authorization-rule (of old: admin-rule)", tenant.RULE),
    ("role", tenant.ROLE),
    ("role, permissions", tenant.PERMISSIONS),
    ("api-root", tenant.API_ROOT),
)


def page() -> str:
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    yield from (HEAD, FILES, "## Jobs\n", JOB_WORDS)
    yield from _jobs()
    yield from (CONTROL, BRANCHES, ASSEMBLY, FREEZING, "## Pipelines\n")
    yield from _table(PIPELINE)
    yield DRIVER_WORDS
    for name, driver in DRIVERS.items():
        yield f"\n### {name}\n"
        for part, keys in (("trigger", driver.trigger), ("require, reject", driver.require)):
            if keys:
                yield from _table(keys, part)
        if driver.reporter or driver.free:
            yield from _table(driver.reporter or {}, "reporter", "any other key" if driver.free else "")
    yield "\n## Everything else\n"
    for name, keys in _OBJECTS:
        yield f"\n### {name}\n"
        yield from _table(keys)
    yield NODE_WORDS
    for name, made in {**NODE_DRIVERS, "any other driver": ANY_NODES}.items():
        yield f"\n### {name}, of machines\n"
        for part, keys in (("section, provider", made.own), *made.attached):
            yield from _table(keys, part)
    yield "\n## The tenant file\n"
    yield TENANT_WORDS
    for name, keys in _TENANT_FILE:
        yield f"\n### {name}\n"
        yield from _table(keys)
    yield from ("\n## Errors\n", ERROR_WORDS, "| name | when | what it costs |", "|---|---|---|")
    for name, one in (*ERRORS.items(), *CHECKED.items()):
        yield f"| {name}{' (warning)' if one.severity == 'warning' else ''} | {one.when} | {one.costs} |"
    yield PROPOSALS
    yield "\n## Decisions\n"
    yield from (f"- {decision}" for decision in DECISIONS)


def _remarks(key: StanzaKey) -> str:
    """Return the remarks about a key: its note, and why it has no effect here."""
    return "; ".join(word for word in (key.note, f"**no effect here**: {key.idle}" if key.idle else "") if word)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _table(keys: Keys, what: str = "key", more: str = "") -> Iterator[str]:
    yield f"| {what} | value | default | |"
    yield "|---|---|---|---|"
    for name, key in keys.items():
        default = "*required*" if key.required else _cell(key.default)
        yield f"| `{name}` | {_cell(key.check.says)} | {default} | {_cell(_remarks(key))} |"
    if more:
        yield f"| {more} | anything | | |"
    yield ""


def _jobs() -> Iterator[str]:
    yield "| attribute | value | default | variants | on a final job | control | |"
    yield "|---|---|---|---|---|---|---|"
    for name, key in JOB.items():
        final, control = "may be set" if key.context else "", "yes" if key.control else ""
        cells = (key.check.says, key.default, key.merge, final, control, _remarks(key))
        yield f"| `{name}` | {' | '.join(_cell(cell) for cell in cells)} |"
    yield ""
