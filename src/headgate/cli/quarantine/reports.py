"""Manage the reports of pipelines by mail, webhook, chat and queue: those that wait, and those that no receiver
accepts."""

from __future__ import annotations

from datetime import UTC, datetime
from urllib.parse import quote

import click
import msgspec

from headgate.base.texts import plain_json
from headgate.cli.identity.pages import pages
from headgate.cli.terminal.say import say
from headgate.cli.terminal.screen import Terminal
from headgate.web.routes.reports import OutboxShape, ReportsShape

_config = click.option("--config", metavar="FILE", help="The settings file.")
_url = click.option("--url", help="Where Headgate's pages are; by default as the settings say.")
_reason = click.option("--reason", default="", help="The reason, recorded with the action.")


@click.group(name="reports")
def command() -> None:
    """Manage reports to connections other than forges: mail, webhooks, chats, message queues. Each connection has an
    outbox; reports that no receiver accepts are set aside."""


@command.command(name="list")
@_config
@_url
@click.option("--json", "as_json", is_flag=True, help="As the API answers.")
def listing(config: str | None, url: str | None, as_json: bool) -> None:
    """List the reports that wait for each connection, with the reason, and those that were set aside."""
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
        terminal.print("Nothing was reported so far, or nothing waits.")


def _waiting(one: OutboxShape) -> str:
    if not one.waiting:
        return "nothing waits"
    return f"{one.waiting} report{'s wait' if one.waiting > 1 else ' waits'}, since {_time(one.oldest)}"


def _time(at_ms: int | None) -> str:
    return datetime.fromtimestamp((at_ms or 0) / 1000, UTC).isoformat(timespec="seconds")


@command.command()
@_config
@_url
@_reason
@click.argument("names", nargs=-1, required=True)
def retry(config: str | None, url: str | None, reason: str, names: tuple[str, ...]) -> None:
    """Try again: all that waits for a connection, at once, or a report that was set aside; NAMES are connections and
    ids, as `list` shows them."""
    _do("retry", config, url, reason, names)


@command.command()
@_config
@_url
@_reason
@click.argument("names", nargs=-1, required=True)
def drop(config: str | None, url: str | None, reason: str, names: tuple[str, ...]) -> None:
    """Drop everything that waits for a connection, or a report that was set aside; NAMES as for `retry`."""
    _do("drop", config, url, reason, names)


def _do(what: str, config: str | None, url: str | None, reason: str, names: tuple[str, ...]) -> None:
    at = pages(config, url)
    found = msgspec.convert(at.get("/api/reports"), ReportsShape)
    aside = {one.id for one in found.undelivered}
    for name in names:
        # The two kinds of names have different routes: what is set aside lies in the quarantine.
        place = f"/api/quarantine/{quote(name, safe='')}" if name in aside else f"/api/reports/{quote(name, safe='')}"
        at.post(place, {"do": what, "reason": reason})
        say(f"{name}: {'it is tried again' if what == 'retry' else 'it is dropped'}.")
