"""`headgate init`: write a working example with comments: settings, tenants, and two repositories to try it with."""

from __future__ import annotations

import asyncio
import secrets
import shlex
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

import click

from headgate.adapters.git.command import GitError, git
from headgate.base.errors import UserError
from headgate.cli.connect import FORGES, connected
from headgate.cli.hook import install_update
from headgate.cli.identity.token import operator_token
from headgate.cli.settings import read
from headgate.cli.terminal.say import say

SETTINGS = ("headgate.conf", "tenants.yaml")
REPOSITORIES = ("config", "hello")
BRANCH = "master"


@click.command()
@click.option("--settings-only", is_flag=True, help="Write no repositories.")
@click.option("--connect", metavar="URL", help="Gate repositories that are at this URL: a git server, or a forge.")
@click.option("--driver", type=click.Choice(list(FORGES)), help="What is at the URL; not needed for well-known hosts.")
@click.option(
    "--directory", "place", type=click.Path(file_okay=False, path_type=Path), help="Where to write, with --connect."
)
@click.argument("words", metavar="[DIRECTORY | REPOSITORY...]", nargs=-1)
def command(
    settings_only: bool, connect: str | None, driver: str | None, place: Path | None, words: tuple[str, ...]
) -> None:
    """Write headgate.conf and tenants.yaml, with comments, and two small repositories into DIRECTORY (default: here).

    With --connect, write them for the named repositories below that URL, and a repository with pipelines and a job:

      headgate init --connect https://github.com acme/api acme/app

    Existing files are not changed.
    """
    if connect is not None:
        if settings_only:
            raise click.UsageError("--connect writes a repository with pipelines; --settings-only writes none")
        at = place or Path(".")
        made = connected(_absolute(connect), words, driver or "")
        texts = {SETTINGS[0]: made.settings, SETTINGS[1]: made.tenants}
        _written(at, texts, {"config": made.config}, startable=not made.todo)
        say(_connected_now(at, words, made.todo))
        return
    if driver or place:
        raise click.UsageError("--driver and --directory go with --connect")
    if len(words) > 1:
        raise click.UsageError("one directory is enough; repositories go with --connect URL")
    directory = Path(words[0] if words else ".")
    if directory.is_file():
        raise click.UsageError(f"{directory} is a file")
    example = files("headgate.cli") / "example"
    password = secrets.token_urlsafe(32)
    texts = {name: (example / name).read_text().replace("PASSWORD", password) for name in SETTINGS}
    _written(directory, texts, {} if settings_only else {name: _texts(example, name) for name in REPOSITORIES})
    say(_what_now(directory, settings_only))


def _absolute(url: str) -> str:
    """Return a path of this machine as an absolute one, and a URL unchanged."""
    return str(Path(url).absolute()) if "://" not in url and Path(url).is_dir() else url


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
    """Write the files and the repositories, and the operator's token if the settings can be read already. Raise
    UserError."""
    hub = directory / "repositories"
    # Look at everything first: a directory is never left half written because one file exists.
    for path in (*(directory / name for name in texts), *((hub,) if repositories else ())):
        if path.exists():
            raise UserError(f"{path} is there already; nothing was written")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            # The settings contain the password of the key store, and are private before they have any content.
            (directory / name).touch(0o600 if name == SETTINGS[0] else 0o666)
            (directory / name).write_text(text)
        if repositories:
            asyncio.run(_repositories(repositories, hub))
        # With --connect for a forge, the settings name variables that are not set yet, so that they cannot be read.
        if startable:
            operator_token(read(directory / SETTINGS[0]))
    except OSError as error:
        raise UserError(f"{error.filename or directory}: cannot be written: {error.strerror}") from error
    except GitError as error:
        raise UserError(f"{hub}: git could not make the repositories: {error}") from error


async def _repositories(repositories: Mapping[str, Mapping[str, str]], hub: Path) -> None:
    """Raise GitError, OSError."""
    for name, content in repositories.items():
        bare = hub / name
        bare.mkdir(parents=True)
        await git("init", "-q", "--bare", "-b", BRANCH, str(bare))
        # A pushed refs/for/master would keep everybody else from proposing: git has no ref below another ref.
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
    steps = "\n  ".join([*todo, "headgate check     # reads the repositories, and says what is wrong", "headgate run"])
    return f"""\
Wrote headgate.conf, tenants.yaml, and repositories/config: it says what is tested and when, for {", ".join(names)}.
Clone it, make jobs/test run your tests, and push. Then:

  {change_directory}{steps}"""


def _what_now(directory: Path, settings_only: bool) -> str:
    change_directory = "" if directory == Path(".") else f"cd {shlex.quote(str(directory))} && "
    if settings_only:
        return (
            f"Wrote {directory / SETTINGS[0]} and {directory / SETTINGS[1]}.\n"
            "Put your repositories where baseurl says, name them in tenants.yaml, then:\n"
            f"  {change_directory}headgate check     # is the configuration right?\n"
            f"  {change_directory}headgate run"
        )
    return f"""\
Wrote headgate.conf and tenants.yaml, and two repositories: repositories/config says what is tested and when,
repositories/hello is one to try it with. Start Headgate:

  {change_directory}headgate run

and in another terminal, in the same directory, propose a change and approve it, with git alone:

  git clone repositories/hello work && cd work
  echo "hello, world" > greeting
  git commit -am "Greet the world"
  git push origin HEAD:refs/for/{BRANCH}/greet-the-world         # proposed: it is checked
  git push origin HEAD:refs/approved/{BRANCH}/greet-the-world    # approved: it is tested again, and lands

Watch it with `headgate status` or on the pages; then see what came of it:

  git fetch origin {BRANCH} refs/notes/headgate:refs/notes/headgate && git log --notes=headgate origin/{BRANCH}"""
