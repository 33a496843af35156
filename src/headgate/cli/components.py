"""Implement `headgate components`: show Headgate's processes; pause and stop them; forget a zone's machines."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any
from urllib.parse import quote

import click
import msgspec

from headgate.base.errors import UserError
from headgate.base.texts import plain_json
from headgate.cli.groups import CommandGroup
from headgate.cli.identity.pages import PageClient, pages
from headgate.cli.terminal.say import say
from headgate.cli.terminal.screen import Terminal, TextTable
from headgate.cli.terminal.text import Style
from headgate.web.shapes import ComponentShape, ProblemShape

_config = click.option("--config", metavar="FILE", help="The settings file.")
_url = click.option("--url", help="URL of Headgate's pages and API. Default: from the settings.")
_reason = click.option("--reason", default="", help="The reason, recorded with the action.")
Where = tuple[str | None, str | None]
"""Settings file and URL of the pages; None for an option that was not given."""


def _where(work: Callable[..., None]) -> Callable[..., None]:
    """Add the options for settings and URL, which may be given before or after the subcommand."""

    @wraps(work)
    def at(before: Where, config: str | None, url: str | None, **options: object) -> None:
        work((config or before[0], url or before[1]), **options)

    decorated: Callable[..., None] = at
    return _config(_url(click.pass_obj(decorated)))


@click.group(name="components", invoke_without_command=True, cls=CommandGroup)
@_config
@_url
@click.option("--json", "as_json", is_flag=True, help="Print the JSON that the API returns.")
@click.pass_context
def command(context: click.Context, config: str | None, url: str | None, as_json: bool) -> None:
    """Show Headgate's running processes; pause, unpause or stop them."""
    # The options may also be given before the subcommand, which reads them from here.
    context.obj = (config, url)
    if context.invoked_subcommand is not None:
        return
    at = pages(config, url)
    found = at.get("/api/components")
    if as_json:
        say(plain_json(msgspec.json.format(msgspec.json.encode(found)).decode()))
    else:
        terminal = Terminal()
        for problem in msgspec.convert(_problems(at), list[ProblemShape]):
            terminal.print(f"{problem.project}: {problem.text}", style="red")
        components = msgspec.convert(found, dict[str, list[ComponentShape]])
        terminal.print(_table(components))
        for text in lacking(components):
            terminal.print(text, style="yellow")


def _problems(at: PageClient) -> Any:  # JSON
    try:
        return at.get("/api/problems")
    except UserError:
        return at.get("/api/troubles")  # a server of the previous release


def lacking(components: dict[str, list[ComponentShape]]) -> list[str]:
    """Return a line, `<component>: <text>`, for each prerequisite of builds that a component lacks."""
    return [f"{one.name}: {text}" for found in components.values() for one in found for text in one.lacks]


def _table(components: dict[str, list[ComponentShape]]) -> TextTable:
    table = TextTable("component", "host", "state", "version", "zone", "work", "")
    for _, found in sorted(components.items()):
        for one in found:
            style = _style(one)
            work = f"{one.running} of {one.places}" if one.places else ""
            why = one.why if one.state == "running" and not one.accepting else "runs containers" * one.containers
            table.add_row(
                one.name, f"{one.hostname}:{one.pid}", one.state, one.version, one.zone, work, why, style=style
            )
    return table


def _style(one: ComponentShape) -> Style:
    if one.state == "running":
        return "" if one.accepting else "yellow"
    return "yellow" if one.state == "paused" else "red"


@command.command()
@click.argument("names", nargs=-1, required=True)
@_reason
@_where
def pause(where: Where, names: tuple[str, ...], reason: str) -> None:
    """Pause the components NAMES: they finish their current work and take no new work."""
    _want(where, names, "paused", reason)


@command.command()
@click.argument("names", nargs=-1, required=True)
@_reason
@_where
def unpause(where: Where, names: tuple[str, ...], reason: str) -> None:
    """Resume the paused components NAMES, so that they accept work again."""
    _want(where, names, "running", reason)


@command.command()
@click.argument("names", nargs=-1, required=True)
@_reason
@_where
def stop(where: Where, names: tuple[str, ...], reason: str) -> None:
    """Stop the components NAMES: they finish their current work, and exit."""
    _want(where, names, "stopped", reason)


@command.command()
@click.argument("zone")
@_reason
@_where
def forget(where: Where, zone: str, reason: str) -> None:
    """Forget the machines of ZONE whose executors will not return, so that jobs stop waiting for them."""
    pages(*where).post(f"/api/zone/{quote(zone, safe='')}/forget", {"reason": reason})
    say(f"Zone {zone} now has only the machines of its running executors.")


def _want(where: Where, names: tuple[str, ...], state: str, reason: str) -> None:
    at = pages(*where)
    known = msgspec.convert(at.get("/api/components"), dict[str, list[ComponentShape]])
    for name in names:
        for one in _matching(name, known):
            at.post(f"/api/component/{one.name}", {"state": state, "reason": reason})
            Terminal().print(f"{one.name} will be {state}.")


def _matching(name: str, known: dict[str, list[ComponentShape]]) -> list[ComponentShape]:
    """Find a component by its name, or all of a kind on a host by `<kind>@<host>`. Raise UserError."""
    every = [(kind, one) for kind, found in known.items() for one in found]
    matches = [one for kind, one in every if name in (one.name, f"{kind}@{one.hostname}")]
    if not matches:
        raise UserError(f"there is no component {name!r}; there are {', '.join(one.name for _, one in every)}")
    return matches
