"""`headgate hook`: hooks for git servers; they reject what Headgate cannot take, and point people who push to the
tenant's page."""

from __future__ import annotations

import os
import shlex
import subprocess
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, urlencode

import click

from headgate.base.errors import UserError
from headgate.cli.hookfiles import hooks_of, put, text_of
from headgate.cli.process import connections, tenants
from headgate.cli.pushhook import install_poke, poke, poke_of, tried
from headgate.cli.settings import Settings, find, read
from headgate.cli.terminal.say import say

MARKS = {"update": "that Headgate cannot take", "post-receive": "who pushes to Headgate where to look"}
"""Hook -> words that every version of Headgate's hook contains, and no other hook."""


class _Hooks(click.Group):
    """Install when given repositories and no command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, *ctx.help_option_names):
            args = ["install", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_Hooks, invoke_without_command=True)
@click.pass_context
def hook(context: click.Context) -> None:
    """Print the update hook for git servers, or install the hooks.

    The update hook rejects pushes to refs/for, refs/approved and refs/recheck that Headgate cannot handle, such as
    refs/for/master.
    """
    if context.invoked_subcommand is None:
        say(_text("update"), nl=False)


@hook.command()
@click.option(
    "--people", metavar="ACCOUNT", help="Let people approve under their own names; Headgate pushes as ACCOUNT."
)
@click.option("--pages", is_flag=True, help="Let ACCOUNT approve for people who are logged in to the pages.")
@click.option("--config", metavar="FILE", help="The settings file, which says where the pages are.")
@click.option("--page", metavar="URL", help="The tenant's page, such as https://HOST/t/TENANT, if no settings name it.")
@click.option(
    "--poke",
    "poking",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Tell Headgate of each push at once; FILE is what `headgate hook poke` printed.",
)
@click.argument("repositories", nargs=-1, required=True, type=click.Path(exists=True, file_okay=False, path_type=Path))
def install(
    people: str | None,
    pages: bool,
    config: str | None,
    page: str | None,
    poking: Path | None,
    repositories: tuple[Path, ...],
) -> None:
    """Install the hooks in REPOSITORIES, which are bare repositories on this machine.

    `update` rejects what Headgate cannot handle. `post-receive` shows the tenant's page to people who propose or
    approve; `git push` prints it over ssh and from a local path.

    With --people, `update` also binds the names in refs/approvals and refs/vetoes to the person who pushes, and records
    who proposed what; `post-receive` deletes these records with the proposal. Requirements for named people need both
    hooks, and `approvals = bound` in the connection's settings. With --pages, ACCOUNT may approve for people who are
    logged in to the pages, as `people` in the connection's settings says.

    With --poke, Headgate sees a push to a polled server at once. The command tries it once for each repository.
    """
    if pages and not people:
        raise UserError("--pages needs --people ACCOUNT: without it, approvals have no names")
    known = _settings(config) if page is None else None
    poke_text = poke_of(poking) if poking is not None else ""
    for repository in repositories:
        at = _git_dir(repository)
        updating = install_hook(at, "update", _text("update"))
        if people:
            _write_down(at, "headgate.account", people)
            _write_down(at, "headgate.pages", "true" if pages else "false")
        say(f"installed {updating}")
        where = _Where(page.rstrip("/"), "") if page else _where(known, at)
        # The poke comes before the hook that calls it, which ignores a missing one.
        if poke_text:
            say(f"installed {install_poke(at, poke_text)}")
        if where is not None or people or poke_text:
            text = _post_receive_text(where) if where is not None else _text("post-receive")
            say(f"installed {install_hook(at, 'post-receive', text)}")
        # Last, since it waits up to 30 s for an answer, and a server that is away is no reason to install less.
        if poke_text:
            tried(at, poke_text)
        if where is None:
            missing = "" if people or poke_text else "post-receive is not installed, so "
            say(
                f"{at}: {missing}nobody is shown a page: no settings say where the pages are, or no tenant has this "
                "repository; say --page",
                err=True,
            )


class _Where(NamedTuple):
    """Name a tenant's page and, where known, the project of the repository."""

    page: str
    project: str


def _settings(config: str | None) -> Settings | None:
    """Return the settings, or None when there are none and the caller named none. Raise UserError."""
    try:
        path = find(config)
    except UserError:
        if config is not None:
            raise
        return None
    return read(path)


hook.add_command(poke)


@hook.command("post-receive")
@click.option("--page", metavar="URL", help="The tenant's page, such as https://HOST/t/TENANT, which pushes show.")
def post_receive(page: str | None) -> None:
    """Print the post-receive hook for git servers where nothing can be installed from here, as gitolite."""
    say(_post_receive_text(_Where(page.rstrip("/"), "")) if page else _text("post-receive"), nl=False)


def _where(settings: Settings | None, at: Path) -> _Where | None:
    """Return None when the settings do not name the pages' address, or no tenant has the repository."""
    root = settings.get("web", "root").rstrip("/") if settings is not None else ""
    if settings is None or not root:
        return None
    sources = connections(settings)
    _, file = tenants(settings, sources)
    for name, tenant in file.tenants.items():
        for project in tenant.projects:
            source = sources.get(project.connection)
            local = source.git_dir(project.project) if source is not None else None
            # Compare real paths: people name a repository through links that the settings do not use.
            if local is not None and local.resolve() == at.resolve():
                return _Where(f"{root}/t/{quote(name, safe='')}", project.project)
    return None


def _text(name: str) -> str:
    return (files("headgate.adapters.git") / f"{name}.sh").read_text()


def _post_receive_text(where: _Where) -> str:
    query = urlencode({"project": where.project} if where.project else {"limit": 50})
    addresses = (
        f"status={shlex.quote(f'{where.page}/status')} buildsets={shlex.quote(f'{where.page}/buildsets?{query}')}"
    )
    return _text("post-receive").replace("status= buildsets=", addresses, 1)


def _git_dir(repository: Path) -> Path:
    """Return the git directory of a repository. Raise UserError if it is none."""
    at = repository / ".git" if (repository / ".git" / "HEAD").exists() else repository
    if not (at / "HEAD").exists():
        raise UserError(f"{repository} is not a git repository; name bare repositories, such as /srv/git/code.git")
    return at


def _write_down(at: Path, name: str, value: str) -> None:
    """Write the file. Raise UserError."""
    done = subprocess.run(["git", "--git-dir", at, "config", name, value], capture_output=True, text=True)
    if done.returncode:
        raise UserError(f"{at}: {name} cannot be written down: {done.stderr.strip()}")


def install_update(repository: Path) -> Path:
    """Install the rejecting hook in one of Headgate's repositories. Raise UserError."""
    return install_hook(_git_dir(repository), "update", _text("update"))


def install_hook(at: Path, name: str, text: str) -> Path:
    """Write a hook where none is, or in place of an earlier one of Headgate's. Raise UserError if another hook is
    there."""
    file = at / "hooks" / name
    try:
        with hooks_of(at) as hooks:
            known = text_of(hooks, name)
            # Somebody else's hook may enforce rules of its own: replacing it would switch them off without a word.
            if known is not None and MARKS[name] not in known:
                other = (
                    "run `headgate hook` and call what it prints from yours"
                    if name == "update"
                    else "move it aside, install ours, and call it from yours"
                )
                raise UserError(f"{file} is there already; {other}")
            put(hooks, name, text, lambda made: os.fchmod(made, 0o755))
    except OSError as error:
        raise UserError(f"{file} cannot be written: {error}") from error
    return file
