"""`headgate check`: a configuration checked without a server, errors as a compiler prints them."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import click
import msgspec

from headgate.base.errors import UserError
from headgate.cli.keys.opening import unopenable
from headgate.cli.offline.graphs import default_branch
from headgate.cli.offline.reading import Found, Given, Impossible, Loaded, Refused, given
from headgate.cli.offline.report import as_json, as_text, left_out, summary
from headgate.cli.offline.repositories import on_disk
from headgate.cli.settings import find, read
from headgate.config.tenants import ConfigErrors


@click.command()
@given
@click.option(
    "--with",
    "work_trees",
    multiple=True,
    metavar="PROJECT=DIRECTORY",
    help="Use the files of this work tree in place of the project's default branch.",
)
@click.option("--json", "json_", is_flag=True, help="As JSON: errors and counts of every tenant.")
def command(given: Given, work_trees: tuple[str, ...], json_: bool) -> None:
    """Check the tenant file and the configuration of every repository in it.

    Exit status 0: no errors (there may be warnings), 1: errors, 2: nothing could be checked.
    """
    try:
        found = given.load()
        tenants = _opened(given, _overlaid(found.tenants, work_trees))
    except ConfigErrors as refused:
        found, tenants = Found({}, {"": Refused(refused.errors)}, ()), {}
    except UserError as error:
        raise Impossible(str(error)) from error
    if json_:
        told = {name: as_json(one) for one_kind in (found.refused, tenants) for name, one in one_kind.items()}
        click.echo(msgspec.json.format(msgspec.json.encode(told)).decode())
    else:
        _print(found, tenants)
    if found.refused or any(error.severity == "error" for loaded in tenants.values() for error in loaded.errors):
        sys.exit(1)


def _print(found: Found, tenants: Mapping[str, Loaded]) -> None:
    for block in as_text(found.warnings):
        click.echo(f"{block}\n")
    for name, refused in found.refused.items():
        for block in as_text(refused.errors):
            click.echo(f"{block}\n")
        click.echo(f"{f'tenant {name}' if name else 'the tenant file'}: cannot be loaded\n")
    for name, loaded in tenants.items():
        for block in as_text(loaded.errors, left_out(loaded)):
            click.echo(f"{block}\n")
        click.echo(summary(name, loaded))


def _opened(given: Given, tenants: dict[str, Loaded]) -> dict[str, Loaded]:
    """What cannot be opened is an error, too, where the repositories of this installation are read.

    Raises UserError."""
    if given.repos is not None:
        return tenants
    settings = read(find(given.config))
    return {
        name: replace(one, unread=(*one.unread, *unopenable(settings, one.layout))) for name, one in tenants.items()
    }


def _overlaid(tenants: Mapping[str, Loaded], work_trees: Sequence[str]) -> dict[str, Loaded]:
    """Raises UserError."""
    found = dict(tenants)
    for work_tree in work_trees:
        name, equals, directory = work_tree.partition("=")
        having = {t: source for t, loaded in found.items() if (source := loaded.tenant.find(name)) is not None}
        if not equals or not Path(directory).is_dir() or not having:
            text = "it is PROJECT=DIRECTORY, a project of a tenant and an existing directory"
            raise UserError(f"--with {work_tree}: {text}")
        for tenant, source in having.items():
            branch = default_branch(found[tenant], source)
            files = {source.project: {branch: on_disk(Path(directory), source.config_paths)}}
            found[tenant] = found[tenant].with_files(files)
    return found
