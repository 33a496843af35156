"""Share what commands that call the API have in common: profiles, options, arguments and output formats."""

from __future__ import annotations

import configparser
import functools
import json
import os
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import click

from headgate.base.errors import UserError
from headgate.base.files import text_of
from headgate.base.texts import line, plain_json
from headgate.cli.inifile import filled
from headgate.cli.terminal.say import say
from headgate.cli.terminal.screen import TextTable

F = TypeVar("F", bound=Callable[..., Any])

CELL_MAX_CHARS = 60
TOKEN_KEY = "auth_token"
_REFERENCE = re.compile(r"%\([A-Za-z0-9_]+\)s")
"""Matches a value that only refers to an environment variable, so that the file itself holds no secret."""


class Profile(NamedTuple):
    """Hold one section of a profile file."""

    url: str = ""
    tenant: str = ""
    token: str = ""
    verify: bool = True
    """Whether the server's certificate is checked."""


def places() -> list[Path]:
    """Return the paths to search for a profile file: Headgate's own first, then those of Zuul's client."""
    home = Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser()
    return [home / "headgate/client.conf", home / "zuul" / "client.conf", Path("~/.zuul.conf").expanduser()]


def profile(name: str, named: Path | None = None) -> Profile:
    """Return the profile of this name from the named file, or else from the first file that exists; without a name,
    return the only one. Raise UserError."""
    file = named or next((path for path in places() if path.is_file()), None)
    if file is None:
        raise UserError(f"--use-config {name}: there is no profile file; create {places()[0]}")
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read_string(text_of(file))
    except (OSError, configparser.Error, UnicodeDecodeError) as error:
        raise UserError(f"{file}: it cannot be read: {error}") from error
    sections = parser.sections()
    if not name and len(sections) != 1:
        raise UserError(f"{file}: name a profile with --use-config: {', '.join(sections) or 'the file has none'}")
    name = name or sections[0]
    if not parser.has_section(name):
        raise UserError(f"{file}: there is no profile [{name}]; there are {', '.join(sections) or 'none'}")
    written = parser[name].get(TOKEN_KEY, "")
    # As ssh does with its keys: refuse a token that other users may have read.
    if written and not _REFERENCE.fullmatch(written) and file.stat().st_mode & 0o077:
        raise UserError(f"{file}: it contains a token and other users can read it; run: chmod 600 {file}")
    return _read(f"{file}: [{name}]", parser[name])


def _read(where: str, section: configparser.SectionProxy) -> Profile:
    """Return the profile in a section. Raise UserError."""
    options = {key: filled(value, f"{where} {key}", os.environ) for key, value in section.items()}
    if not options.get("url"):
        raise UserError(f"{where} needs a url")
    if options.get("username") and not options.get(TOKEN_KEY):
        # Never send the password: it would leak to a server that does not expect it.
        raise UserError(f"{where} has a username, but Headgate does not support passwords; set {TOKEN_KEY} to a token")
    verify = configparser.ConfigParser.BOOLEAN_STATES.get(options.get("verify_ssl", "true").lower())
    if verify is None:
        raise UserError(f"{where} verify_ssl must be true or false, not {options['verify_ssl']}")
    return Profile(options["url"].rstrip("/"), options.get("tenant", ""), options.get(TOKEN_KEY, ""), verify)


def everywhere(name: str) -> str:
    """Return an option given before the command, such as `use_config` or `auth_token`; empty if it was not given."""
    context = click.get_current_context(silent=True)
    return str(context.find_root().params.get(name) or "") if context is not None else ""


def chosen() -> Profile:
    """Return the selected profile, with `--url` and `--tenant` applied on top. Raise UserError."""
    named, file = everywhere("use_config"), everywhere("client_config")
    found = profile(named, Path(file) if file else None) if named or file else Profile()
    url = everywhere("url").rstrip("/")
    # Another server must get neither the profile's token nor its waiver of certificate checks.
    if url not in ("", found.url):
        found = found._replace(url=url, token="", verify=True)
    return found._replace(tenant=everywhere("tenant") or found.tenant)


def either(name: str) -> Callable[[F], F]:
    """Take the value NAME as an argument or as `--name`; exactly one of them is required."""

    def decorate(command: Callable[..., Any]) -> Any:  # click calls commands with any keywords
        @functools.wraps(command)
        def both(**values: Any) -> Any:
            option = values.pop(f"{name}_option")
            given = [one for one in (values[name], option) if one is not None]
            if len(given) != 1:
                raise click.UsageError(f"give {name.upper()} exactly once: as an argument or as --{name}")
            return command(**{**values, name: given[0]})

        both = click.argument(name, required=False)(both)
        return click.option(f"--{name}", f"{name}_option", metavar=name.upper(), help=f"Same as {name.upper()}.")(both)

    return decorate


def truth(name: str, without: str, help: str) -> Callable[[F], F]:
    """Take a value that is true, false, or not given: `--name`, `--name false`, `--without`."""

    def decorate(command: Callable[..., Any]) -> Any:  # any command of click
        @functools.wraps(command)
        def one(**values: Any) -> Any:
            if values.pop(without):
                # `--held --not-held` contradicts itself. The default None means that neither was given.
                if values[name]:
                    raise click.UsageError(f"--{name} and --{without.replace('_', '-')} exclude each other")
                values[name] = False
            return command(**values)

        one = click.option(f"--{without.replace('_', '-')}", without, is_flag=True, help=f"Same as --{name} false.")(
            one
        )
        return click.option(
            f"--{name}",
            is_flag=False,
            flag_value="true",
            default=None,
            type=click.BOOL,
            metavar="[true|false]",
            help=help,
        )(one)

    return decorate


def common(command: F) -> F:
    """Add the options for the server, the tenant and the output format."""
    for option in (
        click.option(
            "--format",
            "form",
            type=click.Choice(["text", "json"], case_sensitive=False),
            help="Output format. Default: text.",
        ),
        click.option("--tenant", help="The tenant; optional if there is only one."),
        click.option("--url", help="URL of Headgate's pages and API. Default: from the settings."),
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
    """Print rows in aligned columns. Cells may contain untrusted text, so each becomes one line of printable
    characters."""
    shown = [[line("" if cell is None else str(cell), cell_max_chars) for cell in row] for row in rows]
    if not shown:
        say(nothing)
        return
    drawn = TextTable(*heads)
    for row in shown:
        drawn.add_row(*row)
    for each in drawn.lines():
        say(each.plain)
