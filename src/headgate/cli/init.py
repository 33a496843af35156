"""`headgate init`: an example that works, with comments: settings, tenants, and two repositories to try it with."""

from __future__ import annotations

import asyncio
import secrets
import shlex
import tempfile
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

import click

from headgate.adapters.git.command import GitError, git
from headgate.base.errors import UserError
from headgate.cli.hook import install_update
from headgate.cli.identity.token import operator_token
from headgate.cli.settings import read

SETTINGS = ("headgate.conf", "tenants.yaml")
REPOSITORIES = ("config", "hello")
BRANCH = "master"


@click.command()
@click.option("--settings-only", is_flag=True, help="No repositories: you have some already.")
@click.argument("directory", default=".", type=click.Path(file_okay=False, path_type=Path))
def command(settings_only: bool, directory: Path) -> None:
    """Write headgate.conf and tenants.yaml, with comments, and two small repositories into DIRECTORY (default: here).

    Nothing that exists is touched.
    """
    example = files("headgate.cli") / "example"
    hub = directory / "repositories"
    for path in (*(directory / name for name in SETTINGS), *(() if settings_only else (hub,))):
        if path.exists():
            raise UserError(f"{path} is there already; nothing was written")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name in SETTINGS:
            text = (example / name).read_text().replace("PASSWORD", secrets.token_urlsafe(32))
            (directory / name).touch(0o600 if name == SETTINGS[0] else 0o666)
            (directory / name).write_text(text)
        if not settings_only:
            asyncio.run(_repositories(example / "repositories", hub))
        operator_token(read(directory / SETTINGS[0]))
    except OSError as error:
        raise UserError(f"{error.filename or directory}: cannot be written: {error.strerror}") from error
    except GitError as error:
        raise UserError(f"{hub}: git could not make the repositories: {error}") from error
    click.echo(_what_now(directory, settings_only))


async def _repositories(example: Traversable, hub: Path) -> None:
    """Raises GitError, OSError."""
    for name in REPOSITORIES:
        bare = hub / name
        bare.mkdir(parents=True)
        await git("init", "-q", "--bare", "-b", BRANCH, str(bare))
        install_update(bare)
        with tempfile.TemporaryDirectory() as work:
            _copy(example / name, Path(work))
            await git("init", "-q", "-b", BRANCH, work)
            await git("add", "-A", at=Path(work))
            await git("commit", "-q", "-m", f"Begin {name}", at=Path(work))
            await git("push", "-q", str(bare.absolute()), BRANCH, at=Path(work))


def _copy(source: Traversable, target: Path) -> None:
    """What begins with `#!` becomes executable."""
    target.mkdir(exist_ok=True)
    for entry in source.iterdir():
        if entry.is_dir():
            _copy(entry, target / entry.name)
            continue
        text = entry.read_text()
        (target / entry.name).write_text(text)
        if text.startswith("#!"):
            (target / entry.name).chmod(0o755)


def _what_now(directory: Path, settings_only: bool) -> str:
    here = "" if directory == Path(".") else f"cd {shlex.quote(str(directory))} && "
    if settings_only:
        return (
            f"Wrote {directory / SETTINGS[0]} and {directory / SETTINGS[1]}.\n"
            "Put your repositories where baseurl says, name them in tenants.yaml, then:\n"
            f"  {here}headgate check     # is the configuration right?\n"
            f"  {here}headgate run"
        )
    return f"""\
Wrote headgate.conf and tenants.yaml, and two repositories: repositories/config says what is tested and when,
repositories/hello is one to try it with. Start Headgate:

  {here}headgate run

and in another terminal, in the same directory, propose a change and approve it, with git alone:

  git clone repositories/hello work && cd work
  echo "hello, world" > greeting
  git commit -am "Greet the world"
  git push origin HEAD:refs/for/{BRANCH}/greet-the-world         # proposed: it is checked
  git push origin HEAD:refs/approved/{BRANCH}/greet-the-world    # approved: it is tested again, and lands

Watch it with `headgate status` or on the pages; then see what came of it:

  git fetch origin {BRANCH} refs/notes/headgate:refs/notes/headgate && git log --notes=headgate origin/{BRANCH}"""
