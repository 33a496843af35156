"""Implement the commands with which operators intervene, such as enqueue and close, and `headgate actions`."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import click

from headgate.base.errors import UserError
from headgate.cli.apicommands import either
from headgate.cli.identity.pages import pages
from headgate.cli.terminal.say import say

_config = click.option("--config", metavar="FILE", help="The settings file.")
_url = click.option("--url", help="URL of Headgate's pages and API. Default: from the settings.")
_tenant = click.option("--tenant", help="The tenant; optional if there is only one.")
_pipeline = click.option("--pipeline", required=True)
_project = click.option("--project", required=True)
_queue = click.option(
    "--queue", default="", help="One queue of the pipeline, as `headgate status` names it. Default: all."
)
_pipeline_argument = click.argument("pipeline", metavar="PIPELINE", default="")
_pipeline_option = click.option("--pipeline", "option", default="", help="Same as PIPELINE.")
_reason = click.option("--reason", default="", help="The reason, recorded with the action.")
_unapproved = click.option(
    "--unapproved",
    is_flag=True,
    help="Accept exactly this patchset even if it does not meet the pipeline's requirements.",
)


@click.command()
@_config
@_url
@_tenant
@_pipeline
@_project
@_reason
@_unapproved
@either("change")
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
    """Put CHANGE (a topic, branch/topic, or its number) into a pipeline.

    A pipeline that lands changes accepts a change only if it meets the pipeline's requirements, unless you add
    --unapproved."""
    at = pages(config, url)
    body = {"pipeline": pipeline, "change": change, "reason": reason, **({"unapproved": True} if unapproved else {})}
    at.post(f"{at.of(tenant)}/project/{quote(project)}/enqueue", body)
    say(f"{change} of {project} is in {pipeline}.")


@click.command()
@_config
@_url
@_tenant
@_pipeline
@_project
@_reason
@click.option("--ref", metavar="REF", help="A ref instead of a change; same as `dequeue-ref`.")
@click.option("--change", "named", metavar="CHANGE", help="Same as CHANGE.")
@click.argument("change", required=False)
def dequeue(
    config: str | None,
    url: str | None,
    tenant: str | None,
    pipeline: str,
    project: str,
    reason: str,
    ref: str | None,
    named: str | None,
    change: str | None,
) -> None:
    """Take CHANGE (a topic, branch/topic, or its number) out of a pipeline, and cancel its builds."""
    targets = [(kind, one) for kind, one in (("change", change), ("change", named), ("ref", ref)) if one is not None]
    if len(targets) != 1:
        raise click.UsageError("give exactly one of CHANGE, --change and --ref")
    at, (kind, one) = pages(config, url), targets[0]
    at.post(f"{at.of(tenant)}/project/{quote(project)}/dequeue", {"pipeline": pipeline, kind: one, "reason": reason})
    say(f"{one} of {project} was removed from {pipeline}.")


@click.command("enqueue-ref")
@_config
@_url
@_tenant
@_pipeline
@_project
@click.option("--oldrev", default="", help="The commit that the ref pointed to before.")
@click.option("--newrev", default="", help="The commit that the ref points to. Default: the last one seen.")
@click.option(
    "--parameter", "parameters", multiple=True, metavar="NAME=VALUE", help="For pipelines with parameters; repeatable."
)
@_reason
@_unapproved
@either("ref")
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

    VALUE is a plain string; for a parameter of another type it is JSON, such as true or ["a", "b"]."""
    at = pages(config, url)
    optional = {"oldrev": oldrev, "newrev": newrev, "parameters": dict(map(_parameter, parameters))}
    body = {
        "pipeline": pipeline,
        "ref": ref,
        "reason": reason,
        **{name: value for name, value in optional.items() if value},
    }
    at.post(f"{at.of(tenant)}/project/{quote(project)}/enqueue", body | ({"unapproved": True} if unapproved else {}))
    say(f"{ref} of {project} is in {pipeline}.")


def _parameter(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise UserError(f"--parameter {text}: write it as NAME=VALUE")
    # Parse only these forms as JSON: the string 1.10 would become the number 1.1.
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
@click.option("--newrev", default="", help="Dequeue only the update to this commit.")
@_reason
@either("ref")
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
    """Take REF (refs/tags/v1, refs/heads/master) out of a pipeline, and cancel its builds."""
    at = pages(config, url)
    body = {"pipeline": pipeline, "ref": ref, "reason": reason, **({"newrev": newrev} if newrev else {})}
    at.post(f"{at.of(tenant)}/project/{quote(project)}/dequeue", body)
    say(f"{ref} of {project} was removed from {pipeline}.")


@click.command()
@_config
@_url
@_tenant
@_reason
@click.argument("build")
def cancel(config: str | None, url: str | None, tenant: str | None, reason: str, build: str) -> None:
    """Stop the build with the id BUILD (see `headgate builds`). Its job counts as not passed."""
    at = pages(config, url)
    at.post(f"{at.of(tenant)}/build/{quote(build, safe='')}/cancel", {"reason": reason})
    say(f"Stopped the build {build}.")


@click.command()
@_config
@_url
@_tenant
@_reason
@click.argument("build")
def rerun(config: str | None, url: str | None, tenant: str | None, reason: str, build: str) -> None:
    """Run the job of the failed build with the id BUILD (see `headgate builds`) again, while its change is in its
    queue.

    Jobs that depend on it run again, too, and the changes behind it in a gate are tested again."""
    at = pages(config, url)
    at.post(f"{at.of(tenant)}/build/{quote(build, safe='')}/rerun", {"reason": reason})
    say(f"The job of the build {build} runs again.")


@click.command()
@_config
@_url
@_tenant
@_pipeline
@_reason
@_unapproved
@click.option("--changes", "first", multiple=True, metavar="CHANGES", help="Same as CHANGES.")
@click.argument("changes", nargs=-1)
def promote(
    config: str | None,
    url: str | None,
    tenant: str | None,
    pipeline: str,
    reason: str,
    unapproved: bool,
    first: tuple[str, ...],
    changes: tuple[str, ...],
) -> None:
    """Move CHANGES to the head of their queue, in this order.

    Write each as <project>/<branch>/<topic>, where <project> includes its host."""
    wanted = [*first, *changes]
    if not wanted:
        raise click.UsageError("name at least one change: CHANGES")
    at = pages(config, url)
    more = {"unapproved": True} if unapproved else {}
    at.post(f"{at.of(tenant)}/promote", {"pipeline": pipeline, "changes": wanted, "reason": reason, **more})
    say(f"Now at the head of {pipeline}: {', '.join(wanted)}.")


@click.command()
@_config
@_url
@_tenant
@_reason
@click.option("--full", is_flag=True, help="Also read the configuration of every project of every tenant.")
@click.argument("projects", nargs=-1)
def reconfigure(
    config: str | None, url: str | None, tenant: str | None, reason: str, full: bool, projects: tuple[str, ...]
) -> None:
    """Reload the tenant file, or the configuration of PROJECTS of one tenant.

    Every process adds the tenants and projects that are new in the file, and removes those that are missing. A broken
    file is rejected, and nothing changes. With --tenant or PROJECTS, the command reloads the configuration of these
    projects (default: all of the tenant) instead of the tenant file. Headgate reloads pushed configuration
    automatically; use this command only if you suspect that it missed something."""
    at = pages(config, url)
    if full and (tenant is not None or projects):
        raise UserError("--full reloads every tenant: leave out --tenant and PROJECTS")
    if tenant is None and not projects:
        outcome = at.post("/api/reconfigure", {"full": full, "reason": reason})["text"]
        say(f"Reloaded the tenant file: {outcome}.")
        return
    chosen = at.tenant(tenant)
    at.post(f"{at.of(chosen)}/reconfigure", {"projects": list(projects), "reason": reason})
    say(f"Reloading: {', '.join(projects) or f'all projects of {chosen}'}.")


@click.command()
@_config
@_url
@_tenant
@click.option("--system", is_flag=True, help="Show actions on the system itself: processes, zones.")
@click.option(
    "--limit", type=click.IntRange(1, 1_000), default=20, show_default=True, help="Maximum number of actions to show."
)
@click.option("--json", "as_json", is_flag=True, help="Print the JSON that the API returns.")
def actions(config: str | None, url: str | None, tenant: str | None, system: bool, limit: int, as_json: bool) -> None:
    """Show the manual actions of people, latest first: when, who, what, why, and the result."""
    at = pages(config, url)
    place = "/api/actions" if system else f"{at.of(tenant)}/actions"
    found = at.get(f"{place}?limit={limit}")
    if as_json:
        say(json.dumps(found, indent=2))
        return
    for one in found:
        who = f"{one['who']} ({one['authenticator']})" if one["authenticator"] else one["who"]
        words = [f"{one['time']}  {who}", f"from {one['origin']}" if one["origin"] else "", f"{one['verb']}:"]
        why = f" because {one['reason']}" if one["reason"] else ""
        line = f"{' '.join(filter(None, words))} {one['subject']}{why}"
        say(f"{line}  -> {one['outcome'] or 'not known yet'}")
    if not found:
        say("There are no recorded actions yet.")


@click.command("close")
@_config
@_url
@_tenant
@_queue
@_pipeline_option
@click.option("--reason", required=True, help="The reason, shown with the queues.")
@_pipeline_argument
def close(
    config: str | None, url: str | None, tenant: str | None, queue: str, option: str, reason: str, pipeline: str
) -> None:
    """Stop landing changes from PIPELINE until you open it again.

    Changes still enter the pipeline and are tested. After this command returns, only the changes that it lists can
    still land."""
    pipeline = _named_once(pipeline, option)
    at = pages(config, url)
    body = {"pipeline": pipeline, "queue": queue, "reason": reason}
    answer = at.post(f"{at.of(tenant)}/close", body)
    say(f"{_what(pipeline, queue)} is closed: nothing lands until you run `headgate open {pipeline}`.")
    for change in answer["landing"]:
        say(f"May still land, because its push had already begun: {change}")


@click.command("open")
@_config
@_url
@_tenant
@_queue
@_pipeline_option
@click.option("--reason", default="", help="The reason, recorded with the action.")
@_pipeline_argument
def open_again(
    config: str | None, url: str | None, tenant: str | None, queue: str, option: str, reason: str, pipeline: str
) -> None:
    """Let changes land from PIPELINE again. Changes that passed in the meantime land immediately."""
    pipeline = _named_once(pipeline, option)
    at = pages(config, url)
    at.post(f"{at.of(tenant)}/open", {"pipeline": pipeline, "queue": queue, "reason": reason})
    say(f"{_what(pipeline, queue)} is open.")


def _named_once(pipeline: str, option: str) -> str:
    """Return the pipeline, which is an argument or, as for the other commands about queues, an option."""
    if bool(pipeline) == bool(option):
        raise click.UsageError("name the PIPELINE, once")
    return pipeline or option


def _what(pipeline: str, queue: str) -> str:
    return f"Queue {queue} of {pipeline}" if queue else pipeline
