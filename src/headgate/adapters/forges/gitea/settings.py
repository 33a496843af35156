"""Connect to a Gitea, as the settings describe it."""

from __future__ import annotations

from functools import partial

from headgate.adapters.forges.gitea.account import account
from headgate.adapters.forges.gitea.client import GiteaClient
from headgate.adapters.forges.gitea.forge import GiteaForge
from headgate.adapters.forges.registry import Connected, DriverOptions
from headgate.adapters.forges.rest import forge_http
from headgate.adapters.git.connection import GitConnection


def connect(given: DriverOptions) -> Connected:
    """Return the forge, which has sent nothing yet. Raise UserError."""
    options = dict(given.options)
    if "sshkey" in options:
        options["sshkey"] = str((given.directory / options["sshkey"]).expanduser())
    one = account(given.name, options)
    client = GiteaClient(one, partial(forge_http, one.verify_ssl), lambda: given.now_ms() / 1000)
    client.limits = given.limits
    git = GitConnection(one.name, one.clone, one.canonical_hostname, access=client.git)
    forge = GiteaForge(client, given.engine, lands=options.get("land", "merge"))
    return Connected(git, forge, forge.close)
