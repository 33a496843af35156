"""Implement commands of Zuul's client, which query the API for builds, buildsets, jobs and machines."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import click

from headgate.base.errors import UserError
from headgate.base.texts import line, visible
from headgate.cli.apicommands import CELL_MAX_CHARS, common, show_answer, table, truth
from headgate.cli.identity.pages import PageClient, pages
from headgate.cli.terminal.say import say

F = TypeVar("F", bound=Callable[..., Any])
STATES = {
    "normal": {},
    "pause-trigger": {"trigger_queue_paused": True},
    "discard-trigger": {"trigger_queue_discarding": True},
    "pause-result": {"trigger_queue_paused": True, "result_queue_paused": True},
}
"""Requested state -> the flags to set; all other FLAGS are cleared."""
FLAGS = ("trigger_queue_discarding", "trigger_queue_paused", "result_queue_paused")
BUILD = ("uuid", "job_name", "result", "start_time", "end_time", "duration", "voting", "final", "log_url", "nodeset",
         "error_detail", "pipeline", "event_id")  # fmt: skip
"""Fields of a build that are shown, in this order."""


def _of_a_branch(command: F) -> F:
    """Add the options that name a pipeline, a project and its branch."""
    for name in ("--branch", "--project", "--pipeline"):
        command = click.option(name, required=True)(command)
    return command


def _filters(*names: str) -> Callable[[F], F]:
    def decorate(command: F) -> F:
        for name in reversed(names):
            spelt = [f"--{name.replace('_', '-')}", *(["--job"] if name == "job_name" else [])]
            more = ", * matches any text" if name in ("project", "pipeline", "branch", "job_name") else ""
            command = click.option(
                *spelt, name, multiple=True, help=f"Filter by this value{more}; repeat to allow several."
            )(command)
        return command

    return decorate


def _paged(command: F) -> F:
    command = click.option(
        "--skip", type=click.IntRange(0), default=0, show_default=True, help="Skip this many results."
    )(command)
    return click.option(
        "--limit", type=click.IntRange(1, 1_000), default=50, show_default=True, help="Maximum number of results."
    )(command)


def _query(filters: Mapping[str, Any]) -> str:
    return urlencode([(name, one) for name, value in filters.items() for one in _each(value)])


def _each(value: Any) -> list[Any]:
    if isinstance(value, tuple):
        return list(value)
    # The API expects true and false in lower case.
    return [] if value is None else [str(value).lower() if isinstance(value, bool) else value]


def _change(ref: Mapping[str, Any]) -> str:
    return f"{ref['change']},{str(ref['patchset'])[:8]}" if ref.get("change") is not None else str(ref["ref"])


@click.command()
@common
@_filters("project", "pipeline", "job_name", "change", "branch", "patchset", "ref", "newrev", "uuid", "result")
@truth("voting", "non_voting", "List only voting or only non-voting builds.")
@truth("final", "not_final", "List only final builds, or only builds that a later attempt replaced.")
@truth("held", "not_held", "List only held builds, or only builds that are not held.")
@_paged
def builds(config: str | None, url: str | None, tenant: str | None, form: str | None, **filters: Any) -> None:
    """List builds: running ones first, then finished ones, latest first."""
    at = pages(config, url)
    found = at.get(f"{at.of(tenant)}/builds?{_query(filters)}")

    def text() -> None:
        rows = [
            (b["uuid"], b["job_name"], b["ref"]["project"], _change(b["ref"]), b["ref"]["branch"], b["pipeline"],
             b["result"] or "running", b["duration"], b["end_time"])
            for b in found
        ]  # fmt: skip
        heads = ("UUID", "JOB", "PROJECT", "CHANGE", "BRANCH", "PIPELINE", "RESULT", "SECONDS", "ENDED")
        table(heads, rows, "No matching builds.")

    show_answer(found, form, text)


@click.command()
@common
@_filters("project", "pipeline", "change", "branch", "patchset", "ref", "newrev", "uuid", "result")
@_paged
def buildsets(config: str | None, url: str | None, tenant: str | None, form: str | None, **filters: Any) -> None:
    """List buildsets: running ones first, then finished ones, latest first."""
    at = pages(config, url)
    found = at.get(f"{at.of(tenant)}/buildsets?{_query(filters)}")

    def text() -> None:
        rows = [
            (b["uuid"], b["refs"][0]["project"], _change(b["refs"][0]), b["refs"][0]["branch"], b["pipeline"],
             b["result"] or "running", b["last_build_end_time"])
            for b in found
        ]  # fmt: skip
        table(("UUID", "PROJECT", "CHANGE", "BRANCH", "PIPELINE", "RESULT", "ENDED"), rows, "No matching buildsets.")

    show_answer(found, form, text)


@click.command("build-info")
@common
@click.option("--uuid", "named", help="Same as UUID.")
@click.option("--show-artifacts", is_flag=True, help="Print the build's artifacts.")
@click.option("--show-inventory", is_flag=True, help="Print the inventory of the machines that the build used.")
@click.option("--show-job-output", is_flag=True, help="Print the build's log.")
@click.argument("uuid", required=False)
def build_info(
    config: str | None,
    url: str | None,
    tenant: str | None,
    form: str | None,
    named: str | None,
    show_artifacts: bool,
    show_inventory: bool,
    show_job_output: bool,
    uuid: str | None,
) -> None:
    """Show the build UUID: its details, or its log, artifacts or inventory."""
    # Zuul's client has the option, Headgate's commands take an argument.
    wanted = uuid or named
    if not wanted:
        raise click.UsageError("give the UUID of a build")
    at = pages(config, url)
    found = at.get(f"{at.of(tenant)}/build/{quote(wanted, safe='')}")
    if show_job_output or show_inventory:
        name = "job-output.txt" if show_job_output else "zuul-info/inventory.yaml"
        say(visible(_log(at, found, name)), nl=False)
        return
    if show_artifacts:
        rows = [(one["name"], one["url"]) for one in found["artifacts"]]
        show_answer(found["artifacts"], form, lambda: table(("NAME", "URL"), rows, "The build has no artifacts."))
        return

    def text() -> None:
        ref = found["ref"]
        facts = {name: found.get(name) for name in BUILD}
        facts |= {"project": ref["project"], "change": _change(ref), "branch": ref["branch"], "ref_url": ref["ref_url"]}
        for name, value in {**facts, "buildset": found["buildset"]["uuid"]}.items():
            say(f"{name + ':':<14} {line('' if value is None else str(value), 1_000)}".rstrip())

    show_answer(found, form, text)


def _log(at: PageClient, build: Mapping[str, Any], name: str) -> str:
    """Return a file of the build's log, which is fetched only from this server. Raise UserError."""
    place = build.get("log_url")
    if not place:
        raise UserError(f"build {build['uuid']} has no log")
    # Match from `/t/` on: the part before it is the public URL, which may be unreachable from here.
    ours = re.search(rf"/t/[^/]+/logs/{re.escape(build['uuid'])}/$", urlsplit(place).path)
    # The history may contain URLs of other log servers, which must not get the user's token.
    if ours is None:
        raise UserError(f"the log is on another server, to which Headgate does not send your token; open {place}{name}")
    return at.text(f"{ours[0]}{name}")


@click.command("job-graph")
@common
@_of_a_branch
def job_graph(
    config: str | None,
    url: str | None,
    tenant: str | None,
    form: str | None,
    pipeline: str,
    project: str,
    branch: str,
) -> None:
    """Show the jobs that a branch of a project runs in a pipeline, and what each depends on."""
    at = pages(config, url)
    found = at.get(f"{at.of(tenant)}/{_frozen(pipeline, project, branch)}/freeze-jobs")
    rows = [
        (one["name"], ", ".join(f"{d['name']}{' (soft)' if d['soft'] else ''}" for d in one["dependencies"]))
        for one in found
    ]
    show_answer(found, form, lambda: table(("JOB", "DEPENDENCIES"), rows, "No jobs."))


@click.command("freeze-job")
@common
@_of_a_branch
@click.option("--job", required=True)
def freeze_job(
    config: str | None,
    url: str | None,
    tenant: str | None,
    form: str | None,
    pipeline: str,
    project: str,
    branch: str,
    job: str,
) -> None:
    """Show the frozen job of a branch in a pipeline: its playbooks, nodeset and variables."""
    at = pages(config, url)
    found = at.get(f"{at.of(tenant)}/{_frozen(pipeline, project, branch)}/freeze-job/{quote(job)}")

    def text() -> None:
        say(f"Job: {line(found['job'], CELL_MAX_CHARS)}\nNodeset: {line(found['nodeset']['name'], CELL_MAX_CHARS)}")
        for phase in ("pre_playbooks", "playbooks", "post_playbooks", "cleanup_playbooks"):
            for book in found.get(phase) or ():
                trusted = " [trusted]" if book["trusted"] else ""
                where = f"{book['connection']}:{book['project']}:{book['path']}@{book['branch']}"
                say(f"{phase.replace('_', ' ')}: {line(where, 1_000)}{trusted}")
        say(f"Vars: {json.dumps(found['vars'], sort_keys=True)}")

    show_answer(found, form, text)


def _frozen(pipeline: str, project: str, branch: str) -> str:
    return f"pipeline/{quote(pipeline, safe='')}/project/{quote(project)}/branch/{quote(branch)}"


@click.command("node-list")
@common
def node_list(config: str | None, url: str | None, tenant: str | None, form: str | None) -> None:
    """List the machines that builds use."""
    at = pages(config, url)
    found = at.get(f"{at.of(tenant)}/nodes")
    rows = [(n["id"], ", ".join(n["type"]), n["state"], n["provider"], n["comment"]) for n in found]
    show_answer(
        found, form, lambda: table(("NODE", "LABELS", "STATE", "PROVIDER", "COMMENT"), rows, "No build uses machines.")
    )


@click.command("node-set-state")
@common
@click.option("--reason", default="", help="The reason; shown with the machine.")
@click.argument("node")
@click.argument("state", type=click.Choice(["hold", "used"]))
def node_set_state(
    config: str | None,
    url: str | None,
    tenant: str | None,
    form: str | None,
    reason: str,
    node: str,
    state: str,
) -> None:
    """Hold a machine (hold), or delete it (used), once no build uses it."""
    at = pages(config, url)
    at.put(f"{at.of(tenant)}/nodes/{quote(node, safe='')}", {"state": state, "comment": reason})
    show_answer({"uuid": node, "state": state}, form, lambda: say(f"{node}: {state} once no build uses it."))


@click.command("nodeset-request-list")
@common
def nodeset_request_list(config: str | None, url: str | None, tenant: str | None, form: str | None) -> None:
    """List builds that wait for machines or use them."""
    at = pages(config, url)
    found = at.get(f"{at.of(tenant)}/nodeset-requests")
    rows = [
        (r["uuid"], r["state"], ", ".join(r["labels"]), r["pipeline_name"], r["job_name"], r["request_time"])
        for r in found
    ]
    heads = ("REQUEST", "STATE", "LABELS", "PIPELINE", "JOB", "SINCE")
    show_answer(found, form, lambda: table(heads, rows, "No build waits for machines."))


@click.command("nodeset-request-delete")
@common
@click.argument("request")
def nodeset_request_delete(
    config: str | None, url: str | None, tenant: str | None, form: str | None, request: str
) -> None:
    """Cancel a request for machines, and the build that waits for them."""
    at = pages(config, url)
    at.delete(f"{at.of(tenant)}/nodeset-requests/{quote(request, safe='')}")
    show_answer({"uuid": request}, form, lambda: say(f"{request}: cancelled."))


@click.command("manage-events")
@common
@click.option("--all-tenants", is_flag=True, help="Apply to every tenant that you may see.")
@click.option("--reason", default="", help="The reason; shown in the status.")
@click.argument("state", type=click.Choice(list(STATES)))
def manage_events(
    config: str | None,
    url: str | None,
    tenant: str | None,
    form: str | None,
    all_tenants: bool,
    reason: str,
    state: str,
) -> None:
    """Pause or resume the event queues of a tenant: queue trigger events without handling them (pause-trigger), discard
    them (discard-trigger), pause trigger and result events (pause-result), or resume everything (normal)."""
    at = pages(config, url)
    names = [one["name"] for one in at.get("/api/tenants")] if all_tenants else [at.tenant(tenant)]
    # Send every flag, so that the new state fully replaces the previous one.
    flags = {name: STATES[state].get(name, False) for name in FLAGS}
    for name in names:
        at.post(f"/api/tenant/{quote(name, safe='')}/state", {**flags, "reason": reason or None})
    show_answer(names, form, lambda: say(f"{', '.join(names)}: {state}."))
