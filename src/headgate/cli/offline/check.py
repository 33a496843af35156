"""`headgate check`: a configuration checked without a server, errors as a compiler prints them."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import msgspec

from headgate.base.errors import UserError
from headgate.cli.offline.reading import Given, Loaded, given
from headgate.cli.offline.report import as_json, as_text, counts, error_as_json, summary
from headgate.cli.offline.repositories import on_disk
from headgate.config.model import ConfigError
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
        tenants = given.load()
    except ConfigErrors as refused:
        _refused(refused.errors, json_)
        sys.exit(1)
    except UserError as error:
        raise click.UsageError(str(error)) from error
    for each in work_trees:
        tenants = _overlaid(tenants, each)
    if json_:
        click.echo(msgspec.json.format(msgspec.json.encode({n: as_json(t) for n, t in tenants.items()})).decode())
    else:
        for name, loaded in tenants.items():
            for block in as_text(loaded.errors):
                click.echo(f"{block}\n")
            click.echo(summary(name, counts(loaded)))
    if any(error.severity == "error" for loaded in tenants.values() for error in loaded.errors):
        sys.exit(1)


def _refused(errors: tuple[ConfigError, ...], json_: bool) -> None:
    """The tenant file itself: there are no tenants to speak of, so its errors stand under the empty name."""
    if json_:
        zero = dict.fromkeys(("projects", "jobs", "templates", "pipelines", "nodesets"), 0)
        found = {"errors": [error_as_json(e) for e in errors], "counts": {**zero, "errors": len(errors), "warnings": 0}}
        click.echo(msgspec.json.format(msgspec.json.encode({"": found})).decode())
    else:
        click.echo("\n\n".join(as_text(errors)))


def _overlaid(tenants: dict[str, Loaded], work_tree: str) -> dict[str, Loaded]:
    name, equals, directory = work_tree.partition("=")
    found = dict(tenants)
    for tenant, loaded in tenants.items():
        source = loaded.tenant.find(name)
        if source is not None:
            branch = next(iter(loaded.branches[source.project]), source.load_branch)
            files = {source.project: {branch: on_disk(Path(directory), source.config_paths)}}
            found[tenant] = loaded.with_files(files)
    if not equals or not Path(directory).is_dir() or all(found[t] is tenants[t] for t in tenants):
        raise click.UsageError(
            f"--with {work_tree}: it is PROJECT=DIRECTORY, a project of a tenant and an existing directory"
        )
    return found
