"""Taking a hand: enqueue, dequeue, promote, reconfigure, approve."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from urllib.parse import quote

import click

from headgate.adapters.git.command import GitError, git
from headgate.base.errors import UserError
from headgate.cli.process import connections, tenants
from headgate.cli.settings import find, read
from headgate.cli.status import address, fetch, the_tenant, token_of

_config = click.option("--config", metavar="FILE", help="The settings file.")
_url = click.option("--url", help="Where Headgate's pages are; by default as the settings say.")
_tenant = click.option("--tenant", help="By default the only one.")
_pipeline = click.option("--pipeline", required=True)
_project = click.option("--project", required=True)


@click.command()
@_config
@_url
@_tenant
@_pipeline
@_project
@click.argument("change")
def enqueue(config: str | None, url: str | None, tenant: str | None, pipeline: str, project: str, change: str) -> None:
    """Put CHANGE (a topic, or branch/topic) into a pipeline, approved or not."""
    _verb("enqueue", config, url, tenant, pipeline, project, change)


@click.command()
@_config
@_url
@_tenant
@_pipeline
@_project
@click.argument("change")
def dequeue(config: str | None, url: str | None, tenant: str | None, pipeline: str, project: str, change: str) -> None:
    """Take CHANGE (a topic, or branch/topic) out of a pipeline; its builds are cancelled."""
    _verb("dequeue", config, url, tenant, pipeline, project, change)


def _verb(
    verb: str, config: str | None, url: str | None, tenant: str | None, pipeline: str, project: str, change: str
) -> None:
    base, token = address(config, url), token_of(config)
    place = f"{base}/api/tenant/{quote(the_tenant(base, token, tenant))}/project/{quote(project)}/{verb}"
    fetch(place, {"pipeline": pipeline, "change": change}, token)
    word = {"enqueue": "is in", "dequeue": "was taken out of"}[verb]
    click.echo(f"{change} of {project} {word} {pipeline}.")


@click.command()
@_config
@_url
@_tenant
@_pipeline
@click.argument("changes", nargs=-1, required=True)
def promote(config: str | None, url: str | None, tenant: str | None, pipeline: str, changes: tuple[str, ...]) -> None:
    """Move CHANGES (<project>/<branch>/<topic>, project with its host) to the head of their queue, in this order."""
    base, token = address(config, url), token_of(config)
    place = f"{base}/api/tenant/{quote(the_tenant(base, token, tenant))}/promote"
    fetch(place, {"pipeline": pipeline, "changes": list(changes)}, token)
    click.echo(f"At the head of {pipeline} now: {', '.join(changes)}.")


@click.command()
@_config
@_url
@_tenant
@click.argument("projects", nargs=-1)
def reconfigure(config: str | None, url: str | None, tenant: str | None, projects: tuple[str, ...]) -> None:
    """Read the configuration of PROJECTS anew, of all when none is named.

    What is pushed is read by itself: this is for when you doubt it."""
    base, token = address(config, url), token_of(config)
    chosen = the_tenant(base, token, tenant)
    fetch(f"{base}/api/tenant/{quote(chosen)}/reconfigure", {"projects": list(projects)}, token)
    click.echo(f"Read anew: {', '.join(projects) or f'all projects of {chosen}'}.")


@click.command()
@_config
@_project
@click.option("--branch", default="master", show_default=True)
@click.argument("topic")
def approve(config: str | None, project: str, branch: str, topic: str) -> None:
    """Approve the change TOPIC: push its commit to refs/approved/<branch>/<topic>."""
    settings = read(find(config))
    at = connections(settings)
    found = tenants(settings, at)[1].tenants
    source = next((p for t in found.values() if (p := t.find(project)) is not None), None)
    if source is None:
        raise UserError(f"no tenant has the project {project!r}")
    url = at[source.connection].url(source.project)
    commit = asyncio.run(_approve(url, branch, topic))
    click.echo(f"Approved {topic} of {project}: {commit}")


async def _approve(url: str, branch: str, topic: str) -> str:
    proposed = f"refs/for/{branch}/{topic}"
    with tempfile.TemporaryDirectory() as name:
        here = Path(name)
        try:
            await git("init", "-q", "--bare", name)
            await git("fetch", "-q", url, f"+{proposed}:{proposed}", at=here)
            await git("push", "-q", "-f", url, f"{proposed}:refs/approved/{branch}/{topic}", at=here)
            return (await git("rev-parse", proposed, at=here))[1].strip()
        except GitError as error:
            raise UserError(f"{url} {proposed}: {error}") from error
