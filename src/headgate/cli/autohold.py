"""Implement `headgate autohold`: keep the work directories and machines of builds that fail."""

from __future__ import annotations

from datetime import UTC, datetime
from urllib.parse import quote

import click
import msgspec

from headgate.cli.apicommands import common, either, show_answer
from headgate.cli.groups import CommandGroup
from headgate.cli.identity.pages import pages
from headgate.cli.terminal.say import say
from headgate.cli.terminal.screen import Terminal
from headgate.web.routes.autohold import HeldShape, HoldShape

_config = click.option("--config", metavar="FILE", help="The settings file.")
_url = click.option("--url", help="URL of Headgate's pages and API. Default: from the settings.")
_tenant = click.option("--tenant", help="The tenant; optional if there is only one.")
_reason = click.option("--reason", default="", help="The reason, recorded with the action.")


class _Holds(CommandGroup):
    """Add an autohold when given a project and no command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # `autohold PROJECT JOB` is short for `autohold add`; a project with the name of a command needs the long form.
        if args and args[0] not in (*self.commands, *ctx.help_option_names):
            args = ["add", *args]
        return super().parse_args(ctx, args)


@click.group(name="autohold", cls=_Holds)
def command() -> None:
    """Keep the work directory and the machines of failed builds, so that people can inspect them.

    `headgate autohold PROJECT JOB` is short for `headgate autohold add PROJECT JOB`."""


@command.command()
@_config
@_url
@_tenant
@click.option("--change", help="Hold only builds for this change: a topic, or branch/topic.")
@click.option("--ref", help="Hold only builds for refs that fully match this regular expression.")
@click.option("--count", default=1, show_default=True, help="The number of builds to hold.")
@click.option(
    "--node-hold-expiration",
    type=int,
    metavar="SECONDS",
    help="How long to hold each build. Default: from the settings.",
)
@click.option("--reason", default="", help="The reason, shown with the held builds.")
@either("project")
@either("job")
def add(
    config: str | None,
    url: str | None,
    tenant: str | None,
    change: str | None,
    ref: str | None,
    count: int,
    node_hold_expiration: int | None,
    reason: str,
    project: str,
    job: str,
) -> None:
    """Hold the next failing builds of JOB for PROJECT."""
    at = pages(config, url)
    body = {"job": job, "count": count, "reason": reason, "node_hold_expiration": node_hold_expiration}
    body |= {name: value for name, value in (("change", change), ("ref", ref)) if value}
    at.post(f"{at.of(tenant)}/project/{quote(project)}/autohold", body)
    found = msgspec.convert(at.get(f"{at.of(tenant)}/autohold?project={quote(project, safe='')}"), list[HoldShape])
    _print(*(one for one in found[-1:]))


@command.command(name="list")
@common
@click.option("--project", default="", help="List only autoholds of this project.")
@click.option("--json", "as_json", is_flag=True, help="Same as --format json.")
def listing(
    config: str | None, url: str | None, tenant: str | None, form: str | None, project: str, as_json: bool
) -> None:
    """List autoholds and the builds that they hold."""
    at = pages(config, url)
    query = f"?project={quote(project, safe='')}" if project else ""
    answer = at.get(f"{at.of(tenant)}/autohold{query}")

    def text() -> None:
        _print(*msgspec.convert(answer, list[HoldShape]))
        if not answer:
            say("There are no autoholds.")

    show_answer(answer, "json" if as_json else form, text)


@command.command()
@common
@click.argument("id")
def show(config: str | None, url: str | None, tenant: str | None, form: str | None, id: str) -> None:
    """Show one autohold and the locations of its held builds."""
    at = pages(config, url)
    found = at.get(f"{at.of(tenant)}/autohold/{quote(id, safe='')}")
    show_answer(found, form, lambda: _print(msgspec.convert(found, HoldShape)))


@command.command()
@_config
@_url
@_tenant
@_reason
@click.argument("id")
def delete(config: str | None, url: str | None, tenant: str | None, reason: str, id: str) -> None:
    """Delete the autohold ID: hold no more builds for it, and release its held builds immediately."""
    at = pages(config, url)
    query = f"?reason={quote(reason, safe='')}" if reason else ""
    at.delete(f"{at.of(tenant)}/autohold/{quote(id, safe='')}{query}")
    say(f"Deleted the autohold {id} and released its builds.")


def _print(*found: HoldShape) -> None:
    terminal = Terminal()
    for one in found:
        of = "" if one.ref_filter == ".*" else f" for {one.ref_filter}"
        why = f": {one.reason}" if one.reason else ""
        count = f"{one.current_count} of {one.max_count} held"
        terminal.print(f"{one.id}  {one.job} of {one.project}{of}, {count}{why}")
        for held in one.nodes:
            terminal.print(f"    {_held(held)}")


def _held(held: HeldShape) -> str:
    if held.over:
        return f"build {held.build} was released"
    where = f": {held.directory} on {held.executor}" if held.directory else ""
    machines = f", machines {', '.join(held.nodes)}" if held.nodes else ""
    return f"build {held.build} until {datetime.fromtimestamp(held.until, UTC).isoformat()}{where}{machines}"
