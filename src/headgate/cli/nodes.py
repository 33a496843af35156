"""`headgate node`: machines that builds have, or that are made for them; who waits for some, and why."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar
from urllib.parse import quote

import click

from headgate.base.texts import line, plain_json
from headgate.cli.identity.pages import Pages, pages
from headgate.cli.identity.profile import everywhere

F = TypeVar("F", bound=Callable[..., Any])
CELL_MAX_CHARS = 100


def _common(command: F) -> F:
    for option in (
        click.option("--format", "form", type=click.Choice(["text", "json"]), help="By default text."),
        click.option("--tenant", help="By default the only one."),
        click.option("--url", help="Where Headgate's pages are; by default as the settings say."),
        click.option("--config", metavar="FILE", help="The settings file."),
    ):
        command = option(command)
    return command


@click.group(name="node")
def command() -> None:
    """Machines of builds, those that are made among them: what there is, who waits and why; hold and take away."""


@command.command(name="list")
@_common
@click.option("--state", help="Only those in this state.")
def listing(config: str | None, url: str | None, tenant: str | None, form: str | None, state: str | None) -> None:
    """List machines, what they do, and what is wrong with them."""
    at = pages(config, url)
    found = [one for one in at.get(f"{at.of(tenant)}/nodes") if state in (None, one["state"])]
    rows = [
        (one["id"], one["label"], one["state"], one["state_time"], one["provider"], one["interface_ip"], _about(one))
        for one in found
    ]
    heads = ("NODE", "LABEL", "STATE", "SINCE", "PROVIDER", "ADDRESS", "ABOUT")
    _told(found, form, heads, rows, "There are no machines.")


def _about(node: dict[str, Any]) -> str:
    """Return in one line who has it, and what it waits for."""
    going = f"to be {node['next_state']}" if node.get("next_state") else ""
    return "; ".join(filter(None, (going, node.get("comment"), node.get("why"))))


@command.group(name="request")
def request() -> None:
    """Builds that wait for machines, or have them."""


@request.command(name="list")
@_common
def request_list(config: str | None, url: str | None, tenant: str | None, form: str | None) -> None:
    """List them, with their place in the line, why they wait, and what was tried."""
    at = pages(config, url)
    found = at.get(f"{at.of(tenant)}/nodeset-requests")
    rows = [
        (one["uuid"], one["state"], one["position"], ",".join(one["labels"]), one["job_name"], _why(one))
        for one in found
    ]
    _told(found, form, ("REQUEST", "STATE", "PLACE", "LABELS", "JOB", "WHY"), rows, "Nobody waits for machines.")


def _why(request: dict[str, Any]) -> str:
    since = f" (since {request['why_since']})" if request.get("why") and request.get("why_since") else ""
    tried = f"; tried: {'; '.join(request['tried'])}" if request.get("tried") else ""
    return f"{request.get('why') or ''}{since}{tried}"


@command.command()
@_common
@click.option("--reason", default="", help="Why: it is shown beside the machine.")
@click.option("--for", "seconds", type=click.IntRange(0), default=86_400, show_default=True, metavar="SECONDS",
              help="How long; 0: until it is deleted.")  # fmt: skip
@click.argument("node")
def hold(
    config: str | None, url: str | None, tenant: str | None, form: str | None, reason: str, seconds: int, node: str
) -> None:
    """Keep a machine that was made, once no build has it, and give it to nobody."""
    at = pages(config, url)
    _order(at, tenant, node, {"state": "hold", "comment": reason, "hold_expiration": seconds})
    click.echo(f"{node} is held once no build has it.")


@command.command()
@_common
@click.option("--reason", default="", help="Why: it is in the list of what was done by hand.")
@click.argument("node")
def delete(config: str | None, url: str | None, tenant: str | None, form: str | None, reason: str, node: str) -> None:
    """Take a machine away that was made, once no build has it; also one that is held."""
    at = pages(config, url)
    _order(at, tenant, node, {"state": "used", "comment": reason})
    click.echo(f"{node} is taken away once no build has it.")


def _order(at: Pages, tenant: str | None, node: str, body: dict[str, Any]) -> None:
    at.put(f"{at.of(tenant)}/nodes/{quote(node, safe='')}", body)


def _told(found: Any, form: str | None, heads: Sequence[str], rows: Iterable[Sequence[Any]], nothing: str) -> None:
    """Print JSON, or columns as wide as they need be; what others wrote is one line of plain characters."""
    if (form or everywhere("format")) == "json":
        click.echo(plain_json(json.dumps(found, indent=2, ensure_ascii=False)))
        return
    shown = [[line("" if cell is None else str(cell), CELL_MAX_CHARS) for cell in row] for row in rows]
    if not shown:
        click.echo(nothing)
        return
    widths = [max(len(row[n]) for row in [list(heads), *shown]) for n in range(len(heads))]
    for row in [list(heads), *shown]:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
