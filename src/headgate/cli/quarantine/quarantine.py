"""List, retry and drop items that were set aside."""

from __future__ import annotations

from datetime import UTC, datetime
from urllib.parse import quote

import click
import msgspec

from headgate.base.errors import UserError
from headgate.base.texts import plain_json
from headgate.cli.identity.pages import PageClient, pages
from headgate.cli.terminal.say import say
from headgate.cli.terminal.screen import Terminal
from headgate.cli.terminal.table import paragraph
from headgate.web.routes.quarantine import AsideShape, QuarantineShape

_config = click.option("--config", metavar="FILE", help="The settings file.")
_url = click.option("--url", help="Where Headgate's pages are; by default as the settings say.")
_reason = click.option("--reason", default="", help="The reason, recorded with the action.")


@click.group(name="quarantine")
def command() -> None:
    """Manage what was set aside because handling it raised errors repeatedly: events, changes, damaged records, and
    stopped parts of the scheduler. Everything else continues."""


@command.command(name="list")
@_config
@_url
@click.option("--json", "as_json", is_flag=True, help="As the API answers.")
def listing(config: str | None, url: str | None, as_json: bool) -> None:
    """List what was set aside, and the entries of the store that cannot be read."""
    answer = pages(config, url).get("/api/quarantine")
    if as_json:
        say(plain_json(msgspec.json.format(msgspec.json.encode(answer)).decode()))
        return
    found = msgspec.convert(answer, QuarantineShape)
    terminal = Terminal()
    for one in found.aside:
        terminal.print(f"{one.id}  {one.kind}  {_whose(one)}{one.what}")
        terminal.print(f"    {one.error}", style="red")
    for entry in found.damaged:
        terminal.print(f"{entry.path}: {entry.why}", style="yellow")
    if not found.aside and not found.damaged:
        terminal.print("Nothing was set aside.")


@command.command()
@_config
@_url
@click.argument("id")
def show(config: str | None, url: str | None, id: str) -> None:
    """Show what was set aside under ID."""
    one = _found(pages(config, url), id)
    since = datetime.fromtimestamp(one.since / 1000, UTC).isoformat(timespec="seconds")
    terminal = Terminal()
    for name, value in (("kind", one.kind), ("what", one.what), ("tenant", one.tenant), ("since", since)):
        terminal.print(f"{name + ':':<8}{value}")
    terminal.print(f"tries:  {one.tries}")
    terminal.print(paragraph(f"error:  {one.error}"))
    terminal.print(f"retry:  {one.retry}")


@command.command()
@_config
@_url
@_reason
@click.argument("ids", nargs=-1, required=True)
def retry(config: str | None, url: str | None, reason: str, ids: tuple[str, ...]) -> None:
    """Retry what was set aside under IDS; a stopped part of the scheduler starts again at once."""
    _do("retry", pages(config, url), reason, ids)


@command.command()
@_config
@_url
@_reason
@click.argument("ids", nargs=-1, required=True)
def drop(config: str | None, url: str | None, reason: str, ids: tuple[str, ...]) -> None:
    """Delete the items set aside under IDS."""
    _do("drop", pages(config, url), reason, ids)


def _do(what: str, at: PageClient, reason: str, ids: tuple[str, ...]) -> None:
    for id in ids:
        at.post(f"/api/quarantine/{quote(id, safe='')}", {"do": what, "reason": reason})
        say(f"{id} {'is tried again' if what == 'retry' else 'is forgotten'}.")


def _found(at: PageClient, id: str) -> AsideShape:
    found = msgspec.convert(at.get("/api/quarantine"), QuarantineShape)
    one = next((one for one in found.aside if one.id == id), None)
    if one is None:
        raise UserError(f"nothing is set aside under {id!r}; see `headgate quarantine list`")
    return one


def _whose(one: AsideShape) -> str:
    return f"tenant {one.tenant}: " if one.tenant else ""
