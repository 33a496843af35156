"""What the settings name: connections, tenants, the store."""

from __future__ import annotations

import os
import re

import click

from headgate.adapters.git.connection import GitConnection
from headgate.base.errors import UserError
from headgate.cli.settings import Settings
from headgate.cli.store.opening import open_url
from headgate.config.operator.model import TenantFile
from headgate.config.tenants import ConfigErrors, Connection, parse_tenant_file
from headgate.store.types import Backend
from headgate.web.shapes import ConnectionShape


def connections(settings: Settings) -> dict[str, GitConnection]:
    return {
        name: GitConnection(
            name,
            _baseurl(settings, found["baseurl"]),
            found.get("canonical_hostname", ""),
            poll_interval_s=float(found.get("poll_delay", 30)),
        )
        for name, found in settings.connections.items()
    }


def connection_shapes(settings: Settings) -> tuple[ConnectionShape, ...]:
    """As the API tells of them; passwords in URLs are for nobody else."""
    return tuple(
        ConnectionShape(
            name=name,
            driver=found.get("driver", "git"),
            baseurl=re.sub(r"(://)[^/@]*@", r"\1", found["baseurl"]),
            canonical_hostname=connection.canonical_hostname,
        )
        for name, connection in connections(settings).items()
        if (found := settings.connections[name])
    )


def _baseurl(settings: Settings, url: str) -> str:
    """A relative directory is relative to the settings file."""
    if "://" in url or url.startswith(("/", "~")) or ":" in url.split("/")[0]:
        return os.path.expanduser(url)
    return str((settings.path.parent / url).absolute())


def tenants(settings: Settings, at: dict[str, GitConnection]) -> tuple[str, TenantFile]:
    """The text of the tenant file, and what it says.  Raises UserError."""
    path = settings.tenant_config
    try:
        text = path.read_text()
    except OSError as error:
        raise UserError(f"{path}: the tenant file cannot be read: {error.strerror}") from error
    try:
        found = parse_tenant_file(text, str(path), known_connections(settings, at))
    except ConfigErrors as errors:
        raise UserError(str(errors)) from errors
    for problem in (*found.warnings, *(problem for told in found.refused.values() for problem in told)):
        click.echo(problem.render(), err=True)
    if found.refused and not found.tenants:
        raise UserError(f"{path}: no tenant can be loaded")
    return text, found


def known_connections(settings: Settings, at: dict[str, GitConnection]) -> dict[str, Connection]:
    """As a tenant file names them."""
    return {
        name: Connection(name, c.canonical_hostname, settings.connections[name].get("driver", "git"))
        for name, c in at.items()
    }


async def open_store(settings: Settings) -> Backend:
    """Raises UserError."""
    return await open_url(settings.store_url)
