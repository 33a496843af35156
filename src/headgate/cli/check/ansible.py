"""Report which versions of Ansible a configuration requests, and whether this machine has them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from headgate.base.texts import listed
from headgate.cli.ansible import row
from headgate.cli.jobs import environments
from headgate.cli.offline.reader import LoadedTenant
from headgate.cli.settings import FLAGS, Settings
from headgate.config.keys.job import ANSIBLE_VERSIONS

NAMED_MAX = 3


def requested_versions(tenants: Iterable[LoadedTenant]) -> dict[str, list[str]]:
    """Map each requested version to the places that request it."""
    found: dict[str, dict[str, None]] = {}
    for loaded in tenants:
        layout = loaded.layout
        requests = [(loaded.tenant.default_ansible_version, f"tenant {loaded.tenant.name}")]
        requests += [(version, f"job {name}") for name in layout.jobs for version in _versions(layout.jobs[name])]
        stanzas = (*layout.projects.items(), *layout.templates.items())
        requests += [(version, f"a variant in {name}") for name, those in stanzas for version in _versions(those)]
        for version, who in requests:
            found.setdefault(version, {})[who] = None
    return {version: list(found[version]) for version in ANSIBLE_VERSIONS if version in found}


def _versions(stanzas: Iterable[Any]) -> Iterator[str]:
    for stanza in stanzas:
        yield from _within(stanza.body)


def _within(value: Any) -> Iterator[str]:
    """Yield each `ansible-version` of a stanza, and of the variants in it."""
    if isinstance(value, dict):
        if "ansible-version" in value:
            yield str(value["ansible-version"])
        for key, inner in value.items():
            if "vars" not in key:
                yield from _within(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _within(inner)


def lines(tenants: Iterable[LoadedTenant], settings: Settings) -> Iterator[str]:
    """Yield a line for each requested version."""
    installed = environments(settings)
    managed = FLAGS[settings.get("executor", "manage_ansible").lower()]
    for version, who in requested_versions(tenants).items():
        found = row(installed, version)
        if found.state != "missing":
            has = f"installed here (ansible-core {found.core})"
        elif managed:
            has = "not installed here; an executor installs it with the first build that needs it"
        else:
            has = f"not installed here; on every executor run: headgate ansible install {version}"
        yield f"Ansible {version}, for {listed(who, NAMED_MAX)}: {has}"
