"""Implement `headgate hook`: print and install the hooks of git servers, without following links of others."""

from __future__ import annotations

import os
import secrets
import shlex
import stat
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, urlencode, urlsplit

import click

from headgate.adapters.git.connection import pads
from headgate.base.errors import UserError
from headgate.cli.resources import connections, driver_of, plain, poke_secrets, tenants
from headgate.cli.settings import Settings, find, read
from headgate.cli.terminal.say import say

MARKS = {"update": "that Headgate cannot take", "post-receive": "who pushes to Headgate where to look"}
"""Hook -> words that every version of Headgate's hook contains, and no other hook."""
POKE = "headgate-poke"
"""Name of the hook that pokes, which `post-receive` calls."""
READ_MAX_BYTES = 1_000_000
_POKE_MARK, _POKE_BLANKS = "Tells Headgate that something was pushed", "url= inner= outer="
_POKE_MAX_S = 30
"""Seconds that a try of the hook may take."""
_LINK = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


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


@hook.command("post-receive")
@click.option("--page", metavar="URL", help="The tenant's page, such as https://HOST/t/TENANT, which pushes show.")
def post_receive(page: str | None) -> None:
    """Print the post-receive hook for git servers where nothing can be installed from here, as gitolite."""
    say(_post_receive_text(_Where(page.rstrip("/"), "")) if page else _text("post-receive"), nl=False)


@hook.command()
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
    say(text.replace(_POKE_BLANKS, filled, 1), nl=False)


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


def _where(settings: Settings | None, at: Path) -> _Where | None:
    """Return the page of the tenant that has the repository; None when no tenant has it, or the settings do not
    name the pages' address."""
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
    """Set an option in the configuration of a repository. Raise UserError."""
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


def poke_of(file: Path) -> str:
    """Return the text of the poking hook in a file. Raise UserError for another text."""
    text = file.read_text(errors="replace")
    # A template with its blanks is the file from the package, which has neither address nor secret.
    if _POKE_MARK not in text or _POKE_BLANKS in text:
        raise UserError(f"{file} is not what `headgate hook poke CONNECTION` prints where Headgate runs")
    return text


def install_poke(at: Path, text: str) -> Path:
    """Put the poking hook into a repository, for those who may write to it and nobody else. Raise UserError."""
    file = at / "hooks" / POKE

    def dress(made: int) -> None:
        # Anyone who can read the hook can poke, so it is for its owner and, in a shared repository, for the group that
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
            put(hooks, POKE, text, dress)
    except OSError as error:
        raise UserError(f"{file} cannot be written: {error}") from error
    return file


def tried(at: Path, text: str) -> None:
    """Poke once for a repository with the text of the hook, and print the result."""
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
            timeout=_POKE_MAX_S,
        )
    except subprocess.TimeoutExpired:
        say(f"{at}: Headgate did not answer within {_POKE_MAX_S} s; pushes are seen at its next poll", err=True)
        return
    output = (done.stdout or done.stderr).strip()[:1_000]
    # An accepted poke is answered with the hint that it left; any other answer, also with status 200, is not
    # Headgate's.
    if '"hint"' in done.stdout:
        say(f"{at}: Headgate looks at it: {output}")
    else:
        say(f"{at}: pushes here are seen at Headgate's next poll alone; it answers: {output}", err=True)


@contextmanager
def hooks_of(at: Path) -> Iterator[int]:
    """Provide the hooks directory of a repository, and create it if it is missing. A link is accepted only if it
    belongs to the current user. Raise UserError, OSError."""
    with _open(at, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) as repository:
        # Another process may create the directory between a check and this call, which is as good.
        with suppress(FileExistsError):
            os.mkdir("hooks", dir_fd=repository)
        # The descriptor is of the link itself: its owner and its target are read from one object, which nobody can
        # exchange between the two.
        with _open("hooks", _LINK, repository) as link:
            status = os.fstat(link)
            target = os.readlink("", dir_fd=link) if stat.S_ISLNK(status.st_mode) else ""
        if target and status.st_uid != os.geteuid():
            raise UserError(f"{at / 'hooks'} is a link of somebody else, to {target}; make it a directory")
        # Open the target that was checked, not the name again, which may lead elsewhere by now.
        flags = _DIRECTORY & ~os.O_NOFOLLOW if target else _DIRECTORY
        with _open(target or "hooks", flags, repository) as hooks:
            yield hooks


def text_of(hooks: int, name: str) -> str | None:
    """Return the text of the hook, empty if it is not a file, or None if there is none.  Raise OSError."""
    try:
        kind = os.stat(name, dir_fd=hooks, follow_symlinks=False).st_mode
        if not stat.S_ISREG(kind):
            return ""
        # Anyone with write access can put a FIFO under the name after the check; without O_NONBLOCK this would wait for
        # ever.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with _open(name, flags, hooks) as found:
            return os.read(found, READ_MAX_BYTES).decode(errors="replace")
    except FileNotFoundError:
        return None


def put(hooks: int, name: str, text: str, dress: Callable[[int], None]) -> None:
    """Write a hook, replacing an existing one. `dress` gives the file its owner and mode before it gets its name.
    Raise OSError."""
    # A name that cannot be guessed, and O_EXCL: nobody can have prepared a file or a link there to receive a secret.
    new = f".{name}.{secrets.token_hex(8)}"
    with _open(new, _NEW, hooks, 0o600) as made:
        try:
            with open(made, "w", closefd=False) as file:
                file.write(text)
            # Owner and mode are set through the descriptor and before the file has its name: git never runs it half
            # done, and nobody can exchange it in between.
            dress(made)
            os.replace(new, name, src_dir_fd=hooks, dst_dir_fd=hooks)
        except BaseException:
            # Also on an interrupt: the temporary file may contain the secret.
            os.unlink(new, dir_fd=hooks)
            raise


@contextmanager
def _open(path: str | Path, flags: int, at: int | None = None, mode: int = 0o777) -> Iterator[int]:
    found = os.open(path, flags, mode, dir_fd=at)
    try:
        yield found
    finally:
        os.close(found)
