"""Connect to a Pagure, as the settings describe it."""

from __future__ import annotations

from functools import partial

from headgate.adapters.forges.pagure.account import account
from headgate.adapters.forges.pagure.client import PagureClient
from headgate.adapters.forges.pagure.forge import PagureForge
from headgate.adapters.forges.registry import Connected, DriverOptions
from headgate.adapters.forges.rest import forge_http
from headgate.adapters.git.connection import GitConnection


def connect(given: DriverOptions) -> Connected:
    """Return the forge, which has sent nothing yet. Raise UserError."""
    options = dict(given.options)
    if "sshkey" in options:
        options["sshkey"] = str((given.directory / options["sshkey"]).expanduser())
    one = account(given.name, options)
    client = PagureClient(one, partial(forge_http, one.verify_ssl), lambda: given.now_ms() / 1000)
    client.limits = given.limits
    git = GitConnection(one.name, one.clone, one.canonical_hostname, access=client.git, suffix=".git")
    forge = PagureForge(client, given.engine)
    return Connected(git, forge, forge.close)
