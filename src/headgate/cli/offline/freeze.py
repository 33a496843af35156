"""`headgate freeze`: the jobs a change of a project would run."""

from __future__ import annotations

import sys

import click
import msgspec
from rich.console import Console
from rich.table import Table

from headgate.base.errors import UserError
from headgate.cli.offline.reading import Given, given
from headgate.config.model import FrozenJob


@click.command()
@given
@click.option("--pipeline", required=True)
@click.option("--project", required=True)
@click.option("--branch", default="master", show_default=True)
@click.option("--file", "files", multiple=True, help="A file the change touches; may be given often.")
@click.option("--json", "as_json", is_flag=True, help="Everything, as JSON.")
def command(given: Given, pipeline: str, project: str, branch: str, files: tuple[str, ...], as_json: bool) -> None:
    """Print the frozen job graph, from the repositories as they are."""
    tenants = given.load()
    if len(tenants) != 1:
        raise UserError(f"say which tenant with --tenant; there are {', '.join(tenants)}")
    ((tenant, loaded),) = tenants.items()
    source, layout = loaded.tenant.find(project), loaded.layout
    if source is None:
        raise UserError(f"tenant {tenant} has no project {project!r}")
    if pipeline not in layout.pipelines:
        raise UserError(f"tenant {tenant} has no pipeline {pipeline!r}; there are {', '.join(layout.pipelines)}")
    graph = layout.freeze(pipeline, source.project, branch, files=files or None)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(graph), indent=1).decode())
    elif graph.jobs:
        Console().print(_table(graph.jobs))
    for error in graph.errors:
        click.echo(error.render())
    if graph.errors:
        sys.exit(1)
    if not graph.jobs and not as_json:
        click.echo(f"{project} runs no jobs in {pipeline} on {branch}")


def _table(jobs: tuple[FrozenJob, ...]) -> Table:
    table = Table("job", "after", "runs", "voting", box=None, pad_edge=False)
    for job in jobs:
        after = ", ".join(d.name + (" (soft)" if d.soft else "") for d in job.dependencies)
        books = ", ".join(book.path for book in (*job.pre_run, *job.run, *job.post_run))
        table.add_row(job.name, after, books, "yes" if job.voting else "no")
    return table
