"""Implement `headgate quarantine` and `headgate reports`: list, retry and drop failed work and waiting reports."""

from __future__ import annotations

from datetime import UTC, datetime
from urllib.parse import quote

import click
import msgspec

from headgate.base.errors import UserError
from headgate.base.texts import plain_json
from headgate.cli.groups import CommandGroup
from headgate.cli.identity.pages import PageClient, pages
from headgate.cli.terminal.say import say
from headgate.cli.terminal.screen import Terminal, paragraph
from headgate.web.routes.quarantine import AsideShape, OutboxShape, QuarantineShape, ReportsShape

_config = click.option("--config", metavar="FILE", help="The settings file.")
_url = click.option("--url", help="URL of Headgate's pages and API. Default: from the settings.")
_reason = click.option("--reason", default="", help="The reason, recorded with the action.")


@click.group(name="quarantine", cls=CommandGroup)
def quarantine_commands() -> None:
    """Manage the quarantine: events, changes and damaged records whose handling failed repeatedly, and stopped parts of
    the scheduler. Everything else continues to work."""


@quarantine_commands.command(name="list")
@_config
@_url
@click.option("--json", "as_json", is_flag=True, help="Print the JSON that the API returns.")
def list_quarantine(config: str | None, url: str | None, as_json: bool) -> None:
    """List the contents of the quarantine, and the entries of the store that cannot be read."""
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
        terminal.print("The quarantine is empty.")


@quarantine_commands.command()
@_config
@_url
@click.argument("id")
def show(config: str | None, url: str | None, id: str) -> None:
    """Show the details of ID, an id that `headgate quarantine list` prints."""
    one = _found(pages(config, url), id)
    terminal = Terminal()
    for name, value in (("kind", one.kind), ("what", one.what), ("tenant", one.tenant), ("since", _time(one.since))):
        terminal.print(f"{name + ':':<8}{value}")
    terminal.print(f"tries:  {one.tries}")
    terminal.print(paragraph(f"error:  {one.error}"))
    terminal.print(f"retry:  {one.retry}")


@quarantine_commands.command()
@_config
@_url
@_reason
@click.argument("ids", nargs=-1, required=True)
def retry(config: str | None, url: str | None, reason: str, ids: tuple[str, ...]) -> None:
    """Retry IDS, as `headgate quarantine list` prints them. A stopped part of the scheduler restarts immediately."""
    _act("retry", pages(config, url), reason, ids)


@quarantine_commands.command()
@_config
@_url
@_reason
@click.argument("ids", nargs=-1, required=True)
def drop(config: str | None, url: str | None, reason: str, ids: tuple[str, ...]) -> None:
    """Delete IDS, as `headgate quarantine list` prints them, without handling them."""
    _act("drop", pages(config, url), reason, ids)


def _act(what: str, at: PageClient, reason: str, ids: tuple[str, ...]) -> None:
    for id in ids:
        at.post(f"/api/quarantine/{quote(id, safe='')}", {"do": what, "reason": reason})
        say(f"{id}: {'requested a retry' if what == 'retry' else 'deleted'}.")


def _found(at: PageClient, id: str) -> AsideShape:
    found = msgspec.convert(at.get("/api/quarantine"), QuarantineShape)
    one = next((one for one in found.aside if one.id == id), None)
    if one is None:
        raise UserError(f"the quarantine contains no {id!r}; see `headgate quarantine list`")
    return one


def _whose(one: AsideShape) -> str:
    return f"tenant {one.tenant}: " if one.tenant else ""


def _time(at_ms: int | None) -> str:
    return datetime.fromtimestamp((at_ms or 0) / 1000, UTC).isoformat(timespec="seconds")


@click.group(name="reports", cls=CommandGroup)
def reports_commands() -> None:
    """Manage reports to connections other than forges: mail, webhooks, chats, message queues. Each connection has an
    outbox; a report that its receiver rejects goes to the quarantine."""


@reports_commands.command(name="list")
@_config
@_url
@click.option("--json", "as_json", is_flag=True, help="Print the JSON that the API returns.")
def list_reports(config: str | None, url: str | None, as_json: bool) -> None:
    """List the reports that wait for each connection and why, and the reports in the quarantine."""
    answer = pages(config, url).get("/api/reports")
    if as_json:
        say(plain_json(msgspec.json.format(msgspec.json.encode(answer)).decode()))
        return
    found = msgspec.convert(answer, ReportsShape)
    terminal = Terminal()
    for one in found.outboxes:
        terminal.print(f"{one.connection}: {_waiting(one)}", "yellow" if one.problem else "")
        if one.problem:
            terminal.print(f"    since {_time(one.since)}: {one.problem}", "red")
    for aside in found.undelivered:
        terminal.print(f"{aside.id}  {aside.what}")
        terminal.print(f"    {aside.error}", style="red")
    if not found.outboxes and not found.undelivered:
        terminal.print("No reports wait, and none are in the quarantine.")


def _waiting(one: OutboxShape) -> str:
    if not one.waiting:
        return "nothing waits"
    return f"{one.waiting} report{'s wait' if one.waiting > 1 else ' waits'}, since {_time(one.oldest)}"


@reports_commands.command(name="retry")
@_config
@_url
@_reason
@click.argument("names", nargs=-1, required=True)
def retry_reports(config: str | None, url: str | None, reason: str, names: tuple[str, ...]) -> None:
    """Retry NAMES immediately: for a connection, all its waiting reports; for an id, a report in the quarantine.
    `headgate reports list` prints both kinds of names."""
    _act_on_reports("retry", config, url, reason, names)


@reports_commands.command(name="drop")
@_config
@_url
@_reason
@click.argument("names", nargs=-1, required=True)
def drop_reports(config: str | None, url: str | None, reason: str, names: tuple[str, ...]) -> None:
    """Delete NAMES: for a connection, all its waiting reports; for an id, a report in the quarantine. `headgate reports
    list` prints both kinds of names."""
    _act_on_reports("drop", config, url, reason, names)


def _act_on_reports(what: str, config: str | None, url: str | None, reason: str, names: tuple[str, ...]) -> None:
    at = pages(config, url)
    found = msgspec.convert(at.get("/api/reports"), ReportsShape)
    aside = {one.id for one in found.undelivered}
    for name in names:
        # Reports in the quarantine have ids, waiting ones the name of their connection; their routes differ.
        place = f"/api/quarantine/{quote(name, safe='')}" if name in aside else f"/api/reports/{quote(name, safe='')}"
        at.post(place, {"do": what, "reason": reason})
        say(f"{name}: {'requested a retry' if what == 'retry' else 'deleted'}.")
