"""What holds for every command of one call: an address, a tenant, a form of answers, and profiles that name them."""

from __future__ import annotations

import configparser
import os
from pathlib import Path
from typing import NamedTuple

import click

from headgate.base.errors import UserError

TOKEN_KEY = "auth_token"


class Profile(NamedTuple):
    """A section of a file of profiles."""

    url: str = ""
    tenant: str = ""
    token: str = ""


def places() -> list[Path]:
    """Return where profiles are looked for: our own file, then those of the reference's client."""
    home = Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser()
    return [home / "headgate/client.conf", home / "zuul" / "client.conf", Path("~/.zuul.conf").expanduser()]


def profile(name: str) -> Profile:
    """Return the profile of this name, of the first file that there is.  Raise UserError."""
    file = next((path for path in places() if path.is_file()), None)
    if file is None:
        raise UserError(f"--use-config {name}: there is no file of profiles; it is {places()[0]}")
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read_string(file.read_text())
    except (OSError, configparser.Error, UnicodeDecodeError) as error:
        raise UserError(f"{file}: it cannot be read: {error}") from error
    if not parser.has_section(name):
        raise UserError(f"{file}: there is no profile [{name}]; there are {', '.join(parser.sections()) or 'none'}")
    said = parser[name]
    if not said.get("url"):
        raise UserError(f"{file}: [{name}] needs a url")
    if said.get(TOKEN_KEY) and file.stat().st_mode & 0o077:
        raise UserError(f"{file}: it holds a token and others may read it: chmod 600 {file}")
    return Profile(said["url"].rstrip("/"), said.get("tenant", ""), said.get(TOKEN_KEY, ""))


def everywhere(name: str) -> str:
    """Return what was said before the command: url, tenant, format or use_config; empty: nothing."""
    context = click.get_current_context(silent=True)
    return str(context.find_root().params.get(name) or "") if context is not None else ""


def chosen() -> Profile:
    """Return the profile that was named, with what was said beside it.  Raise UserError."""
    named = everywhere("use_config")
    found = profile(named) if named else Profile()
    url = everywhere("url").rstrip("/")
    token = found.token if url in ("", found.url) else ""  # a token goes where its profile says, and nowhere else
    return Profile(url or found.url, everywhere("tenant") or found.tenant, token)
