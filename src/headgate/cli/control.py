"""Taking a hand: enqueue, dequeue, promote, reconfigure, approve, recheck; and what was done by hand."""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from headgate.adapters.git.command import GitError, git
from headgate.base.errors import UserError
from headgate.cli.identity.byhand import Deed, noted
from headgate.cli.identity.pages import pages
from headgate.cli.process import connections, tenants
from headgate.cli.settings import find, read

_config = click.option("--config", metavar="FILE", help="The settings file.")
_url = click.option("--url", help="Where Headgate's pages are; by default as the settings say.")
_tenant = click.option("--tenant", help="By default the only one.")
_pipeline = click.option("--pipeline", required=True)
_project = click.option("--project", required=True)


_reason = click.option("--reason", default="", help="Why: it is kept with what you do, for those who look at it later.")
_unapproved = click.option(
    "--unapproved", is_flag=True, help="Although the requirements of the pipeline are not met: as this patchset alone."
)


@click.command()
@_config
@_url
@_tenant
@_pipeline
@_project
@_reason
@_unapproved
@click.argument("change")
def enqueue(
    config: str | None,
    url: str | None,
    tenant: str | None,
    pipeline: str,
    project: str,
    reason: str,
    unapproved: bool,
    change: str,
) -> None:
    """Put CHANGE (a topic, or branch/topic) into a pipeline.

    One that lands takes what meets its requirements, unless you say --unapproved."""
    at = pages(config, url)
    body = {"pipeline": pipeline, "change": change, "reason": reason, **({"unapproved": True} if unapproved else {})}
    at.post(f"{at.of(tenant)}/project/{quote(project)}/enqueue", body)
    click.echo(f"{change} of {project} is in {pipeline}.")


@click.command()
@_config
@_url
@_tenant
@_pipeline
@_project
@_reason
@click.argument("change")
def dequeue(
    config: str | None, url: str | None, tenant: str | None, pipeline: str, project: str, reason: str, change: str
) -> None:
    """Take CHANGE (a topic, or branch/topic) out of a pipeline; its builds are cancelled."""
    at = pages(config, url)
    body = {"pipeline": pipeline, "change": change, "reason": reason}
    at.post(f"{at.of(tenant)}/project/{quote(project)}/dequeue", body)
    click.echo(f"{change} of {project} was taken out of {pipeline}.")


@click.command("enqueue-ref")
@_config
@_url
@_tenant
@_pipeline
@_project
@click.option("--oldrev", default="", help="The commit that the ref named before.")
@click.option("--newrev", default="", help="The commit that it names; by default the one that was last seen.")
@click.option(
    "--parameter", "parameters", multiple=True, metavar="NAME=VALUE", help="For pipelines with parameters; repeatable."
)
@_reason
@_unapproved
@click.argument("ref")
def enqueue_ref(
    config: str | None,
    url: str | None,
    tenant: str | None,
    pipeline: str,
    project: str,
    oldrev: str,
    newrev: str,
    parameters: tuple[str, ...],
    reason: str,
    unapproved: bool,
    ref: str,
) -> None:
    """Put REF (refs/tags/v1, refs/heads/master) into a pipeline, as if it had been pushed.

    A VALUE is text, or JSON where the parameter is no text: true, or ["a", "b"]."""
    at = pages(config, url)
    said = {"oldrev": oldrev, "newrev": newrev, "parameters": dict(map(_parameter, parameters))}
    body = {
        "pipeline": pipeline,
        "ref": ref,
        "reason": reason,
        **{name: value for name, value in said.items() if value},
    }
    at.post(f"{at.of(tenant)}/project/{quote(project)}/enqueue", body | ({"unapproved": True} if unapproved else {}))
    click.echo(f"{ref} of {project} is in {pipeline}.")


def _parameter(said: str) -> tuple[str, Any]:
    name, equals, value = said.partition("=")
    if not equals:
        raise UserError(f"--parameter {said}: say NAME=VALUE")
    if value in ("true", "false") or value.startswith("["):
        try:
            return name, json.loads(value)
        except ValueError:
            return name, value
    return name, value


@click.command("dequeue-ref")
@_config
@_url
@_tenant
@_pipeline
@_project
@click.option("--newrev", default="", help="Only the update to this commit.")
@_reason
@click.argument("ref")
def dequeue_ref(
    config: str | None,
    url: str | None,
    tenant: str | None,
    pipeline: str,
    project: str,
    newrev: str,
    reason: str,
    ref: str,
) -> None:
    """Take REF (refs/tags/v1, refs/heads/master) out of a pipeline; its builds are cancelled."""
    at = pages(config, url)
    body = {"pipeline": pipeline, "ref": ref, "reason": reason, **({"newrev": newrev} if newrev else {})}
    at.post(f"{at.of(tenant)}/project/{quote(project)}/dequeue", body)
    click.echo(f"{ref} of {project} was taken out of {pipeline}.")


@click.command()
@_config
@_url
@_tenant
@_reason
@click.argument("build")
def cancel(config: str | None, url: str | None, tenant: str | None, reason: str, build: str) -> None:
    """Stop one BUILD (its id, as the pages have it): its job counts as one that did not pass."""
    at = pages(config, url)
    at.post(f"{at.of(tenant)}/build/{quote(build, safe='')}/cancel", {"reason": reason})
    click.echo(f"The build {build} is stopped.")


@click.command()
@_config
@_url
@_tenant
@_pipeline
@_reason
@_unapproved
@click.argument("changes", nargs=-1, required=True)
def promote(
    config: str | None,
    url: str | None,
    tenant: str | None,
    pipeline: str,
    reason: str,
    unapproved: bool,
    changes: tuple[str, ...],
) -> None:
    """Move CHANGES (<project>/<branch>/<topic>, project with its host) to the head of their queue, in this order."""
    at = pages(config, url)
    more = {"unapproved": True} if unapproved else {}
    at.post(f"{at.of(tenant)}/promote", {"pipeline": pipeline, "changes": list(changes), "reason": reason, **more})
    click.echo(f"At the head of {pipeline} now: {', '.join(changes)}.")


@click.command()
@_config
@_url
@_tenant
@_reason
@click.option("--full", is_flag=True, help="With the configuration of every project of every tenant.")
@click.argument("projects", nargs=-1)
def reconfigure(
    config: str | None, url: str | None, tenant: str | None, reason: str, full: bool, projects: tuple[str, ...]
) -> None:
    """Read the tenant file anew; or, of one tenant, the configuration of PROJECTS.

    Tenants and projects that the file names now come, and others go, on every process.  A file that is broken is
    refused, and everything goes on as before.  With --tenant, or with PROJECTS, their configuration is read (of all
    when none is named), and not the tenant file.  What is pushed is read by itself: this is for when you doubt it."""
    at = pages(config, url)
    if full and (tenant is not None or projects):
        raise UserError("--full is of every tenant: leave out --tenant and PROJECTS")
    if tenant is None and not projects:
        said = at.post("/api/reconfigure", {"full": full, "reason": reason})["text"]
        click.echo(f"The tenant file was read anew: {said}.")
        return
    chosen = at.tenant(tenant)
    at.post(f"{at.of(chosen)}/reconfigure", {"projects": list(projects), "reason": reason})
    click.echo(f"Read anew: {', '.join(projects) or f'all projects of {chosen}'}.")


@click.command()
@_config
@_url
@_tenant
@click.option("--system", is_flag=True, help="What was done to the whole system: processes, zones.")
@click.option("--limit", type=click.IntRange(1, 1_000), default=20, show_default=True, help="How many at most.")
@click.option("--json", "as_json", is_flag=True, help="As the API answers.")
def actions(config: str | None, url: str | None, tenant: str | None, system: bool, limit: int, as_json: bool) -> None:
    """Show what was done by hand, latest first: when, who, what, why, and what came of it."""
    at = pages(config, url)
    place = "/api/actions" if system else f"{at.of(tenant)}/actions"
    found = at.get(f"{place}?limit={limit}")
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    for one in found:
        who = f"{one['who']} ({one['authenticator']})" if one["authenticator"] else one["who"]
        words = [f"{one['time']}  {who}", f"from {one['origin']}" if one["origin"] else "", f"{one['verb']}:"]
        why = f" because {one['reason']}" if one["reason"] else ""
        said = f"{' '.join(filter(None, words))} {one['subject']}{why}"
        click.echo(f"{said}  -> {one['outcome'] or 'not known yet'}")
    if not found:
        click.echo("Nothing was done by hand yet.")


@click.command()
@_config
@_url
@_project
@_reason
@click.option("--branch", default="master", show_default=True)
@click.option("--as", "who", default="", help="Under this name, which must be yours: to refs/approvals/NAME/….")
@click.argument("topic")
def approve(config: str | None, url: str | None, project: str, reason: str, branch: str, who: str, topic: str) -> None:
    """Approve the change TOPIC: push its commit to refs/approved/<branch>/<topic>.

    Where several people approve, say --as NAME: it goes to refs/approvals/<name>/<branch>/<topic>.

    One that is approved already is tested again, as by `headgate recheck`.  A running Headgate that knows your token
    keeps who did it and why."""
    kind = f"approvals/{who}" if who else "approved"
    commit, again = asyncio.run(_push(_url_of(config, project), branch, topic, kind))
    if again:
        asyncio.run(_push(_url_of(config, project), branch, topic, "recheck"))
        click.echo(f"{topic} of {project} was approved already, and is tested again: {commit}")
    else:
        click.echo(f"Approved {topic} of {project}: {commit}")
    if missed := _note_approval(config, url, project, f"{branch}/{topic}", commit, reason):
        click.echo(f"This is not in the log of what was done by hand: {missed}", err=True)


def _note_approval(config: str | None, url: str | None, project: str, change: str, commit: str, reason: str) -> str:
    """Answer with why it cannot be kept."""
    body = {"project": project, "change": change, "commit": commit, "reason": reason}
    try:
        at = pages(config, url)
        at.post(f"{at.of(_having(config, project)[0])}/approval", body)
    except UserError as why:
        try:
            asyncio.run(noted(read(find(config)), Deed("approve", f"{change} of {project}", reason, project)))
        except UserError:
            return str(why)
    return ""


@click.command()
@_config
@_project
@click.option("--branch", default="master", show_default=True)
@click.argument("topic")
def recheck(config: str | None, project: str, branch: str, topic: str) -> None:
    """Have the change TOPIC tested again: push its commit to refs/recheck/<branch>/<topic>.

    Headgate removes that ref once every pipeline that takes the change up has been told.  Where the change is being
    tested already, nothing happens."""
    commit, _ = asyncio.run(_push(_url_of(config, project), branch, topic, "recheck"))
    click.echo(f"{topic} of {project} is tested again: {commit}")


def _url_of(config: str | None, project: str) -> str:
    return _having(config, project)[1]


def _having(config: str | None, project: str) -> tuple[str, str]:
    """The first tenant that has the project, and the URL of its repository.  Raise UserError."""
    settings = read(find(config))
    at = connections(settings)
    for name, tenant in tenants(settings, at)[1].tenants.items():
        if (source := tenant.find(project)) is not None:
            return name, at[source.connection].url(source.project)
    raise UserError(f"no tenant has the project {project!r}")


async def _push(url: str, branch: str, topic: str, kind: str) -> tuple[str, bool]:
    """The proposed commit, and whether the ref of this kind named it already."""
    proposed, ref = f"refs/for/{branch}/{topic}", f"refs/{kind}/{branch}/{topic}"
    with tempfile.TemporaryDirectory() as name:
        here = Path(name)
        try:
            await git("init", "-q", "--bare", name)
            await git("fetch", "-q", "--", url, f"+{proposed}:{proposed}", at=here, remote=True)
            commit = (await git("rev-parse", proposed, at=here))[1].strip()
            _, there = await git("ls-remote", "--", url, ref, at=here, remote=True)
            if again := there.split("\t")[0] == commit:
                return commit, again
            await git("push", "-q", "-f", "--", url, f"{proposed}:{ref}", at=here, remote=True)
        except GitError as error:
            raise UserError(f"{url} {proposed}: {error}") from error
    return commit, again
