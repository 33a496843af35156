"""Implement `headgate init`: write a working example, or the configuration for existing repositories."""

from __future__ import annotations

import asyncio
import os
import secrets
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

import click

from headgate.adapters.git.command import GitError, git
from headgate.base.errors import UserError
from headgate.base.private import closed_to_writers
from headgate.cli.connected import FORGES, bare_repository, connected, local_directory
from headgate.cli.groups import own_command
from headgate.cli.hook import install_update
from headgate.cli.identity.credentials import operator_token
from headgate.cli.settings import read
from headgate.cli.terminal.say import say

SETTINGS = ("headgate.conf", "tenants.yaml")
"""Files that are written, besides the repositories."""
REPOSITORIES = ("config", "hello")
"""Repositories of the example."""
BRANCH = "master"


@click.command()
@click.option("--settings-only", is_flag=True, help="Write only headgate.conf and tenants.yaml, no repositories.")
@click.option("--connect", metavar="URL", help="Gate existing repositories at this URL of a git server or a forge.")
@click.option(
    "--driver", type=click.Choice(list(FORGES)), help="Kind of server at the URL; not needed for well-known hosts."
)
@click.option(
    "--directory", "place", type=click.Path(file_okay=False, path_type=Path), help="Where to write, with --connect."
)
@click.argument("words", metavar="[DIRECTORY | REPOSITORY...]", nargs=-1)
def command(
    settings_only: bool, connect: str | None, driver: str | None, place: Path | None, words: tuple[str, ...]
) -> None:
    """Write headgate.conf and tenants.yaml, with comments, and two small repositories into DIRECTORY (default: the
    current directory).

    With --connect, write the two files for existing repositories below that URL, and one repository with pipelines and
    a job for them:

      headgate init --connect https://github.com acme/api acme/app

    Existing files are not changed.
    """
    if connect is not None:
        if settings_only:
            raise click.UsageError(
                "--connect and --settings-only exclude each other: --connect always writes a repository"
            )
        _connect(connect, driver, words, place or Path("."))
        return
    if driver or place:
        raise click.UsageError("--driver and --directory need --connect")
    if len(words) > 1:
        raise click.UsageError("give one DIRECTORY; to name repositories, add --connect URL")
    directory = Path(words[0] if words else ".")
    if os.path.isfile(directory):
        raise click.UsageError(f"{directory} is a file, not a directory")
    example = files("headgate.cli") / "example"
    password = secrets.token_urlsafe(32)
    texts = {name: (example / name).read_text().replace("PASSWORD", password) for name in SETTINGS}
    _written(directory, texts, {} if settings_only else {name: _texts(example, name) for name in REPOSITORIES})
    say(_what_now(directory, settings_only))


def _connect(url: str, driver: str | None, names: Sequence[str], directory: Path) -> None:
    """Write the files for existing repositories, and print the next steps. Raise UserError."""
    local = local_directory(url) if driver in (None, "git") else None
    made = connected(str(local or url), names, driver or "")
    bare = [str(bare_repository(local, name)) for name in dict.fromkeys(names)] if local else []
    texts = {SETTINGS[0]: made.settings, SETTINGS[1]: made.tenants}
    _written(directory, texts, {"config": made.config}, startable=not made.todo)
    # Without the hook, a push to refs/for/BRANCH would keep everybody from proposing changes for it.
    hook = [f"{own_command(elsewhere=True)} hook install {shlex.join(bare)}    # rejects proposals with unusable names"]
    say(_connected_now(directory, names, [*made.todo, *(hook if bare else [])]))


def _texts(example: Traversable, name: str) -> dict[str, str]:
    return dict(_texts_below(example / "repositories" / name, ""))


def _texts_below(at: Traversable, prefix: str) -> Iterator[tuple[str, str]]:
    for entry in at.iterdir():
        if entry.is_dir():
            yield from _texts_below(entry, f"{prefix}{entry.name}/")
        else:
            yield f"{prefix}{entry.name}", entry.read_text()


def _written(
    directory: Path,
    texts: Mapping[str, str],
    repositories: Mapping[str, Mapping[str, str]],
    startable: bool = True,
) -> None:
    """Write the files and the repositories, and also the operator's token if the settings are complete (`startable`).
    Raise UserError."""
    hub = directory / "repositories"
    try:
        # Check everything first, so that an existing file is an error before anything is written. A link that leads
        # nowhere is an existing file, too: the settings must not be written to where it points.
        for path in (*(directory / name for name in texts), *((hub,) if repositories else ())):
            if os.path.lexists(path):
                raise UserError(f"{path} already exists; nothing was written")
        # With the umask 000, anybody could change the settings, and the hooks that the user's git runs.
        with closed_to_writers(), ExitStack() as undo:
            directory.mkdir(parents=True, exist_ok=True)
            for name, text in texts.items():
                # The settings contain the key store's password, so the file is private from the beginning.
                _created(directory / name, text, 0o600 if name == SETTINGS[0] else 0o666, undo)
            if repositories:
                hub.mkdir()
                undo.callback(shutil.rmtree, hub, ignore_errors=True)
                asyncio.run(_repositories(repositories, hub))
            undo.pop_all()
        # After --connect to a forge, the settings use environment variables that are not set yet; reading would fail.
        if startable:
            operator_token(read(directory / SETTINGS[0]))
    except OSError as error:
        raise UserError(f"{error.filename or directory}: cannot be written: {error.strerror}") from error
    except GitError as error:
        raise UserError(f"{hub}: git could not create the repositories: {error}") from error


def _created(path: Path, text: str, mode: int, undo: ExitStack) -> None:
    """Write a new file, and have `undo` remove it. Raise OSError if something is there already, even a link."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "w") as file:
        undo.callback(path.unlink, missing_ok=True)
        file.write(text)


async def _repositories(repositories: Mapping[str, Mapping[str, str]], hub: Path) -> None:
    """Create the repositories with their first commits. Raise GitError, OSError."""
    for name, content in repositories.items():
        bare = hub / name
        bare.mkdir(parents=True)
        await git("init", "-q", "--bare", "-b", BRANCH, str(bare))
        # Without the hook, a pushed refs/for/master would block all proposals: git allows no ref below another ref.
        install_update(bare)
        with tempfile.TemporaryDirectory() as work:
            for path, text in content.items():
                _write(Path(work) / path, text)
            await git("init", "-q", "-b", BRANCH, work)
            await git("add", "-A", at=Path(work))
            await git("commit", "-q", "-m", f"Begin {name}", at=Path(work))
            await git("push", "-q", str(bare.absolute()), BRANCH, at=Path(work))


def _write(file: Path, text: str) -> None:
    """Write a file; one that begins with `#!` becomes executable."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    if text.startswith("#!"):
        file.chmod(0o755)


def _connected_now(directory: Path, names: Sequence[str], todo: Sequence[str]) -> str:
    change_directory = "" if directory == Path(".") else f"cd {shlex.quote(str(directory))}\n  "
    headgate = own_command(elsewhere=True)
    steps = "\n  ".join(
        [*todo, f"{headgate} check     # reads the repositories, and reports errors", f"{headgate} run"]
    )
    config = shlex.quote(str(directory / "repositories" / "config"))
    return f"""\
Wrote headgate.conf, tenants.yaml, and repositories/config, which defines the tests of {", ".join(names)}.
Clone it (git clone {config}), make jobs/test run your tests, and push. Then:

  {change_directory}{steps}

From then on, propose and approve changes of repositories/config, too: they land if the configuration has no errors."""


def _what_now(directory: Path, settings_only: bool) -> str:
    headgate = own_command(elsewhere=True)
    change_directory = "" if directory == Path(".") else f"cd {shlex.quote(str(directory))} && "
    if settings_only:
        return (
            f"Wrote {directory / SETTINGS[0]} and {directory / SETTINGS[1]}.\n"
            "Put your repositories below baseurl, list them in tenants.yaml, then:\n"
            f"  {change_directory}{headgate} check     # is the configuration valid?\n"
            f"  {change_directory}{headgate} run"
        )
    return f"""\
Wrote headgate.conf and tenants.yaml, and two repositories: repositories/config defines what is tested and when,
repositories/hello is a project to try it with. Start Headgate:

  {change_directory}{headgate} run

and in another terminal, in the same directory, propose a change and approve it, with git alone:

  git clone repositories/hello work && cd work
  echo "hello, world" > greeting
  git commit -am "Greet the world"
  git push origin HEAD:refs/for/{BRANCH}/greet-the-world         # propose: Headgate checks the change
  git push origin HEAD:refs/approved/{BRANCH}/greet-the-world    # approve: Headgate tests it again, and lands it

Watch it with `{headgate} status` or on the pages; then see the result:

  git fetch origin {BRANCH} refs/notes/headgate:refs/notes/headgate && git log --notes=headgate origin/{BRANCH}"""
