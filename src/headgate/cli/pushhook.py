"""The hook with which a git server notifies Headgate of each push: Headgate prints it, the server's admin installs
it."""

from __future__ import annotations

import os
import shlex
import subprocess
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from urllib.parse import quote, urlsplit

import click

from headgate.adapters.git.connection import pads
from headgate.base.errors import UserError
from headgate.cli.hookfiles import hooks_of, put
from headgate.cli.process import driver_of, plain, poke_secrets
from headgate.cli.settings import find, read
from headgate.cli.terminal.say import say

NAME = "headgate-poke"
_MARK, _BLANKS = "Tells Headgate that something was pushed", "url= inner= outer="
_TRY_MAX_S = 30


@click.command()
@click.option("--config", metavar="FILE", help="The settings file, which has the secret.")
@click.option("--url", metavar="URL", help="Where the git server reaches Headgate's pages. Default: [web] root.")
@click.argument("connection")
def poke(config: str | None, url: str | None, connection: str) -> None:
    """Print the hook with which the git server of CONNECTION tells Headgate of each push, so that it looks at once.

    It contains a secret derived from the webhook_token of the connection: protect it like the token. Install it at the
    server with `headgate hook install --poke FILE`, or as hooks/post-receive.
    """
    settings = read(find(config))
    section = settings.connections.get(connection)
    if section is None or driver_of(section) != "git":
        raise UserError(f"{settings.path}: there is no connection {connection!r} of plain git")
    secret = poke_secrets(settings).get(connection)
    if secret is None:
        raise UserError(
            f"{settings.path}: [connection {connection}] has no webhook_token, so that nobody can poke it: "
            "write one there (`openssl rand -hex 32` makes one), and restart Headgate"
        )
    root = (url or settings.get("web", "root")).rstrip("/")
    if urlsplit(root).scheme not in ("http", "https"):
        raise UserError(f"{settings.path}: [web] root does not say where the pages are; say --url https://HOST")
    if plain(settings)[connection].local:
        say(f"[connection {connection}] is a directory, which is watched already, unless it is mounted", err=True)
    inner, outer = pads(secret)
    at = f"{root}/api/connection/{quote(connection, safe='')}/payload"
    text = (files("headgate.adapters.git") / "poke.sh").read_text()
    filled = f"url={shlex.quote(at)} inner={shlex.quote(inner)} outer={shlex.quote(outer)}"
    say(text.replace(_BLANKS, filled, 1), nl=False)


def poke_of(file: Path) -> str:
    """Return the text of the hook. Raise UserError for another text."""
    text = file.read_text(errors="replace")
    # A template with its blanks is the file from the package, which has neither address nor secret.
    if _MARK not in text or _BLANKS in text:
        raise UserError(f"{file} is not what `headgate hook poke CONNECTION` prints where Headgate runs")
    return text


def install_poke(at: Path, text: str) -> Path:
    """Put the hook into a repository, usable by those who may write to it and by nobody else. Raise UserError."""
    file = at / "hooks" / NAME

    def dress(made: int) -> None:
        # Whoever can read the hook can poke, so it is for its owner and, in a shared repository, for the group that
        # pushes.
        owner, mode = at.stat(), 0o500
        if os.geteuid() == 0:
            os.fchown(made, owner.st_uid, -1)
        if owner.st_mode & 0o020:
            with suppress(PermissionError):  # then the user who installs it does not belong to those who push
                os.fchown(made, -1, owner.st_gid)
                mode = 0o550
        os.fchmod(made, mode)

    try:
        with hooks_of(at) as hooks:
            put(hooks, NAME, text, dress)
    except OSError as error:
        raise UserError(f"{file} cannot be written: {error}") from error
    return file


def tried(at: Path, text: str) -> None:
    """Poke once for a repository with the text of the hook, and return the result."""
    # In a shell of gitolite, GL_REPO names another repository than the one that is tried, and the hook would believe
    # it.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GL_")}
    try:
        done = subprocess.run(  # the given text, because another process may have replaced the file
            ["sh", "-s", "try"],
            input=text,
            cwd=at,
            env=environment,
            capture_output=True,
            text=True,
            timeout=_TRY_MAX_S,
        )
    except subprocess.TimeoutExpired:
        say(f"{at}: Headgate did not answer within {_TRY_MAX_S} s; pushes are seen at its next poll", err=True)
        return
    output = (done.stdout or done.stderr).strip()[:1_000]
    # An accepted poke is answered with the hint that it left; any other answer, also with status 200, is not
    # Headgate's.
    if '"hint"' in done.stdout:
        say(f"{at}: Headgate looks at it: {output}")
    else:
        say(f"{at}: pushes here are seen at Headgate's next poll alone; it answers: {output}", err=True)
