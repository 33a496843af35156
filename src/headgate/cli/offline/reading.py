"""Tenants and their configuration, read without a server: from directories, or through configured connections."""

from __future__ import annotations

import asyncio
import configparser
import gc
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import click

from headgate.adapters.git.engine import GitConnection, GitEngine
from headgate.base.errors import UserError
from headgate.cli.offline.parallel import spread
from headgate.cli.offline.repositories import Files, Unreadable, place_of, read
from headgate.cli.process import connections
from headgate.cli.settings import find
from headgate.cli.settings import read as read_settings
from headgate.config.branches import included
from headgate.config.layout import Branches, Layout, build_layout
from headgate.config.model import ConfigError
from headgate.config.parse import ParsedBranch, parse_branch
from headgate.config.reading.document import Table, load
from headgate.config.reading.source import Wrong
from headgate.config.tenants import Connection, Tenant, TenantProject, parse_tenants
from headgate.gate.work import CatAnswer, CatRequest

FETCHES_MAX = 8
"""Repositories fetched at a time, when they are fetched."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """One tenant as its repositories say now."""

    tenant: Tenant
    files: Mapping[str, Files]
    """project -> branch -> path -> text"""
    branches: Branches
    layout: Layout
    unread: tuple[ConfigError, ...] = ()
    """Projects of which nothing could be read."""

    @property
    def errors(self) -> tuple[ConfigError, ...]:
        return (*self.unread, *self.layout.errors)

    def with_files(self, proposed: Mapping[str, Files]) -> Loaded:
        """The same tenant with other files on the branches named."""
        files = {**self.files, **{name: {**self.files.get(name, {}), **found} for name, found in proposed.items()}}
        parsed = dict(self.branches)
        for name, found in proposed.items():
            source = next(p for p in self.tenant.projects if p.project == name)
            again = {branch: parse_branch(source, branch, texts) for branch, texts in found.items()}
            parsed[name] = {**parsed.get(name, {}), **again}
        return Loaded(self.tenant, files, parsed, build_layout(self.tenant, parsed), self.unread)


@dataclass(frozen=True, slots=True)
class Given:
    """Where to read from, as the command line says."""

    config: str | None
    tenant_config: Path | None
    repos: Path | None
    tenant: str | None

    def load(self) -> dict[str, Loaded]:
        """Tenant -> its configuration.  Raises ConfigErrors for the tenant file, UserError."""
        gc.disable()  # much is made, little is dropped, and then the process ends
        if self.repos is None:
            return self._through_connections()
        path = self.tenant_config or read_settings(find(self.config)).tenant_config
        known = _connections(Path(self.config)) if self.config else {}
        tenants = self._wanted(_tenants(path, known, assume=True))
        hosts = {name: at.canonical_hostname for name, at in known.items()}
        root = self.repos

        def one(source: TenantProject) -> Files | str:
            wanted = source.load_branch if source.trusted else ""
            try:
                host = hosts.get(source.connection, source.connection)
                return read(place_of(root, source.connection, host, source.name), source.config_paths, wanted)
            except Unreadable as error:
                return str(error)

        return {name: _loaded(tenant, spread(one, tenant.projects)) for name, tenant in tenants.items()}

    def _through_connections(self) -> dict[str, Loaded]:
        settings = read_settings(find(self.config))
        at = connections(settings)
        known = {name: Connection(name, c.canonical_hostname) for name, c in at.items()}
        tenants = self._wanted(_tenants(self.tenant_config or settings.tenant_config, known, assume=False))
        return {name: _loaded(t, asyncio.run(_fetched(t.projects, at))) for name, t in tenants.items()}

    def _wanted(self, tenants: dict[str, Tenant]) -> dict[str, Tenant]:
        if self.tenant is None:
            return tenants
        if self.tenant not in tenants:
            raise UserError(f"there is no tenant {self.tenant!r}; there are {', '.join(tenants)}")
        return {self.tenant: tenants[self.tenant]}


def given(command: Callable[..., None]) -> Callable[..., None]:
    """The options that say where to read from."""
    file = click.Path(path_type=Path, exists=True, dir_okay=False)
    options = [
        click.option("--config", metavar="FILE", help="The settings file; with --repos only its connections count."),
        click.option("--tenant-config", type=file, help="The tenant file; by default as the settings say."),
        click.option(
            "--repos",
            type=click.Path(path_type=Path, exists=True, file_okay=False),
            help="Read repositories from here: DIR/<connection>/<project> or DIR/<project>, each a work tree, a bare "
            "repository or a plain directory.  Connections that are not configured are assumed.",
        ),
        click.option("--tenant", metavar="NAME", help="Only this tenant."),
    ]

    @wraps(command)
    def taking(
        config: str | None,
        tenant_config: Path | None,
        repos: Path | None,
        tenant: str | None,
        **rest: Any,  # the command's own options
    ) -> None:
        command(Given(config, tenant_config, repos, tenant), **rest)

    decorated: Callable[..., None] = taking
    for option in reversed(options):
        decorated = option(decorated)
    return decorated


def _tenants(path: Path, known: Mapping[str, Connection], *, assume: bool) -> dict[str, Tenant]:
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: the tenant file cannot be read: {error}") from error
    assumed = {name: Connection(name, name) for name in _named(text)} if assume else {}
    return parse_tenants(text, str(path), {**assumed, **known})


def _named(text: str) -> set[str]:
    """Connections that the tenant file uses; what is wrong with it is said by who parses it."""
    try:
        document = load(text)
    except Wrong:
        return set()
    stanzas = [body for item in document or [] if isinstance(item, Table) for body in item.values()]
    sources = [body.get("source") for body in stanzas if isinstance(body, Table)]
    return {name for source in sources if isinstance(source, Table) for name in source}


def _connections(path: Path) -> dict[str, Connection]:
    """Of any INI file that has `[connection NAME]` sections; its other sections are nobody's business here."""
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    try:
        parser.read_string(path.read_text(), str(path))
    except (OSError, UnicodeDecodeError, configparser.Error) as error:
        raise UserError(f"{path}: cannot be read as a settings file: {' '.join(str(error).split())}") from error
    found: dict[str, Connection] = {}
    for section in parser.sections():
        kind, _, quoted = section.partition(" ")
        name, options = quoted.strip("\"' "), parser[section]
        if kind == "connection" and name:
            at = GitConnection(name, options.get("baseurl", ""), options.get("canonical_hostname", ""))
            server = options.get("server", "")
            plain = not options.get("canonical_hostname") and server
            found[name] = Connection(name, server if plain else at.canonical_hostname)
    return found


async def _fetched(projects: Sequence[TenantProject], at: dict[str, GitConnection]) -> list[Files | str]:
    free = asyncio.Semaphore(FETCHES_MAX)
    with tempfile.TemporaryDirectory() as name:
        engine = GitEngine(Path(name), at)

        async def one(source: TenantProject) -> Files | str:
            wanted = (source.load_branch,) if source.trusted else ()
            async with free:
                answer = await engine.do(CatRequest(source.project, source.connection, wanted, source.config_paths))
            assert isinstance(answer, CatAnswer), "the answer to a cat"
            return {branch: answer.files.get(branch, {}) for branch in answer.branches} if answer.ok else answer.error

        return list(await asyncio.gather(*(one(project) for project in projects)))


def _loaded(tenant: Tenant, found: Sequence[Files | str]) -> Loaded:
    """`found`, one a project: its files, or why there are none."""
    files: dict[str, Files] = {}
    unread: list[ConfigError] = []
    for source, one in zip(tenant.projects, found, strict=True):
        files[source.project] = {} if isinstance(one, str) else {b: f for b, f in one.items() if included(source, b)}
        if set(source.include) == {"pragma"}:
            continue
        if isinstance(one, str):
            unread.append(ConfigError("Repository Not Found", one, source.project))
        elif source.trusted and not one:
            text = (
                f"it has no branch {source.load_branch!r}, so nothing is read of it; set load-branch in the tenant file"
            )
            unread.append(ConfigError("Branch Not Found", text, source.project, severity="warning"))

    def parse(source: TenantProject) -> dict[str, ParsedBranch]:
        return {branch: parse_branch(source, branch, texts) for branch, texts in files[source.project].items()}

    names = [source.project for source in tenant.projects]
    branches = dict(zip(names, spread(parse, tenant.projects), strict=True))
    return Loaded(tenant, files, branches, build_layout(tenant, branches), tuple(unread))
