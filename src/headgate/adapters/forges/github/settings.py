"""Connect to a GitHub, as the settings describe it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from headgate.adapters.forges.github.account import GitHubAccount, account
from headgate.adapters.forges.github.client import GitHubClient
from headgate.adapters.forges.github.forge import GitHubForge
from headgate.adapters.forges.github.tokens import GitHubAppNotInstalled, Tokens
from headgate.adapters.forges.registry import Connected, DriverOptions
from headgate.adapters.forges.rest import ForgeDenied, Rejected, forge_http
from headgate.adapters.git.command import RemoteError
from headgate.adapters.git.connection import GitConnection
from headgate.base.errors import UserError
from headgate.ports.reporter import ReporterAway


def connect(given: DriverOptions) -> Connected:
    """Return the forge, which has sent nothing yet. Raise UserError."""
    options = dict(given.options)
    for option in ("app_key", "sshkey"):
        if option in options:
            options[option] = str((given.directory / options[option]).expanduser())
    one = account(given.name, options, _key(options.get("app_key", "")))
    client = GitHubClient(one, partial(forge_http, one.verify_ssl), lambda: given.now_ms() / 1000)
    client.limits = given.limits
    tokens = Tokens(client, lambda: given.now_ms() / 1000)
    git = GitConnection(
        one.name,
        one.git,
        one.canonical_hostname,
        access=partial(_access, one, tokens),
        forget=lambda project: tokens.forget(one.short(project)),
    )
    forge = GitHubForge(client, tokens, given.engine, lands=options.get("land", "merge"))
    return Connected(git, forge, forge.close)


def _key(path: str) -> str:
    if not path:
        return ""
    try:
        with open(path) as file:
            # A wrong path, such as a device or a disk image, must not fill the memory.
            return file.read(1_000_000)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"app_key: {path} cannot be read: {error}") from error


async def _access(one: GitHubAccount, tokens: Tokens, project: str) -> Mapping[str, str]:
    """Return git's settings for access to a project. Raise RemoteError."""
    try:
        return await tokens.git(one.short(project))
    except (GitHubAppNotInstalled, ReporterAway, ForgeDenied, Rejected) as error:
        raise RemoteError(("fetch",), 1, str(error)) from error
