"""Read tenants and their configuration without a server: from directories, or through configured connections."""

from __future__ import annotations

import asyncio
import configparser
import gc
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import IO, Any

import click
from msgspec.structs import replace

from headgate.adapters.git.connection import GitConnection
from headgate.adapters.git.engine import GitEngine
from headgate.base.errors import UserError
from headgate.base.files import text_of
from headgate.base.texts import visible
from headgate.cli.offline.parallel import spread
from headgate.cli.offline.repositories import Files, UnreadableRepository, place_of, read
from headgate.cli.resources import connections, known_connections, tenant_text
from headgate.cli.settings import find
from headgate.cli.settings import read as read_settings
from headgate.cli.terminal.say import say
from headgate.config.budgets import DEFAULTS, Budgets
from headgate.config.definitions import Branches
from headgate.config.drivers import ANY, DRIVERS
from headgate.config.files.document import Table, load
from headgate.config.files.source import Wrong
from headgate.config.layout import Layout, build_layout, exchanged
from headgate.config.model import ConfigError
from headgate.config.operator.file import parse_tenant_file
from headgate.config.operator.model import ConfigErrors, Connection, Tenant, TenantFile, TenantProject, included
from headgate.config.parse import ParsedBranch, parse_branches
from headgate.gate.state.works import CatAnswer, CatRequest

FETCHES_MAX = 8
"""Limit on concurrent fetches of repositories."""


class ReadingError(click.ClickException):
    """Report that nothing could be read, or that the requested job, graph or attribute does not exist."""

    exit_code = 2

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the error like those of all other commands."""
        say(f"headgate: {visible(self.format_message())}", err=True)


@dataclass(frozen=True, slots=True)
class LoadedTenant:
    """Hold one tenant as its repositories currently define it."""

    tenant: Tenant
    files: Mapping[str, Files]
    """project -> branch -> path -> text"""
    branches: Branches
    layout: Layout
    unread: tuple[ConfigError, ...] = ()
    """Errors for projects that could not be read, and for secrets that cannot be decrypted."""
    excluded: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """project -> branches that the tenant file excludes"""

    @property
    def errors(self) -> tuple[ConfigError, ...]:
        return (*self.unread, *self.layout.errors)

    def project(self, name: str) -> TenantProject:
        """Find a project of the tenant by its name. Raise UserError."""
        source = self.tenant.find(name)
        if source is None:
            raise UserError(f"tenant {self.tenant.name}: {self.tenant.why_not(name)}")
        return source

    def with_files(self, proposed: Mapping[str, Files]) -> LoadedTenant:
        """Return the same tenant with other files on the proposed branches."""
        # Replace all files of a branch: a file that is missing in the proposal counts as deleted.
        files = {**self.files, **{name: {**self.files.get(name, {}), **found} for name, found in proposed.items()}}
        source, most = self.layout.source, self.layout.budgets
        again = {name: parse_branches(source(name), found, most) for name, found in proposed.items()}
        parsed = {**self.branches, **{name: {**self.branches.get(name, {}), **found} for name, found in again.items()}}
        # Parse only the replaced branches, and link the layout again around them.
        layout = exchanged(self.layout, again, keep=True)
        return LoadedTenant(self.tenant, files, parsed, layout, self.unread, self.excluded)


@dataclass(frozen=True, slots=True)
class RefusedTenant:
    """Hold the errors of a tenant that cannot be loaded."""

    errors: tuple[ConfigError, ...]


@dataclass(frozen=True, slots=True)
class LoadedTenants:
    """Hold all tenants of the tenant file."""

    tenants: dict[str, LoadedTenant]
    refused: dict[str, RefusedTenant]
    warnings: tuple[ConfigError, ...]
    """Warnings about the tenant file."""


@dataclass(frozen=True, slots=True)
class ReadingOptions:
    """Hold the options of a command that specify where to read from."""

    config: str | None
    tenant_config: Path | None
    repos: Path | None
    tenant: str | None

    def load(self) -> LoadedTenants:
        """Load the tenants. Raise ConfigErrors for the tenant file, or UserError."""
        gc.disable()  # loading allocates much and frees little, so collections would only cost time
        try:
            return self._from_directories(self.repos) if self.repos is not None else self._through_connections()
        finally:
            gc.enable()

    def tenants(self) -> dict[str, LoadedTenant]:
        """Return the tenants that can be loaded. Raise ConfigErrors if there are none, and UserError."""
        found = self.load()
        if not found.tenants:
            raise ConfigErrors(tuple(error for one in found.refused.values() for error in one.errors))
        return found.tenants

    def tenant_file(self) -> tuple[Path, str]:
        """Return the path of the tenant file, and its text."""
        if self.tenant_config is not None:
            return self.tenant_config, _text(self.tenant_config)
        settings = read_settings(find(self.config))
        return settings.tenant_config, tenant_text(settings)

    def _from_directories(self, root: Path) -> LoadedTenants:
        path, text = self.tenant_file()
        known = described(Path(self.config)) if self.config else {}
        file = self._wanted(parse_tenant_file(text, str(path), assumed(text, known, given=bool(self.config))))
        hosts = {name: at.canonical_hostname for name, at in known.items()}

        def one(source: TenantProject) -> Files | str:
            if not source.loads:
                return {}
            # A config-project has configuration on one branch only.
            wanted = source.load_branch if source.trusted else ""
            try:
                host = hosts.get(source.connection, source.connection)
                return read(place_of(root, source.connection, host, source.name), source.config_paths, wanted)
            except UnreadableRepository as error:
                return str(error)

        shared: dict[tuple[str, bool, str, tuple[str, ...]], Files | str] = {}

        def every(tenant: Tenant) -> list[Files | str]:
            """Read the projects of a tenant; tenants that read a project in the same way share the result."""
            # These four values determine which files are read.
            keys = [(p.project, p.trusted, p.load_branch, p.config_paths) for p in tenant.projects]
            fresh = {key: p for key, p in zip(keys, tenant.projects, strict=True) if key not in shared}
            shared.update(zip(fresh, spread(one, list(fresh.values())), strict=True))
            return [shared[key] for key in keys]

        return _found(file, every, DEFAULTS)

    def _through_connections(self) -> LoadedTenants:
        settings = read_settings(find(self.config))
        at = connections(settings)
        path, text = self.tenant_file()
        file = self._wanted(parse_tenant_file(text, str(path), known_connections(settings, at)))
        return _found(file, lambda tenant: asyncio.run(_fetched(tenant.projects, at)), settings.budgets)

    def _wanted(self, file: TenantFile) -> TenantFile:
        if self.tenant is None:
            return file
        every = [*file.tenants, *file.refused]
        if self.tenant not in every:
            raise UserError(f"there is no tenant {self.tenant!r}; the tenants are {', '.join(every)}")
        tenants, refused = (
            {name: one for name, one in found.items() if name == self.tenant} for found in (file.tenants, file.refused)
        )
        return replace(file, tenants=tenants, refused=refused)


def given(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that specify where to read from to a command, and pass them as one argument."""
    file = click.Path(path_type=Path, exists=True, dir_okay=False)
    options = [
        click.option(
            "--config", metavar="FILE", help="The settings file. With --repos, only its connections are used."
        ),
        click.option("--tenant-config", type=file, help="The tenant file. Default: from the settings."),
        click.option(
            "--repos",
            type=click.Path(path_type=Path, exists=True, file_okay=False),
            help="Read repositories from this directory: DIR/<connection>/<project> or DIR/<project>, each a work "
            "tree, a bare repository or a plain directory. Connections need not be in the settings.",
        ),
        click.option("--tenant", metavar="NAME", help="Use only this tenant."),
    ]

    @wraps(command)
    def taking(
        config: str | None,
        tenant_config: Path | None,
        repos: Path | None,
        tenant: str | None,
        **rest: Any,  # the arguments of the command
    ) -> None:
        command(ReadingOptions(config, tenant_config, repos, tenant), **rest)

    decorated: Callable[..., None] = taking
    for option in reversed(options):
        decorated = option(decorated)
    return decorated


def _text(path: Path) -> str:
    try:
        return text_of(path)
    except OSError as error:
        raise UserError(f"{path}: the tenant file cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: the tenant file is not UTF-8 text: {error}") from error


def _found(file: TenantFile, files: Callable[[Tenant], Sequence[Files | str]], budgets: Budgets) -> LoadedTenants:
    tenants = {name: _loaded(tenant, files(tenant), budgets) for name, tenant in file.tenants.items()}
    return LoadedTenants(tenants, {name: RefusedTenant(errors) for name, errors in file.refused.items()}, file.warnings)


async def _fetched(projects: Sequence[TenantProject], at: dict[str, GitConnection]) -> list[Files | str]:
    free = asyncio.Semaphore(FETCHES_MAX)
    # Fetch into a temporary directory: a running Headgate may be using the merger's repositories.
    with tempfile.TemporaryDirectory() as name:
        engine = GitEngine(Path(name), at)

        async def one(source: TenantProject) -> Files | str:
            wanted = (source.load_branch,) if source.trusted else ()
            async with free:
                answer = await engine.do(CatRequest(source.project, source.connection, wanted, source.config_paths))
            assert isinstance(answer, CatAnswer), "the answer to a cat"
            return {branch: answer.files.get(branch, {}) for branch in answer.branches} if answer.ok else answer.error

        return list(await asyncio.gather(*(one(project) for project in projects)))


def _loaded(tenant: Tenant, found: Sequence[Files | str], budgets: Budgets) -> LoadedTenant:
    """Build the tenant from `found`, which has the files of each project, or why they could not be read."""
    files: dict[str, Files] = {}
    unread: list[ConfigError] = []
    excluded: dict[str, tuple[str, ...]] = {}
    for source, one in zip(tenant.projects, found, strict=True):
        there = {} if isinstance(one, str) else one
        files[source.project] = {branch: texts for branch, texts in there.items() if included(source, branch)}
        excluded[source.project] = tuple(branch for branch in there if branch not in files[source.project])
        if not source.loads:
            continue
        if isinstance(one, str):
            unread.append(ConfigError("Repository Not Found", one, source.project))
        elif source.trusted and not one:
            text = (
                f"the project has no branch {source.load_branch!r}, so it has no configuration; set load-branch in the "
                "tenant file"
            )
            unread.append(ConfigError("Branch Not Found", text, source.project, severity="warning"))

    def parse(source: TenantProject) -> dict[str, ParsedBranch]:
        return parse_branches(source, files[source.project], budgets)

    names = [source.project for source in tenant.projects]
    branches = dict(zip(names, spread(parse, tenant.projects), strict=True))
    return LoadedTenant(tenant, files, branches, build_layout(tenant, branches, budgets), tuple(unread), excluded)


def described(path: Path) -> dict[str, Connection]:
    """Read the `[connection NAME]` sections of any INI file, and ignore its other sections. Raise UserError."""
    # Accept the INI files of other programs, too: sections may repeat, and `%` has no special meaning.
    parser = configparser.ConfigParser(interpolation=None, strict=False, allow_no_value=True)
    try:
        parser.read_string(text_of(path), str(path))
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
    """Return the host part of the canonical names of a connection's projects."""
    given, server = options.get("canonical_hostname") or "", options.get("server") or ""
    if options.get("driver") == "github" and not given:
        return server or "github.com"
    return given or server or GitConnection(name, options.get("baseurl") or "", "").canonical_hostname


def assumed(tenant_file: str, known: Mapping[str, Connection], *, given: bool) -> dict[str, Connection]:
    """Return the known connections, and an assumed one for every other connection that the tenant file names.

    The driver of an assumed connection is the driver with the same name, or else any. If no settings were `given`,
    also assume a connection for the name of every driver, such as `smtp`, so that pipelines may report to them.
    """
    sources = _named(tenant_file)
    named = {*sources, *(() if given else DRIVERS)} - {ANY}
    return {**{name: Connection(name, name, _driver(name, name in sources)) for name in sorted(named)}, **known}


def _driver(name: str, source: bool) -> str:
    driver = DRIVERS.get(name)
    return ANY if driver is None or (source and driver.posts) else name


def _named(text: str) -> set[str]:
    """Return the names of the connections that the tenant file uses, ignoring errors, which its parser reports."""
    try:
        document = load(text)
    except Wrong:
        return set()
    items = document if isinstance(document, list) else []
    stanzas = [body for item in items if isinstance(item, Table) for body in item.values()]
    sources = [body.get("source") for body in stanzas if isinstance(body, Table)]
    return {name for source in sources if isinstance(source, Table) for name in source if isinstance(name, str)}
