"""Share what commands that query the API have in common: their options, and answers as JSON or as columns."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import click

from headgate.base.texts import line, plain_json
from headgate.cli.identity.profile import everywhere
from headgate.cli.terminal.say import say
from headgate.cli.terminal.table import TextTable

F = TypeVar("F", bound=Callable[..., Any])
CELL_MAX_CHARS = 60


def common(command: F) -> F:
    """Add the options for the server, the tenant, and the form of the answer."""
    for option in (
        click.option(
            "--format", "form", type=click.Choice(["text", "json"], case_sensitive=False), help="By default text."
        ),
        click.option("--tenant", help="By default the only one."),
        click.option("--url", help="Where Headgate's pages are; by default as the settings say."),
        click.option("--config", metavar="FILE", help="The settings file."),
    ):
        command = option(command)
    return command


def show_answer(found: Any, form: str | None, text: Callable[[], None]) -> None:  # JSON
    """Print the answer as JSON if requested, otherwise with `text`."""
    if (form or everywhere("format")) == "json":
        say(plain_json(json.dumps(found, indent=2, ensure_ascii=False)))
    else:
        text()


def table(
    heads: Sequence[str], rows: Iterable[Sequence[Any]], nothing: str, cell_max_chars: int = CELL_MAX_CHARS
) -> None:  # columns of any type
    """Print columns as wide as they need to be; text of others becomes one line of printable characters."""
    shown = [[line("" if cell is None else str(cell), cell_max_chars) for cell in row] for row in rows]
    if not shown:
        say(nothing)
        return
    drawn = TextTable(*heads)
    for row in shown:
        drawn.add_row(*row)
    for each in drawn.lines():
        say(each.plain)
