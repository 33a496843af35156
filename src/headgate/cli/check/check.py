"""Implement `headgate check`: check a configuration without a server, and print errors like a compiler."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import click
import msgspec

from headgate.adapters.nodes.clouds.registry import MissingLibrary
from headgate.base.errors import UserError
from headgate.base.files import text_of
from headgate.base.texts import listed, plain_json
from headgate.cli.ansible import row
from headgate.cli.check import against, output
from headgate.cli.check.inspection import CheckScope, TenantProblem, pipelines_of, problems_of
from headgate.cli.check.migration import is_of_the_reference, page
from headgate.cli.jobs import environments, log_store
from headgate.cli.keys.secrets import unopenable
from headgate.cli.offline import othertrees
from headgate.cli.offline.graphs import default_branch
from headgate.cli.offline.reader import LoadedTenant, ReadingError, ReadingOptions, RefusedTenant, given
from headgate.cli.offline.repositories import on_disk
from headgate.cli.resources import cloud, cloud_names
from headgate.cli.settings import FLAGS, Settings, find, read
from headgate.cli.terminal.say import say
from headgate.config.check.findings import GraphFinding, causes
from headgate.config.keys.job import ANSIBLE_VERSIONS
from headgate.config.model import ConfigError
from headgate.config.operator.model import ConfigErrors

CAUSES_MAX = 30
"""Number of causes that the text output shows by default."""
NAMED_MAX = 3
"""Maximum number of tenants, jobs and stanzas to name for a requested version of Ansible."""


TOKEN_SIZE_MAX_CHARS = 100_000


class _Shown(NamedTuple):
    json: bool
    sarif: bool
    limit: int
    fail_on: str


def _token(file: Path) -> str:
    """Return the first line of the file, or of standard input for `-`. Raise UserError."""
    try:
        size = TOKEN_SIZE_MAX_CHARS
        text = sys.stdin.readline(size) if str(file) == "-" else text_of(file, size_max=size)
        return text.partition("\n")[0].strip()
    except OSError as error:
        raise UserError(f"{file}: the token cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{file}: this is not a token") from error


@click.command()
@given
@click.option(
    "--with",
    "work_trees",
    multiple=True,
    metavar="PROJECT=DIRECTORY",
    help="Use the files of this work tree instead of the project's default branch.",
)
@click.option("--project", "projects", multiple=True, help="Show only errors in this project or in its job graphs.")
@click.option(
    "--only",
    multiple=True,
    metavar="WHAT",
    help="Show only these: errors, warnings, or the name of an error such as nodeset-not-found.",
)
@click.option("--limit", default=CAUSES_MAX, show_default=True, help="Maximum number of causes to show; 0 shows all.")
@click.option(
    "--new-since",
    metavar="DIR|REV",
    help="Show only errors that are new since this revision of each repository, or since this directory of "
    "repositories.",
)
@click.option(
    "--fail-on",
    type=click.Choice(("error", "warning", "never")),
    default="error",
    show_default=True,
    help="The lowest severity that makes the exit status 1.",
)
@click.option(
    "--against",
    "url",
    metavar="URL",
    help="Compare the job graphs with those of this running server, Zuul or Headgate.",
)
@click.option("--branch", "branches", multiple=True, help="With --against: compare only this branch.")
@click.option(
    "--token",
    type=click.Path(path_type=Path, dir_okay=False, allow_dash=True),
    help="With --against: a file with a bearer token for the server; `-` is standard input.",
)
@click.option("--json", "json_", is_flag=True, help="Print JSON: errors and counts of every tenant.")
@click.option("--sarif", "sarif_", is_flag=True, help="Print SARIF, for editors and forges.")
def command(
    given: ReadingOptions,
    work_trees: tuple[str, ...],
    projects: tuple[str, ...],
    only: tuple[str, ...],
    limit: int,
    new_since: str | None,
    fail_on: str,
    url: str | None,
    branches: tuple[str, ...],
    token: Path | None,
    json_: bool,
    sarif_: bool,
) -> None:
    """Check the tenant file and the configuration of every repository in it, and freeze every job graph.

    The output has one block for each mistake, with its consequences below it. The exit status is 0 without errors, 1
    with errors (see --fail-on), and 2 if nothing could be checked. With --against, the output has the differences, and
    the exit status is 1 if there are any.
    """
    if limit < 0 or (json_ and sarif_):
        raise click.UsageError("--limit must be at least 0, and --json and --sarif exclude each other")
    if branches and url is None:
        raise click.UsageError("--branch needs --against; without --against, the output has errors of all branches")
    try:
        # Programs read these formats, so nothing else may be printed.
        if not json_ and not sarif_:
            _tell_of_settings(given)
        if url is not None:
            server = against.ReferenceServer(url, _token(token) if token else "")
            sys.exit(_against(given, against.Only(projects, branches), server, limit, json_))
        found = _looked(given, work_trees, CheckScope(projects, only), new_since)
    except ConfigErrors as refused:
        # The output has the same form, even if the whole tenant file is rejected.
        found = {"": _refused(refused.errors, _texts(given))}
    except UserError as error:
        raise ReadingError(str(error)) from error
    if not json_ and not sarif_:
        _tell_of_ansible(given, found)
    _show(found, _Shown(json_, sarif_, limit, fail_on))


def _tell_of_ansible(given: ReadingOptions, found: Mapping[str, TenantProblem]) -> None:
    """Print, if there are settings, which versions of Ansible are requested and whether this machine has them."""
    loaded = [one.loaded for one in found.values() if isinstance(one.loaded, LoadedTenant)]
    try:
        settings = read(find(given.config))
    except UserError:
        return
    for line in ansible_lines(loaded, settings):
        say(f"{line}\n")


def ansible_lines(tenants: Iterable[LoadedTenant], settings: Settings) -> Iterator[str]:
    """Yield a line for each requested version of Ansible: who requests it, and whether this machine has it."""
    installed = environments(settings)
    managed = FLAGS[settings.get("executor", "manage_ansible").lower()]
    for version, who in requested_versions(tenants).items():
        found = row(installed, version)
        if found.state != "missing":
            has = f"installed here (ansible-core {found.core})"
        elif managed:
            has = "not installed here; an executor installs it when a build first needs it"
        else:
            has = f"not installed here; on every executor run: headgate ansible install {version}"
        yield f"Ansible {version}, for {listed(who, NAMED_MAX)}: {has}"


def requested_versions(tenants: Iterable[LoadedTenant]) -> dict[str, list[str]]:
    """Return the tenants, jobs and stanzas that request each version of Ansible."""
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
            # Variables may contain a key of that name without any meaning.
            if "vars" not in key:
                yield from _within(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _within(inner)


def _tell_of_settings(given: ReadingOptions) -> None:
    """Print how options of a `zuul.conf` apply, before anything uses its connections. Raise UserError."""
    try:
        settings = read(find(given.config))
    except UserError:
        if given.repos is None:
            raise
        return  # with --repos, the check needs no settings
    log_store(settings)
    for name in cloud_names(settings):
        try:
            cloud(settings, name)
        except MissingLibrary as error:
            say(f"{error}\n")
    for warning in settings.warnings:
        say(f"warning: {warning}\n")
    if is_of_the_reference(settings):
        say(f"{page(settings)}\n")


def _against(
    given: ReadingOptions, only: against.Only, server: against.ReferenceServer, limit: int, json_: bool
) -> int:
    """Compare with the server, and return the exit status. Raise ConfigErrors for the tenant file, UserError."""
    tenants = given.load().tenants
    # Compare only tenants that have all named projects. If none does, compare all: `Only.of` then names the missing
    # project.
    having = {n: one for n, one in tenants.items() if all(one.tenant.find(name) for name in only.projects)} or tenants
    counted = sys.stderr.isatty()

    def count(done: int, of: int) -> None:
        # Show progress only in a terminal: in a log file, the carriage returns would form one endless line.
        if counted:
            sys.stderr.write(f"\r{done:,} of {of:,} graphs{'' if done < of else chr(10)}")
            sys.stderr.flush()

    compared = asyncio.run(against.compare_and_close(having, only, server, count))
    if json_:
        say(plain_json(msgspec.json.format(msgspec.json.encode(against.as_json(compared))).decode()))
    else:
        for block in against.as_text(compared, server.url, limit):
            say(block)
    if compared.apart and not compared.graphs:
        raise UserError(f"{server.url}: nothing could be compared")
    return int(any(one.differences for one in compared.graphs))


def _looked(
    given: ReadingOptions, work_trees: Sequence[str], wanted: CheckScope, new_since: str | None
) -> dict[str, TenantProblem]:
    """Check the tenants; return their findings, rejected tenants first. Raise ConfigErrors for the tenant file, and
    UserError."""
    landed = given.load()
    trees = _trees(landed.tenants, work_trees)
    tenants = _opened(given, {name: _overlaid(loaded, trees) for name, loaded in landed.tenants.items()})
    texts = _texts(given)
    found = {name: _refused(refused.errors, texts) for name, refused in landed.refused.items()}
    if landed.warnings:
        found[""] = _refused(landed.warnings, texts)
    # If tenants are missing, they may define a pipeline that seems unknown.
    missing = given.tenant is not None or bool(landed.refused)
    pipelines = None if missing else pipelines_of(tenants.values())
    having = [name for name, loaded in tenants.items() if _has(loaded, wanted)]
    for name in having or tenants:
        loaded = tenants[name]
        before = _before(given, landed.tenants[name], loaded, trees, new_since) if new_since is not None else None
        found[name] = problems_of(loaded, before, pipelines, wanted, texts)
    return found


def _has(loaded: LoadedTenant, wanted: CheckScope) -> bool:
    return all(loaded.tenant.find(name) is not None for name in wanted.projects)


def _refused(errors: tuple[ConfigError, ...], texts: Mapping[str, str]) -> TenantProblem:
    return TenantProblem(RefusedTenant(errors), causes(map(GraphFinding, errors), {}), texts)


def _texts(given: ReadingOptions) -> dict[str, str]:
    path, text = given.tenant_file()
    return {str(path): text}


def _before(
    given: ReadingOptions, landed: LoadedTenant, loaded: LoadedTenant, trees: Mapping[str, Path], since_what: str
) -> LoadedTenant:
    """Return the tenant at the revision `since_what`, or with the repositories in the directory of that name. Raise
    UserError."""
    at = {source.project: place for name, place in trees.items() if (source := loaded.tenant.find(name)) is not None}
    if given.repos is not None:
        at = {**othertrees.trees_below(loaded, given.repos), **at}
    return othertrees.earlier(landed if given.repos is None else loaded, since_what, at)


def _show(found: Mapping[str, TenantProblem], how: _Shown) -> None:
    if how.json:
        reports = {name: output.as_json(one) for name, one in found.items()}
        say(plain_json(msgspec.json.format(msgspec.json.encode(reports)).decode()))
    elif how.sarif:
        say(plain_json(msgspec.json.format(msgspec.json.encode(output.sarif_log(found))).decode()))
    else:
        for name, one in found.items():
            for block in output.as_text(name, one, how.limit):
                say(block)
    if how.fail_on != "never" and any(output.failures(one, how.fail_on) for one in found.values()):
        sys.exit(1)


def _opened(given: ReadingOptions, tenants: dict[str, LoadedTenant]) -> dict[str, LoadedTenant]:
    """Add an error for each secret that cannot be decrypted, if this installation's repositories are checked. Raise
    UserError."""
    # Files of --repos may belong to another installation, whose keys are not in this store.
    if given.repos is not None:
        return tenants
    settings = read(find(given.config))
    return {
        name: replace(one, unread=(*one.unread, *unopenable(settings, one.layout))) for name, one in tenants.items()
    }


def _trees(tenants: Mapping[str, LoadedTenant], work_trees: Sequence[str]) -> dict[str, Path]:
    """Return the given work trees by project name, as written. Raise UserError."""
    found: dict[str, Path] = {}
    for work_tree in work_trees:
        name, equals, directory = work_tree.partition("=")
        known = any(loaded.tenant.find(name) is not None for loaded in tenants.values())
        if not equals or not Path(directory).is_dir() or not known:
            text = "write it as PROJECT=DIRECTORY, with a project of a tenant and an existing directory"
            raise UserError(f"--with {work_tree}: {text}")
        found[name] = Path(directory)
    return found


def _overlaid(loaded: LoadedTenant, trees: Mapping[str, Path]) -> LoadedTenant:
    found = {}
    for name, directory in trees.items():
        if (source := loaded.tenant.find(name)) is not None:
            branch = default_branch(loaded, source)
            found[source.project] = {branch: on_disk(directory, source.config_paths)}
    return loaded.with_files(found) if found else loaded
