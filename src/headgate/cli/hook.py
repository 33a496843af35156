"""Implement `headgate hook`: print and install the hooks of git servers, without following other users' symlinks."""

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
from headgate.base.files import bytes_of, reason
from headgate.cli.groups import CommandGroup
from headgate.cli.resources import connections, driver_of, plain, poke_secrets, tenants
from headgate.cli.settings import Settings, find, read
from headgate.cli.terminal.say import say

MARKS = {"update": "that Headgate cannot take", "post-receive": "who pushes to Headgate where to look"}
"""Hook -> words that every version of Headgate's hook contains, and no other hook."""
POKE = "headgate-poke"
"""Name of the hook that sends the poke; `post-receive` calls it."""
READ_MAX_BYTES = 1_000_000
_POKE_MARK, _POKE_BLANKS = "Tells Headgate that something was pushed", "url= inner= outer="
_POKE_MAX_S = 30
"""Seconds that a test run of the poke hook may take."""
_LINK = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class _Hooks(CommandGroup):
    """Run `install` when given repositories and no command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # `hook REPOSITORY` is short for `hook install REPOSITORY`.
        if args and args[0] not in (*self.commands, *ctx.help_option_names):
            args = ["install", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_Hooks, invoke_without_command=True)
@click.pass_context
def hook(context: click.Context) -> None:
    """Print the update hook for git servers, or install hooks in repositories.

    The update hook rejects pushes to refs/for, refs/approved and refs/recheck that Headgate cannot handle, such as
    refs/for/master.
    """
    if context.invoked_subcommand is None:
        say(_text("update"), nl=False)


@hook.command()
@click.option(
    "--people", metavar="ACCOUNT", help="Let people approve under their own names only; Headgate pushes as ACCOUNT."
)
@click.option("--pages", is_flag=True, help="Let ACCOUNT approve for people who are logged in to the pages.")
@click.option("--config", metavar="FILE", help="The settings file; [web] root is the URL of the pages.")
@click.option(
    "--page", metavar="URL", help="The tenant's page, such as https://HOST/t/TENANT. Default: from the settings."
)
@click.option(
    "--poke",
    "poking",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Notify Headgate of each push immediately; FILE is the output of `headgate hook poke`.",
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

    The `update` hook rejects pushes that Headgate cannot handle. The `post-receive` hook shows the URL of the tenant's
    page to people who propose or approve; `git push` prints it when it pushes over ssh or to a local path.

    With --people, `update` also lets people push to refs/approvals and refs/vetoes only under their own names, and
    records who proposed what; `post-receive` deletes these records together with the proposal. Requirements for named
    people need both hooks, and `approvals = bound` in the connection's settings. With --pages, ACCOUNT may approve for
    people who are logged in to the pages, as `people` in the connection's settings specifies.

    With --poke, Headgate sees a push to a polled server immediately. The command sends one test poke for each
    repository."""
    if pages and not people:
        raise UserError("--pages needs --people ACCOUNT: without it, approvals carry no names")
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
        # Install the poke hook before `post-receive`, which calls it, so that no push misses it.
        if poke_text:
            say(f"installed {install_poke(at, poke_text)}")
        if where is not None or people or poke_text:
            text = _post_receive_text(where) if where is not None else _text("post-receive")
            say(f"installed {install_hook(at, 'post-receive', text)}")
        # Test last: it waits up to 30 s for an answer, and an unreachable Headgate must not stop the installation.
        if poke_text:
            tried(at, poke_text)
        if where is None:
            missing = "" if people or poke_text else "post-receive is not installed, so "
            say(
                f"{at}: {missing}pushes show no URL: the settings do not set [web] root, or no tenant has this "
                "repository; give --page URL",
                err=True,
            )


@hook.command("post-receive")
@click.option("--page", metavar="URL", help="The tenant's page, such as https://HOST/t/TENANT, to show after a push.")
def post_receive(page: str | None) -> None:
    """Print the post-receive hook, for git servers such as gitolite where this command cannot install it."""
    say(_post_receive_text(_Where(page.rstrip("/"), "")) if page else _text("post-receive"), nl=False)


@hook.command()
@click.option("--config", metavar="FILE", help="The settings file; it contains the secret.")
@click.option(
    "--url", metavar="URL", help="URL of Headgate's pages as the git server reaches them. Default: [web] root."
)
@click.argument("connection")
def poke(config: str | None, url: str | None, connection: str) -> None:
    """Print the poke hook: with it, the git server of CONNECTION notifies Headgate of each push, so that Headgate polls
    immediately.

    The hook contains a secret derived from the connection's webhook_token: protect it like the token. Install it on
    the server with `headgate hook install --poke FILE`, or as hooks/post-receive.
    """
    settings = read(find(config))
    section = settings.connections.get(connection)
    if section is None or driver_of(section) != "git":
        raise UserError(f"{settings.path}: there is no connection {connection!r} with the driver git")
    secret = poke_secrets(settings).get(connection)
    if secret is None:
        raise UserError(
            f"{settings.path}: [connection {connection}] has no webhook_token, which pokes need: "
            "set one (`openssl rand -hex 32` makes one), and restart Headgate"
        )
    root = (url or settings.get("web", "root")).rstrip("/")
    if urlsplit(root).scheme not in ("http", "https"):
        raise UserError(
            f"{settings.path}: [web] root is not the http or https URL of the pages; give --url https://HOST"
        )
    if plain(settings)[connection].local:
        say(
            f"[connection {connection}] is a directory, which Headgate watches without pokes unless it is a network "
            "mount",
            err=True,
        )
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
    """Return the page of the tenant that has the repository; None when no tenant has it, or the settings do not set
    [web] root."""
    root = settings.get("web", "root").rstrip("/") if settings is not None else ""
    if settings is None or not root:
        return None
    sources = connections(settings)
    _, file = tenants(settings, sources)
    for name, tenant in file.tenants.items():
        for project in tenant.projects:
            source = sources.get(project.connection)
            local = source.git_dir(project.project) if source is not None else None
            # Compare resolved paths: the given path may use symlinks that the settings do not.
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
    """Return the git directory of a repository. Raise UserError if there is none."""
    at = repository / ".git" if (repository / ".git" / "HEAD").exists() else repository
    if not (at / "HEAD").exists():
        raise UserError(f"{repository} is not a git repository; name bare repositories, such as /srv/git/code.git")
    return at


def _write_down(at: Path, name: str, value: str) -> None:
    """Set an option in the configuration of a repository. Raise UserError."""
    done = subprocess.run(["git", "--git-dir", at, "config", name, value], capture_output=True, text=True)
    if done.returncode:
        raise UserError(f"{at}: git config cannot set {name}: {done.stderr.strip()}")


def install_update(repository: Path) -> Path:
    """Install the update hook in one of Headgate's repositories, and return its path. Raise UserError."""
    return install_hook(_git_dir(repository), "update", _text("update"))


def install_hook(at: Path, name: str, text: str) -> Path:
    """Write a hook, or replace an earlier version of Headgate's, and return its path. Raise UserError if somebody
    else's hook has that name."""
    file = at / "hooks" / name
    try:
        with hooks_of(at) as hooks:
            known = text_of(hooks, name)
            # Another hook may enforce rules of its own; replacing it would silently disable them.
            if known is not None and MARKS[name] not in known:
                other = (
                    "save the output of `headgate hook` as a script, and call it from your hook"
                    if name == "update"
                    else "move it aside, install Headgate's hook, and call your hook from it"
                )
                raise UserError(f"{file} already exists, and it is not Headgate's; {other}")
            put(hooks, name, text, lambda made: os.fchmod(made, 0o755))
    except OSError as error:
        raise UserError(f"{file} cannot be written: {reason(error)}") from error
    return file


def poke_of(file: Path) -> str:
    """Return the text of the poke hook in a file. Raise UserError if the file contains something else."""
    text = bytes_of(file).decode(errors="replace")
    # Blanks that are not filled in mean the template from the package, which has neither URL nor secret.
    if _POKE_MARK not in text or _POKE_BLANKS in text:
        raise UserError(
            f"{file} is not a poke hook; run `headgate hook poke CONNECTION` where Headgate runs, and save its output"
        )
    return text


def install_poke(at: Path, text: str) -> Path:
    """Install the poke hook, readable only by users who may write to the repository, and return its path. Raise
    UserError."""
    file = at / "hooks" / POKE

    def dress(made: int) -> None:
        # Anyone who can read the hook can poke, so only its owner may and, in a shared repository, the group that
        # may push.
        owner, mode = at.stat(), 0o500
        if os.geteuid() == 0:
            os.fchown(made, owner.st_uid, -1)
        if owner.st_mode & 0o020:
            with suppress(PermissionError):  # the installing user does not belong to that group
                os.fchown(made, -1, owner.st_gid)
                mode = 0o550
        os.fchmod(made, mode)

    try:
        with hooks_of(at) as hooks:
            put(hooks, POKE, text, dress)
    except OSError as error:
        raise UserError(f"{file} cannot be written: {reason(error)}") from error
    return file


def tried(at: Path, text: str) -> None:
    """Run the hook's text once for a repository, as a test poke, and print the result."""
    # In a gitolite shell, GL_REPO names some other repository, and the hook would poke for that one.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GL_")}
    try:
        done = subprocess.run(  # run the given text, because another process may have replaced the file
            ["sh", "-s", "try"],
            input=text,
            cwd=at,
            env=environment,
            capture_output=True,
            text=True,
            timeout=_POKE_MAX_S,
        )
    except subprocess.TimeoutExpired:
        say(
            f"{at}: Headgate did not answer within {_POKE_MAX_S} s; until it does, it sees pushes when it polls",
            err=True,
        )
        return
    output = (done.stdout or done.stderr).strip()[:1_000]
    # Headgate answers an accepted poke with the hint that it recorded. Any other answer, even with status 200, comes
    # from another server or is a refusal.
    if '"hint"' in done.stdout:
        say(f"{at}: Headgate accepted the test poke: {output}")
    else:
        say(
            f"{at}: the test poke failed, so Headgate sees pushes here only when it polls; the answer: {output}",
            err=True,
        )


@contextmanager
def hooks_of(at: Path) -> Iterator[int]:
    """Open the hooks directory of a repository, and create it if it is missing. Accept a symlink only if it belongs to
    the current user. Raise UserError, OSError."""
    with _open(at, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) as repository:
        # Do not check first: another process may create the directory in between, which is fine.
        with suppress(FileExistsError):
            os.mkdir("hooks", dir_fd=repository)
        # Open the symlink itself: owner and target then come from one object that nobody can swap in between.
        with _open("hooks", _LINK, repository) as link:
            status = os.fstat(link)
            target = os.readlink("", dir_fd=link) if stat.S_ISLNK(status.st_mode) else ""
        if target and status.st_uid != os.geteuid():
            raise UserError(
                f"{at / 'hooks'} is a symlink to {target} that belongs to another user; replace it with a directory"
            )
        # Open the checked target, not the name again: the name may point elsewhere by now.
        flags = _DIRECTORY & ~os.O_NOFOLLOW if target else _DIRECTORY
        with _open(target or "hooks", flags, repository) as hooks:
            yield hooks


def text_of(hooks: int, name: str) -> str | None:
    """Return the text of the hook, empty if it is not a file, or None if there is none.  Raise OSError."""
    try:
        kind = os.stat(name, dir_fd=hooks, follow_symlinks=False).st_mode
        if not stat.S_ISREG(kind):
            return ""
        # Anyone with write access can put a FIFO under the name after the check; without O_NONBLOCK, opening it would
        # block forever.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with _open(name, flags, hooks) as found:
            return os.read(found, READ_MAX_BYTES).decode(errors="replace")
    except FileNotFoundError:
        return None


def put(hooks: int, name: str, text: str, dress: Callable[[int], None]) -> None:
    """Write a hook, replacing an existing one. `dress` sets owner and mode before the file gets its final name.
    Raise OSError."""
    # With a random name and O_EXCL, nobody can plant a file or a symlink there to receive the secret.
    new = f".{name}.{secrets.token_hex(8)}"
    with _open(new, _NEW, hooks, 0o600) as made:
        try:
            with open(made, "w", closefd=False) as file:
                file.write(text)
            # Set owner and mode through the descriptor and before the rename: git never runs an unfinished hook, and
            # nobody can swap the file in between.
            dress(made)
            os.replace(new, name, src_dir_fd=hooks, dst_dir_fd=hooks)
        except BaseException:
            # BaseException, to clean up on an interrupt, too: the temporary file may contain the secret.
            os.unlink(new, dir_fd=hooks)
            raise


@contextmanager
def _open(path: str | Path, flags: int, at: int | None = None, mode: int = 0o777) -> Iterator[int]:
    found = os.open(path, flags, mode, dir_fd=at)
    try:
        yield found
    finally:
        os.close(found)
