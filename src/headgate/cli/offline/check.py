"""`headgate check`: a configuration checked without a server, errors as a compiler prints them."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from headgate.base.errors import UserError
from headgate.cli.offline.reading import layouts
from headgate.cli.process import connections, tenants
from headgate.cli.settings import find, read


@click.command()
@click.option("--config", metavar="FILE", help="The settings file.")
@click.option(
    "--with",
    "work_trees",
    multiple=True,
    metavar="PROJECT=DIRECTORY",
    help="Use the files of this work tree in place of the project's default branch.",
)
def command(config: str | None, work_trees: tuple[str, ...]) -> None:
    """Check the tenant file and the configuration of every repository in it.  Exit status 1 when there are errors."""
    settings = read(find(config))
    overlay: dict[str, Path] = {}
    _, known = tenants(settings, connections(settings))
    for given in work_trees:
        name, equals, directory = given.partition("=")
        source = next((p for t in known.values() if (p := t.find(name)) is not None), None)
        if not equals or source is None or not Path(directory).is_dir():
            raise UserError(f"--with {given}: it is PROJECT=DIRECTORY, a project of a tenant and an existing directory")
        overlay[source.project] = Path(directory)
    count = 0
    for name, (_, found) in layouts(settings, overlay).items():
        for error in found.landed.errors:
            click.echo(f"{error.render()}\n")
            count += error.severity == "error"
        layout = found.landed
        click.echo(
            f"tenant {name}: {len(layout.pipelines)} pipelines, {len(layout.jobs)} jobs, {len(layout.errors)} findings"
        )
    if count:
        sys.exit(1)
