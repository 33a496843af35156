"""Test that every configuration key has an effect, or is declared to have none."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

from headgate.config.drivers import DIALECTS, DRIVERS
from headgate.config.files.checks import Keys
from headgate.config.keys import job, objects, tenantfile
from headgate.config.keys.job import JOB
from headgate.config.keys.objects import PIPELINE
from tests.house.consumers import CONSUMERS
from tests.house.sources import SOURCE, facts

DECLARED: dict[str, Keys] = {
    "job": JOB,
    "job, a playbook": job.PLAYBOOK,
    "job, a semaphore": job.SEMAPHORE,
    "job, an image": job.IMAGE,
    "job, a filter of projects": job.FILTER,
    "job, a role of galaxy": job.GALAXY,
    "job, a role": job.ROLE,
    "job, a required project": job.REQUIRED,
    "job, a file of variables": job.VARIABLES_FILE,
    "job, a secret": job.SECRET,
    "job, a dependency": job.DEPENDENCY,
    "pipeline": PIPELINE,
    "project": objects.PROJECT,
    "project-template": objects.TEMPLATE,
    "project, for each pipeline": objects.PROJECT_PIPELINE,
    "project, a parameter": objects.PARAMETER,
    "queue": objects.QUEUE,
    "semaphore": objects.SEMAPHORE,
    "nodeset": objects.NODESET,
    "nodeset, a node": objects.NODE,
    "nodeset, a group": objects.GROUP,
    "secret": objects.SECRET,
    "secret, oidc": objects.OIDC,
    "pragma": objects.PRAGMA,
    "tenant": tenantfile.TENANT,
    "a label of a tenant": tenantfile.LABEL,
    "a project of a tenant": tenantfile.PROJECT,
    "global-semaphore": tenantfile.SEMAPHORE,
    "authorization-rule": tenantfile.RULE,
    "role": tenantfile.ROLE,
    "role, permissions": tenantfile.PERMISSIONS,
    "api-root": tenantfile.API_ROOT,
    **{
        f"{name} {part}": keys
        for name, driver in DRIVERS.items()
        if not driver.idle
        for part, keys in (("trigger", driver.trigger), ("require", driver.require), ("reporter", driver.reporter))
        if keys and (name not in DIALECTS or part == "reporter")
    },
}
"""Keys of kinds that describe where nodes come from have no effect."""
ONLY_READ = ("config/keys", "config/model.py", "config/operator/model.py", "config/explain", "config/check")
"""Parts of `config` that declare, copy or show."""


@cache
def _words(path: Path) -> frozenset[str]:
    """Attributes that a module reads, its strings, and functions it calls."""
    return frozenset(facts(path).reads).union(text for _, text in facts(path).strings)


@cache
def _read(part: str) -> frozenset[str]:
    modules = (path for path in (SOURCE / part).rglob("*.py"))
    acting = (p for p in modules if not str(p.relative_to(SOURCE)).startswith(ONLY_READ))
    return frozenset[str]().union(*(_words(path) for path in acting))


def _consumed(stanza: str) -> Iterator[tuple[str, str, str]]:
    """(key, part of the program, the key's name there)"""
    for part, names in CONSUMERS[stanza].items():
        for word in names.split():
            key, _, name = word.partition("=")
            yield key, part, name


def test_every_key_names_its_consumer_or_says_that_it_has_no_effect() -> None:
    assert set(DECLARED) == set(CONSUMERS)
    wrong = []
    for stanza, keys in DECLARED.items():
        consumed = {key for key, _, _ in _consumed(stanza)}
        idle = {name for name, key in keys.items() if key.idle}
        wrong += [
            f"{stanza}: {key}: nobody acts on it (tests/house/consumers.py, or `idle`)"
            for key in keys.keys() - consumed - idle
        ]
        wrong += [f"{stanza}: {key}: it has a consumer and is marked as idle" for key in consumed & idle]
        wrong += [f"{stanza}: {key}: it is not declared" for key in consumed - keys.keys()]
    assert not wrong, "\n".join(sorted(wrong))


def test_every_question_to_a_forge_has_a_predicate() -> None:
    for name, dialect in DIALECTS.items():
        driver = DRIVERS[name]
        assert driver.trigger is not None and driver.require is not None
        assert driver.trigger.keys() == dialect.trigger.keys() and driver.require.keys() == dialect.require.keys()
        assert dialect.instead.keys() <= dialect.trigger.keys()
        assert dialect.trigger_defaults.keys() <= dialect.trigger.keys()


def test_consumers_read_the_declared_fields() -> None:
    unread = [
        f"{stanza}: {key}: nothing in {part} reads it"
        for stanza in CONSUMERS
        for key, part, name in _consumed(stanza)
        if not {name} - {""} <= _read(part) or (not name and not {key, key.replace("-", "_")} & _read(part))
    ]
    assert not unread, "\n".join(unread)


def test_no_code_reads_attributes_that_are_marked_as_idle() -> None:
    parts = ("gate", "adapters/process", "services")
    acting = {
        attribute for part in parts for path in (SOURCE / part).rglob("*.py") for attribute in facts(path).attributes
    }
    jobs = {key.replace("-", "_") for key, one in JOB.items() if one.idle}
    assert not jobs & acting
    permissions = {key for key, one in tenantfile.PERMISSIONS.items() if one.idle}
    assert not permissions & _read("web")
