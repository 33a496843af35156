"""Connections of which only the name, or only a section of an INI file, is known: enough to check a configuration."""

from __future__ import annotations

import configparser
from collections.abc import Mapping
from pathlib import Path

from headgate.adapters.git.connection import GitConnection
from headgate.base.errors import UserError
from headgate.config.drivers import ANY, DRIVERS
from headgate.config.files.document import Table, load
from headgate.config.files.source import Wrong
from headgate.config.tenants import Connection


def described(path: Path) -> dict[str, Connection]:
    """Read the `[connection NAME]` sections of any INI file and ignore its other sections.

    Raises UserError.
    """
    # Any INI file must be readable, whoever wrote it for what: sections may repeat, and `%` means nothing.
    parser = configparser.ConfigParser(interpolation=None, strict=False, allow_no_value=True)
    try:
        parser.read_string(path.read_text(), str(path))
    except (OSError, UnicodeDecodeError, configparser.Error) as error:
        raise UserError(f"{path}: cannot be read as a settings file: {' '.join(str(error).split())}") from error
    found: dict[str, Connection] = {}
    for section in parser.sections():
        kind, _, quoted = section.partition(" ")
        name = quoted.strip("\"' ")
        if kind == "connection" and name:
            found[name] = Connection(name, _host(name, parser[section]), parser[section].get("driver") or "git")
    return found


def _host(name: str, options: Mapping[str, str]) -> str:
    """Return the host part of canonical project names."""
    given, server = options.get("canonical_hostname") or "", options.get("server") or ""
    if options.get("driver") == "github" and not given:
        return server or "github.com"
    return given or server or GitConnection(name, options.get("baseurl") or "", "").canonical_hostname


def assumed(tenant_file: str, known: Mapping[str, Connection], *, given: bool) -> dict[str, Connection]:
    """Return the known connections, and one for every name in the tenant file.

    The driver of such an assumed connection is the one of that name, if there is one, and otherwise any. When no
    connections were `given`, pipelines may also report to names of drivers (`smtp`).
    """
    sources = _named(tenant_file)
    named = {*sources, *(() if given else DRIVERS)} - {ANY}
    return {**{name: Connection(name, name, _driver(name, name in sources)) for name in sorted(named)}, **known}


def _driver(name: str, source: bool) -> str:
    driver = DRIVERS.get(name)
    return ANY if driver is None or (source and driver.posts) else name


def _named(text: str) -> set[str]:
    """Return the connections that the tenant file uses; its parser reports errors in it."""
    try:
        document = load(text)
    except Wrong:
        return set()
    items = document if isinstance(document, list) else []
    stanzas = [body for item in items if isinstance(item, Table) for body in item.values()]
    sources = [body.get("source") for body in stanzas if isinstance(body, Table)]
    return {name for source in sources if isinstance(source, Table) for name in source if isinstance(name, str)}
